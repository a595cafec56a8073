"""Runs as pages for a browser."""
