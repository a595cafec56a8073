"""How far do models generalise to longer inputs?"""
