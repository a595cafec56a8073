"""What does each layer of a multi-hop model do?"""
