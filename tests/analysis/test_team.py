"""Prompts that are scored on several devices at once give the tables of one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.analysis import profiling
from rotoscope.analysis.team import Team
from rotoscope.errors import ModelError
from tests.models import tiny, tokens

HOW: dict[str, Any] = {"tokens": tokens(5, 14), "tau": [1e-4, 1e-2], "batch_tokens": 14, "null_draws": 2}


def identical(one: rs.Profile, other: rs.Profile) -> None:
    assert one.tables.keys() == other.tables.keys()
    for name, table in one.tables.items():
        if name != "attention":
            pd.testing.assert_frame_equal(table, other.tables[name], check_exact=True)


@pytest.mark.parametrize("null", ["none", "gaussian", "random"])
def test_the_same_tables_bit_for_bit(null: str) -> None:
    how = {key: value for key, value in HOW.items() if null != "none" or key != "null_draws"} | {"null": null}
    alone = rs.profile(tiny("llama"), **how)
    several = rs.profile(rs.load(tiny("llama"), devices=("cpu", "cpu", "cpu")), **how)
    identical(alone, several)
    assert several.run.subject.device == "cpu, cpu, cpu"


def test_every_device_has_a_part_of_the_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two batches wait for each other: they can only be done at the same time, by two models."""
    both = threading.Barrier(2, timeout=60)
    score, models = profiling.score_batch, []

    def scored(reader: Any, batch: Any, *rest: Any) -> Any:
        models.append(id(reader.model))
        if batch.first < 2:
            both.wait()
        return score(reader, batch, *rest)

    monkeypatch.setattr(profiling, "score_batch", scored)
    subject = rs.load(tiny("llama"), devices=("cpu", "cpu"))
    rs.profile(subject, **(HOW | {"null": "gaussian"}))
    assert set(models) == {id(subject.model), id(subject.copies[0])}
    assert len(models) == 5


def test_a_stopped_run_goes_on_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done before is not done again, and stands where it belongs."""
    score, seen = profiling.score_batch, []

    def scored(reader: Any, batch: Any, *rest: Any) -> Any:
        seen.append(batch.first)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return score(reader, batch, *rest)

    monkeypatch.setattr(profiling, "score_batch", scored)
    how = HOW | {"null": "gaussian"}
    with pytest.raises(KeyboardInterrupt):
        rs.profile(rs.load(tiny("llama"), name="mine"), out=tmp_path / "run", **how)
    rs.profile(rs.load(tiny("llama"), devices=("cpu", "cpu"), name="mine"), out=tmp_path / "run", **how)
    assert sorted(seen) == [0, 1, 2, 2, 3, 4]
    monkeypatch.undo()
    identical(rs.profile(rs.load(tiny("llama"), name="mine"), **how), rs.open(tmp_path / "run"))


def test_what_fails_on_one_device_fails() -> None:
    done: list[int] = []

    def work(member: str, item: int) -> int:
        if item == 1:
            raise ValueError("one")
        done.append(item)
        return item

    with Team(["a", "b"]).at_work(list(range(4)), work) as made:
        assert made[0]() == 0
        with pytest.raises(ValueError, match="one"):
            made[1]()


def test_products_stay_exact_in_every_thread() -> None:
    """Whoever trains may have asked for faster ones; what a thread sets back must not reach another."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with Team(["a", "b"]).at_work(range(2), lambda *_: torch.get_float32_matmul_precision()) as made:
            assert [one() for one in made] == ["highest", "highest"]
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_copies_and_another_place_are_refused() -> None:
    for other in ({"device": "cpu"}, {"device_map": "auto"}, {"tensor_parallel": True}):
        with pytest.raises(ModelError, match="beside another way to place it"):
            rs.load(tiny("llama"), devices=("cpu", "cpu"), **other)
    with pytest.raises(ModelError, match="device 'cuda:7' cannot be used"):
        rs.load(tiny("llama"), devices=("cpu", "cuda:7"))
