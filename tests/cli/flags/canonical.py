"""`rotoscope canonical`."""

from __future__ import annotations

from tests.cli.flags.effect import (
    Effect,
    Other,
    Outcome,
    Overwrites,
    Table,
    Undrawn,
    Written,
    every,
    on_device,
)  # fmt: skip

SIZES = "--steps 4 --batch 8 --keys 4 --symbols 4 --entities 4 --angles 1 0.1 --tested 64 --no-figures"
INDEX = f"canonical index {SIZES}"
RETRIEVAL = f"canonical retrieval {SIZES}"
INDUCTION = f"canonical induction {SIZES}".replace("--angles 1 0.1", "--angles 1")
MUCH = "--seeds 2 --keys 6 --symbols 7 --steps 6 --angles 1 --evaluations 1 --tested 16"
"""Flags whose effects are seen in different places."""


def learned(outcome: Outcome) -> list[float]:
    """What the heads ended with."""
    rows = outcome.result.vectors
    return rows[rows["step"] == rows["step"].max()]["re"].tolist()


def begun(outcome: Outcome) -> list[float]:
    """What they began with."""
    rows = outcome.result.vectors
    return rows[rows["step"] == 0]["re"].tolist()


def rows_of_keys(outcome: Outcome) -> int:
    rows = outcome.result.vectors
    return len(set(rows[rows["kind"] == "key"]["row"]))


def places_tried(outcome: Outcome) -> int:
    """Positions asked on the way, by a sixteenth of the samples of the end."""
    rows = outcome.result.positions
    return len(set(rows[rows["step"] == 0]["position"]))


FLAGS: Table = {
    "task": Other(INDEX, RETRIEVAL, lambda o: every(o, "accuracy", "experiment"), ["retrieval"]),
    "preset": Effect(INDEX, "--preset paper", lambda o: every(o, "accuracy", "seed"), [0, 1, 2]),
    "seeds": Effect(INDEX, MUCH, lambda o: len(every(o, "accuracy", "seed")), 2),
    "keys": Effect(INDEX, MUCH, lambda o: every(o, "positions", "position")[-1], 5),
    "symbols": Effect(INDEX, MUCH, rows_of_keys, 7),
    "entities": Effect(RETRIEVAL, "--entities 6", rows_of_keys, 6),
    "steps": Effect(INDEX, MUCH, lambda o: every(o, "accuracy", "step")[-1], 6),
    "batch": Effect(INDEX, "--batch 9", learned),
    "seed": (Effect(INDEX, "--seed 1", begun), Effect(INDEX, "--seed 1", learned)),
    "angles": Effect(INDEX, MUCH, lambda o: every(o, "accuracy", "theta"), [1.0]),
    "tested": Effect(INDEX, MUCH, places_tried, 1),
    "evaluations": Effect(INDEX, MUCH, lambda o: len(every(o, "accuracy", "step")), 2),
    "out": Written(INDEX),
    "overwrite": Overwrites(INDEX, "--seed 1"),
    "figures": Undrawn(INDEX, drawn="tests/cli/test_cli.py::test_canonical"),
    "device": on_device(INDEX),
}
