"""How do heads become positional or symbolic in training?"""
