"""`rotoscope calibrate`."""

from __future__ import annotations

from tests.cli.flags.effect import (
    Effect,
    Outcome,
    Overwrites,
    Table,
    Undrawn,
    Written,
    every,
    on_device,
)  # fmt: skip

LEAST = "calibrate --repetitions 1 --scales 0.02 --prompts 2 --null-draws 2 --trained none --no-figures --device cpu"
MUCH = "--repetitions 2 --scales 0.1 --prompts 3 --null-draws 3 --trained letter"
"""Flags whose effects are seen in different places: one run shows them all."""


def values(outcome: Outcome) -> list[float]:
    return outcome.result.subjects["value"].tolist()


FLAGS: Table = {
    "repetitions": Effect(LEAST, MUCH, lambda o: every(o, "subjects", "repetition"), [0, 1]),
    "scales": Effect(LEAST, MUCH, lambda o: every(o, "subjects", "scale"), [0.1]),
    "prompts": Effect(LEAST, MUCH, lambda o: every(o, "subjects", "prompts"), [3]),
    "null_draws": Effect(LEAST, MUCH, lambda o: every(o, "subjects", "null_draws"), [3]),
    "trained": Effect(
        LEAST, MUCH, lambda o: (len(o.result.trained), "letter, which learned" in o.told), (10, True)
    ),
    "seed": Effect(LEAST, "--seed 1", values),
    "out": Written(LEAST),
    "overwrite": Overwrites(LEAST, "--seed 1"),
    "figures": Undrawn(LEAST, drawn="tests/figures/test_other_figures.py::test_false_verdicts"),
    "device": on_device(LEAST),
}
