"""How well does a language model answer one-hop questions, by length?"""
