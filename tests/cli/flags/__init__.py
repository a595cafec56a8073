"""What every flag of every command must change, one table per command; `tests/cli/test_flags.py` tries them."""
