"""`rotoscope train`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import rotoscope as rs
from tests.cli.flags.effect import (
    Effect,
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
}

WORDS = "data letter --train 8 --validation 4 --test 6 --hops 1 --target 4 --window 2 --alphabet 4 --digits 2"
NUMBERS = "data number --train 8 --validation 4 --test 6 --hops 1 --target 4 --window 2 --letters 5"
MORE = "--train 12 --validation 6 --test 10 --hops 2 --target 5 --window 3 --alphabet 5 --digits 3"


def part(outcome: Outcome, name: str) -> pd.DataFrame:
    return pd.read_parquet(next((outcome.folder / "data").glob(f"{name}-*.parquet")))


def rows(name: str):
    return lambda outcome: len(part(outcome, name))


def texts(outcome: Outcome) -> list[str]:
    return part(outcome, "train")["text"].tolist()


def signs(outcome: Outcome) -> tuple[int, int]:
    """How many letters and digits occur at most: their largest, counted."""
    found = set("".join(texts(outcome))) - {" "}
    return len({sign for sign in found if sign.isalpha()}), len({sign for sign in found if sign.isdigit()})


def windows(outcome: Outcome) -> tuple[int, int]:
    """Pairs with a digit stand in the target window, those without in the pointing window and at the end."""
    first = texts(outcome)[0].split()
    target = sum(word[1:].isdigit() for word in first)
    return target, len(first) - target - 1


def datasets_are_replaced_only_when_asked(world: World) -> None:
    place = world.place / "dataset"
    assert world.run(f"{WORDS} --out {place}").code == 0
    kept = world.run(f"{WORDS} --seed 1 --out {place}")
    assert kept.code == 2
    assert "--overwrite" in kept.problem
    before = texts(kept)
    replaced = world.run(f"{WORDS} --seed 1 --out {place} --overwrite")
    assert replaced.code == 0, replaced.problem
    assert texts(replaced) != before


def dataset_is_written_there(world: World) -> None:
    found = world.run(WORDS)
    assert {"README.md", "train-00000-of-00001.parquet"} <= set(found.files)


DATA: Table = {
    "task": Other(
        WORDS, NUMBERS, lambda o: all(word.isalnum() and len(word) == 2 for word in texts(o)[0].split())
    ),
    "train": Effect(WORDS, MORE, rows("train"), 12),
    "validation": Effect(WORDS, MORE, rows("validation"), 6),
    "test": Effect(WORDS, MORE, rows("test"), 10),
    "seed": Effect(WORDS, "--seed 1", texts),
    "hops": Effect(WORDS, MORE, lambda o: sorted(set(part(o, "train")["hops"])), [1, 2]),
    "target": Effect(WORDS, MORE, lambda o: windows(o)[0], 5),
    "window": Effect(WORDS, MORE, lambda o: windows(o)[1], 3),
    "letters": Effect(
        NUMBERS.replace("--train 8", "--train 40"),
        "--letters 9",
        lambda o: len({w for t in texts(o) for w in t.split() if w.isalpha()}),
        9,
    ),
    "alphabet": Effect(WORDS, MORE, lambda o: signs(o)[0], 5),
    "digits": Effect(WORDS, MORE, lambda o: signs(o)[1], 3),
    "out": dataset_is_written_there,
    "overwrite": datasets_are_replaced_only_when_asked,
    "device": on_device(WORDS),
}
