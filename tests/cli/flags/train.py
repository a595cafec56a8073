"""`rotoscope train`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rotoscope as rs
from tests.cli.flags.effect import (
    Effect,
    Forced,
    Other,
    Outcome,
    Overwrites,
    Table,
    Undrawn,
    every,
    on_device,
)  # fmt: skip
from tests.cli.flags.effect import Written as WrittenRun

LETTER = (
    "train letter --hops 1 --target 4 --window 2 --alphabet 4 --digits 2 --layers 1 --width 8 --steps 3 "
    "--batch 4 --warmup 1 --train-sequences 16 --validation-sequences 8 --test-sequences 8 --watch-every 3 "
    "--inputs 4 --checkpoints 2 --device cpu --no-figures"
)
NUMBER = LETTER.replace("letter", "number").replace("--alphabet 4 --digits 2", "--letters 5")
FAVOURED = LETTER.replace("--layers 1", "--layers 2") + " --favour symbolic"
MUCH = (
    "--hops 2 --target 5 --window 3 --alphabet 5 --digits 3 --validation-sequences 10 --test-sequences 12 --layers 2 "
    "--heads 2 --width 16 --nope 1 --steps 9 --warmup 3 --learning-rate 0.01 "
    "--watch-every 2 --checkpoints 3 --inputs 6 --queries path --tau 0.01"
)
"""Flags whose effects are seen in different places: one run shows them all."""


def config(outcome: Outcome) -> dict[str, Any]:
    """The configuration of the last model."""
    places = sorted(outcome.folder.glob("checkpoint-*"), key=lambda place: int(place.name.split("-")[1]))
    return json.loads((places[-1] / "config.json").read_text())


def sizes(name: str):
    """A size of the sequences the model was trained on, as they were made."""
    return lambda outcome: config(outcome)["rotoscope"][name]


def weights(outcome: Outcome) -> str:
    """The last model."""
    last = max(every(outcome, "metrics", "step"))
    return hashlib.sha256(
        (outcome.folder / f"checkpoint-{last}" / "model.safetensors").read_bytes()
    ).hexdigest()


def asked(table: str):
    """How many sequences the first evaluation, or the test, asks."""
    return lambda outcome: int(
        outcome.result.tables[table].head(max(every(outcome, table, "hops")))["inputs"].sum()
    )


def steps(outcome: Outcome) -> list[int]:
    return every(outcome, "metrics", "step")


def rates(outcome: Outcome) -> dict[int, float]:
    rows = outcome.result.metrics.drop_duplicates("step")
    return {int(step): round(rate, 6) for step, rate in zip(rows["step"], rows["learning_rate"], strict=True)}


def kept(outcome: Outcome) -> int:
    return len(list(outcome.folder.glob("checkpoint-*")))


def runs(outcome: Outcome) -> list[str]:
    """The runs that are in the folder, one per model."""
    return sorted(file.parent.name for file in outcome.folder.glob("*/run.json") if rs.open(file.parent))


TRAIN: Table = {
    "task": Other(LETTER, NUMBER, sizes("task"), "number"),
    "preset": Effect(LETTER, "--preset paper", lambda o: rates(o)[3], 5e-5),
    "seeds": Effect(LETTER, "--seeds 2", runs, ["letter-0", "letter-1"]),
    "seed": Effect(LETTER, "--seed 1", weights),
    "hops": Effect(LETTER, MUCH, lambda o: every(o, "metrics", "hops"), [1, 2]),
    "target": Effect(LETTER, MUCH, sizes("target"), 5),
    "window": Effect(LETTER, MUCH, sizes("window"), 3),
    "letters": Effect(NUMBER, "--letters 6", lambda o: config(o)["vocab_size"]),
    "alphabet": Effect(LETTER, MUCH, sizes("alphabet"), 5),
    "digits": Effect(LETTER, MUCH, sizes("digits"), 3),
    "train_sequences": Effect(LETTER, "--train-sequences 20", weights),
    "validation_sequences": Effect(LETTER, MUCH, asked("metrics"), 10),
    "test_sequences": Effect(LETTER, MUCH, asked("test"), 12),
    "layers": Effect(LETTER, MUCH, lambda o: every(o, "scores", "layer"), [0, 1]),
    "heads": Effect(LETTER, MUCH, lambda o: every(o, "scores", "head"), [0, 1]),
    "width": Effect(LETTER, MUCH, lambda o: config(o)["n_embd"], 16),
    "nope": Effect(LETTER, MUCH, lambda o: config(o).get("nope_layers"), [1]),
    "angles": Effect(LETTER, "--angles 1-2 slow", runs, ["letter-1-2-0", "letter-slow-0", "restrictions"]),
    "base": Effect(
        LETTER, "--base 100", lambda o: config(o).get("rotoscope_angles"), {"base": 100.0, "ids": []}
    ),
    "steps": Effect(LETTER, MUCH, lambda o: steps(o)[-1], 9),
    "batch": Effect(LETTER, "--batch 5", weights),
    "learning_rate": Effect(LETTER, MUCH, lambda o: max(rates(o).values()), 0.01),
    "warmup": Effect(LETTER, MUCH, lambda o: rates(o).get(2), 0.005),
    "watch_every": Effect(LETTER, MUCH, lambda o: steps(o)[1], 2),
    "checkpoints": Effect(LETTER, MUCH, kept, 3),
    "favour": Effect(LETTER, "--favour none symbolic", runs, ["letter-0", "letter-symbolic-0"]),
    "strength": Effect(FAVOURED, "--strength 5", weights),
    "favour_layers": Effect(FAVOURED, "--favour-layers 1", weights),
    "inputs": Effect(LETTER, "--inputs 6", lambda o: every(o, "scores", "inputs"), [6]),
    "queries": Effect(LETTER, MUCH, lambda o: every(o, "scores", "queries"), ["path"]),
    "tau": Effect(LETTER, MUCH, lambda o: every(o, "scores", "tau"), [0.01]),
    "out": WrittenRun(LETTER),
    "overwrite": Overwrites(LETTER, "--seed 1"),
    "figures": Undrawn(LETTER, drawn="tests/cli/test_cli.py::test_train_then_dynamics_from_the_command_line"),
    "device": on_device(LETTER),
    "force": Forced(LETTER, "--steps 10000000 --batch 100000 --train-sequences 100000"),
}
