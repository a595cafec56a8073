"""Draws of the random null are kept in the user's cache, and found by all that their scores follow from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.experiments.profile import kept_draws
from rotoscope.measures import null as nulls
from tests.tiny_models import tiny, tokens

ASKED: dict[str, Any] = {"tokens": tokens(3, 10), "null_draws": 2, "examples": False, "show_progress": False}


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that random models were drawn with, with an empty cache that keeps small draws, too."""
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_draws, "LEAST_WORK", 0)
    seeds: list[int] = []
    reader = nulls.RandomModels.reader

    def noted(self: Any, seed: int) -> Any:
        seeds.append(seed)
        return reader(self, seed)

    monkeypatch.setattr(nulls.RandomModels, "reader", noted)
    return seeds


@pytest.mark.parametrize("more", [{}, {"frequencies": True, "input_swaps": 4, "batch_tokens": 10}])
def test_a_second_profile_reads_the_draws_of_the_first(
    more: dict[str, Any], drawn: list[int], tmp_path: Path
) -> None:
    first = rs.profile(tiny("llama"), **ASKED, **more)
    assert len(drawn) == 2
    again = rs.profile(tiny("llama"), out=tmp_path / "run", **ASKED | more | {"null_draws": 3})
    assert len(drawn) == 3
    for name in (name for name in first.tables if name.startswith("null_")):
        rows = again.tables[name]
        pd.testing.assert_frame_equal(rows[rows["draw"] < 2].reset_index(drop=True), first.tables[name])


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"tokens": tokens(3, 10, seed=1)},
        {"tau": 1e-2},
        {"subject": tiny("llama", seed=1)},
        {"subject": tiny("llama", initializer_range=0.1)},
    ],
)
def test_other_draws_are_not_taken_for_them(other: dict[str, Any], drawn: list[int]) -> None:
    rs.profile(tiny("llama"), **ASKED)
    rs.profile(**{"subject": tiny("llama")} | ASKED | other)
    assert len(drawn) == 4


def test_a_damaged_cache_costs_time_only(drawn: list[int], tmp_path: Path) -> None:
    first = rs.profile(tiny("llama"), **ASKED)
    [entry] = (tmp_path / "cache" / "draws").iterdir()
    (entry / "0.json").write_text("{")
    next(entry.glob("random-1-*.null_prompts.parquet")).write_bytes(b"PAR1")
    again = rs.profile(tiny("llama"), **ASKED)
    assert len(drawn) == 4
    pd.testing.assert_frame_equal(first.nulls, again.nulls)


def test_old_draws_make_room_for_new_ones(
    drawn: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_draws, "ROOM", 1)
    for seed in (0, 1):
        rs.profile(tiny("llama"), seed=seed, **ASKED)
    assert len(list((tmp_path / "cache" / "draws").iterdir())) == 1


def test_draws_that_take_no_time_are_not_kept(
    drawn: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    rs.profile(tiny("llama"), **ASKED)
    assert not (tmp_path / "cache" / "draws").exists()
