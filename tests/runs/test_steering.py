"""Trainings that favour a kind, side by side: what is concluded, and what must not be."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RunError, TaskError
from rotoscope.experiments.lengths.result import accuracy_row
from rotoscope.experiments.roles.run import HELD_OUT
from rotoscope.experiments.steering import Steering, measure_steering
from rotoscope.runs.record import RunRecord

RIGHT = {"none": (300, 320, 310), "symbolic": (390, 395, 399), "positional": (120, 130, 110)}


def made_up(
    right: dict[str, tuple[int, ...]] = RIGHT, tasks: tuple[str, ...] = ("either", "letter")
) -> Steering:
    """So many of 400 right at every length, by favoured kind and seed."""
    rows, heads = [], []
    for task in tasks:
        for favour, counts in right.items():
            for seed, count in enumerate(counts):
                about = {"task": task, "favour": favour, "strength": 0.03 * (favour != "none"), "seed": seed}
                for order in ("in order", "shuffled") if task == "either" else ("in order",):
                    rows += [
                        about | {"order": order, "length": n} | accuracy_row(count, 400) for n in (9, 29, 109)
                    ]
                kind = {"head_class": "mixed" if favour == "none" else favour, "variance": 1.0}
                scores = {
                    "positional_score": 0.5,
                    "symbolic_score": 0.5,
                    "positional_penalty": 0.5,
                    "symbolic_penalty": 1.0,
                }
                heads += [about | {"layer": layer, "head": 0} | kind | scores for layer in range(2)]
    return Steering(RunRecord("steering"), {"accuracy": pd.DataFrame(rows), "heads": pd.DataFrame(heads)})


def found(right: dict[str, tuple[int, ...]]) -> set[tuple[str, str, str]]:
    rows = made_up(right).comparisons()
    return set(zip(rows["favour"], rows["against"], rows["found"], strict=True))


def test_three_seeds_that_lie_apart_are_better_and_worse() -> None:
    assert found(RIGHT) == {
        ("symbolic", "none", "better"),
        ("symbolic", "positional", "better"),
        ("positional", "none", "worse"),
        ("positional", "symbolic", "worse"),
    }


@pytest.mark.parametrize(
    "right",
    [
        {"none": (300, 320, 310), "symbolic": (300, 320, 310)},  # the same runs
        {"none": (100,), "symbolic": (390,)},  # one seed
        {"none": (100, 100, 100), "symbolic": (390, 390)},
        {"none": (100, 350, 100), "symbolic": (390, 390, 340)},  # one seed of the others is as good
        {"none": (380, 381, 382), "symbolic": (384, 385, 386)},  # apart, but not beyond chance of 400 inputs
    ],
)
def test_nothing_is_concluded_from_less(right: dict[str, tuple[int, ...]]) -> None:
    assert found(right) == {("symbolic", "none", "neither")}


def test_the_overview_has_a_row_for_each_kind() -> None:
    table = made_up().overview()
    assert table["seeds"].tolist() == [3] * 6
    symbolic = table[(table["task"] == "either") & (table["favour"] == "symbolic")].iloc[0]
    assert symbolic["shuffled 109"] == pytest.approx((390 + 395 + 399) / 1200)
    assert (symbolic["symbolic"], symbolic["positional"]) == (1.0, 0.0)


def test_runs_are_measured_where_they_were_trained_and_beyond(tmp_path: Path) -> None:
    sizes = {
        "target": 4,
        "alphabet": 2,
        "digits": 2,
        "layers": 1,
        "width": 8,
        "positions": 16,
        "steps": 3,
        "batch": 4,
    }
    parts = {
        "train_sequences": 16,
        "validation_sequences": 8,
        "test_sequences": 8,
        "watch_every": 3,
        "checkpoints": 2,
    }
    made = rs.lab.train(
        "either",
        "paper",
        favour=["none", "positional"],
        out=tmp_path,
        show_progress=False,
        warmup=1,
        **sizes,
        **parts,
    )
    folders = [run.folder for run in made]
    run = measure_steering(folders, longer=(3, 100), inputs=20, out=tmp_path / "measured", show_progress=False)
    assert run.accuracy.groupby(["order", "length"]).size().to_dict() == {
        (order, n): 2 for order in ("in order", "shuffled") for n in (5, 8)
    }  # 105 tokens are more than the model's positions
    assert run.heads["favour"].tolist() == ["none", "positional"]
    last = made[1].model
    tokens = rs.tasks.either(400, target=4, alphabet=2, digits=2, first=HELD_OUT, balanced=True).tokens
    states: list = []
    last.logits(tokens, visit=states.append)
    logits = rs.lab.gptj.head_logits(states, 4)[0, ..., :-1, :-1]
    expected = float(rs.exclusion(logits.detach()).penalty("positional").mean())
    assert run.heads["positional_penalty"].iloc[1] == pytest.approx(expected, rel=1e-3)
    assert len(Steering.open(tmp_path / "measured").accuracy) == len(run.accuracy)
    with pytest.raises(RunError, match="two of the runs have the same task"):
        measure_steering([folders[0], folders[0]])
    with pytest.raises(TaskError, match="give at least one training run"):
        measure_steering([])
