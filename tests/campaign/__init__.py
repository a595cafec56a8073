"""The hardening campaign: tens of thousands of bad inputs, faults and kills, each of which the program must answer well.

`make campaign` runs it for an hour, `make campaign BUDGET=8h SEED=3` for longer or with other cases; a small slice with
fixed seeds is part of `make test`. What it found once stands in `cases.py` and is tried every time.
"""
