"""A run that is looked at while it is made shows all of its pieces."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.experiments.theory.run import TheoryRun
from rotoscope.runs.run import Run
from tests.tiny_models import tiny, tokens


@pytest.mark.parametrize("folder", [None, "run"])
def test_pieces_that_come_later_join_those_that_were_seen(tmp_path: Path, folder: str | None) -> None:
    run = Run(TheoryRun, {"x": 1}, None if folder is None else tmp_path / folder)
    for k in range(3):
        run.add(f"piece-{k}", {"statements": pd.DataFrame({"k": [k]})})
        assert run.result.statements["k"].tolist() == list(range(k + 1))
    assert run.finish().statements["k"].tolist() == [0, 1, 2]


def test_every_draw_of_a_null_is_kept(tmp_path: Path) -> None:
    found = rs.profile(tiny("llama"), tokens=tokens(2, 8), null="random", null_draws=3, out=tmp_path / "run")
    for one in (found, rs.open(tmp_path / "run")):
        assert one.nulls.groupby("draw").size().tolist() == [12, 12, 12]
