"""A training's heads on the terminal: every head of a few, counts and pure heads of many, no hops where there are none."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from rotoscope.experiments.train.command import MANY_HEADS, show_dynamics
from rotoscope.experiments.train.dynamics_result import Dynamics
from rotoscope.terminal import new_console
from tests.monitored import monitored


def told(run: Dynamics, folder: Path) -> str:
    text = io.StringIO()
    show_dynamics(new_console(file=text), run, folder)
    return text.getvalue()


def test_few_heads_stand_one_under_the_other(tmp_path: Path) -> None:
    said = told(monitored([0, 300, 600]), tmp_path)
    assert "heads at the end (gamma = 0.1), and the steps at which they became pure" in said
    assert "what each hop waits for" not in said  # a task without hops
    assert "accuracy against the number of heads in each class" in said
    assert list(tmp_path.iterdir()) == []


def test_many_heads_are_counted_and_the_pure_ones_named(tmp_path: Path) -> None:
    run = monitored([0, 300, 600], 14, 3, accuracy=False)
    assert len(run.pure_from()) > MANY_HEADS
    said = told(run, tmp_path)
    assert "42 heads at the end (gamma = 0.1) by class" in said
    for name, count in run.pure_from()["head_class"].value_counts().items():
        assert f"{name} {count} 0" in " ".join(said.split())
    assert "heads that end pure, in the order in which they became so" in said
    assert "accuracy" not in said
    assert f"all 42 heads: {tmp_path / 'pure_from.csv'}" in " ".join(said.split())
    assert len(pd.read_csv(tmp_path / "pure_from.csv")) == 42
    pure = pd.read_csv(tmp_path / "pure_heads.csv")
    assert len(pure) == 28
    assert pure["first_pure"].is_monotonic_increasing
    assert f"all 28 rows: {tmp_path / 'pure_heads.csv'}" in " ".join(said.split())
