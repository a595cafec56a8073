"""How every figure looks, and how it is saved."""
