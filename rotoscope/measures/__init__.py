"""What is computed of every head in one reading of a model."""
