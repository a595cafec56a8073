"""Deliberate breakages, kept as data: `python -m tests.breakages [name ...]` asks whether a test notices each.

One file per room, `<room>.toml`, with one table per breakage:

    [turn-the-other-way]
    why = "one sentence: what would be wrong in the results"
    function = "relative_phases"
    expression = "query_position - torch.arange(n)"
    replacement = "torch.arange(n) - query_position"
    tests = ["tests/scores/test_rotation.py::test_name"]

`function` names a function, a method ("Class.method"), a class or a constant anywhere in the package. `expression` is an
expression or a statement in it and is found by its structure, so that code may be moved and wrapped. Where it occurs more
than once, `occurrence = 2` chooses.

A breakage is caught if every test it names fails. It survives if one of them passes, and it does not apply if its
expression has gone: then it has to be written again. The working tree is never touched, everything happens in temporary
copies.
"""
