"""Where does the place come from that a symbolic head follows?"""
