"""Deliberate breakages, kept as data: `python -m tests.breakages [name ...]` asks whether a test notices each.

One small file per breakage, `<room>/<name>.toml`:

    why = "one sentence: what would be wrong in the results"
    file = "rotoscope/maths/swaps.py"
    before = "text that stands in the file exactly once, best one short distinctive line"
    after = "what stands there instead"
    tests = ["tests/maths/test_swaps.py::test_name"]

A breakage is caught if every test it names fails. It survives if one of them passes, and it does not apply if its text
has gone from the file or stands there more than once: then it has to be written again. The working tree is never
touched, everything happens in temporary copies.
"""
