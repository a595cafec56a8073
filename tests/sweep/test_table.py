"""One table of the heads of a sweep, with a card: whose heads they are, and what every column means."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.runs.record import RunRecord
from rotoscope.runs.run import Run
from rotoscope.sweeps.result import Outcome, note
from rotoscope.sweeps.table import write_heads
from tests.models.test_load import word_tokenizer
from tests.sweep.conftest import Light, at_once, sweep_text
from tests.tiny_models import tiny

PROFILE: dict[str, Any] = {
    "task": "repeats", "length": 8, "prompts": 2, "null": "none", "figures": False, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> rs.sweeps.result.Sweep:
    """Profiles of two models that have the same name and other weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rotoscope.sweeps.driver.pool", at_once)
    for place, seed in (("one", 0), ("other", 1)):
        tiny("llama", seed=seed, num_hidden_layers=1).save_pretrained(tmp_path / place / "llama")
        word_tokenizer().save_pretrained(tmp_path / place / "llama")
    models = ["./one/llama", "./other/llama"]
    Path("sweep.toml").write_text(sweep_text({"model": models, "seed": [0, 1]}, **PROFILE))
    return rs.sweep("sweep.toml", on="here", table="all.parquet", show_progress=False)


def test_heads_of_all_items_are_one_table(profiled: rs.sweeps.result.Sweep) -> None:
    table = pd.read_parquet("all.parquet")
    pd.testing.assert_frame_equal(table, profiled.table())
    assert list(table.columns[:4]) == ["item", "model", "seed", "fingerprint"]
    assert set(table["item"]) == set(profiled.items["item"])
    names = {rs.open(Path("swept") / item).run.subject.name for item in profiled.items["item"]}
    assert len(names) == 1  # one name, and two models
    assert table.groupby("model")["fingerprint"].nunique().tolist() == [1, 1]
    assert table["fingerprint"].nunique() == 2
    for item in profiled.items["item"]:
        heads = rs.open(Path("swept") / item).heads
        rows = table.loc[table["item"] == item, list(heads)].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, heads, check_exact=True)


@pytest.mark.slow
def test_models_of_one_name_have_different_fingerprints(profiled: rs.sweeps.result.Sweep) -> None:
    """Also where the grid says nothing about the model."""
    record = profiled.run
    for place in record.settings["items"].values():
        del place["model"]
    table = rs.sweeps.result.Sweep.gathered(Path("swept"), record).table()
    assert list(table.columns[:4]) == ["item", "seed", "model", "fingerprint"]
    assert table["model"].nunique() == 1
    assert table["fingerprint"].nunique() == 2


@pytest.mark.slow
def test_the_card_says_what_is_in_the_table(profiled: rs.sweeps.result.Sweep) -> None:
    table, card = profiled.table(), json.loads(Path("all.json").read_text())
    assert (card["licence"], card["heads"], card["items"]) == ("", len(table), 4)
    assert {model["fingerprint"] for model in card["models"]} == set(table["fingerprint"])
    assert [(model["name"], model["runs"]) for model in card["models"]] == [("llama", 2)] * 2
    assert card["command"] == "profile"
    assert card["grid"]["seed"] == [0, 1]
    assert card["settings"]["prompts"] == 2
    assert card["versions"]["rotoscope"] == [rs.__version__]
    assert list(card["columns"]) == list(table)
    assert all(meaning.endswith(".") for meaning in card["columns"].values())
    own = [name for name, meaning in card["columns"].items() if "as in the heads of a run" in meaning]
    assert own == []


@pytest.mark.slow
def test_a_table_is_replaced_and_nothing_else(profiled: rs.sweeps.result.Sweep) -> None:
    profiled.table("all.parquet")
    Path("mine.parquet").write_bytes(b"mine")
    with pytest.raises(RunError, match="mine.parquet exists and has no card beside it, so it is not replaced"):
        profiled.table("mine.parquet")
    assert Path("mine.parquet").read_bytes() == b"mine"
    with pytest.raises(RunError, match="the table goes to a file that ends in .parquet, found all.csv"):
        rs.sweep("sweep.toml", table="all.csv")


@pytest.mark.slow
def test_tables_of_items_tell_models_of_one_name_apart(profiled: rs.sweeps.result.Sweep) -> None:
    joined = profiled.joined("prompts")
    assert joined["fingerprint"].nunique() == 2
    assert joined.groupby("item")["fingerprint"].nunique().tolist() == [1] * 4


def test_a_table_of_several_models_has_their_fingerprints(tmp_path: Path) -> None:
    run = Run(Lengths, {"models": {"first": "a1", "second": "b2"}}, tmp_path / "item")
    run.piece("x", lambda: {"accuracy": pd.DataFrame({"model": ["second", "first"]})})
    run.finish()
    sweep = rs.sweeps.result.Sweep.gathered(tmp_path, RunRecord("sweep", {"items": {"item": {"seed": 0}}}))
    note(tmp_path / "item", Outcome("finished", 1.0))
    sweep = rs.sweeps.result.Sweep.gathered(tmp_path, sweep.run)
    assert sweep.joined("accuracy")["fingerprint"].tolist() == ["b2", "a1"]


def failing_once(do: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """The same, but for the call after so many."""

    def call(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return do(*args, **kwargs)

    return call


@pytest.mark.parametrize("step", range(12))
def test_a_table_is_replaced_with_its_card_or_not_at_all(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever rename or removal fails, as on a full disk; the next call leaves nothing behind."""
    settings = {"grid": {}, "command": "profile", "settings": {}}

    def write(rows: int) -> None:
        write_heads(tmp_path / "all.parquet", pd.DataFrame({"layer": range(rows)}), settings, {})

    def rows() -> tuple[int, int]:
        card = json.loads((tmp_path / "all.json").read_text())
        return len(pd.read_parquet(tmp_path / "all.parquet")), card["heads"]

    write(1)
    left = [step]
    with monkeypatch.context() as failing:
        for module, name in ((os, "replace"), (os, "unlink"), (Path, "replace"), (Path, "unlink")):
            failing.setattr(module, name, failing_once(getattr(module, name), left))
        with suppress(RunError):
            write(2)
    assert rows() in ((1, 1), (2, 2))
    write(3)
    assert rows() == (3, 3)
    assert {file.name for file in tmp_path.iterdir()} == {"all.parquet", "all.json"}


@pytest.mark.parametrize("aside", [("all.parquet",), ("all.parquet", "all.json")])
def test_a_table_that_a_killed_process_moved_aside_comes_back(aside: tuple[str, ...], tmp_path: Path) -> None:
    settings = {"grid": {}, "command": "profile", "settings": {}}
    write_heads(tmp_path / "all.parquet", pd.DataFrame({"layer": [0]}), settings, {})
    for name in aside:
        (tmp_path / name).rename(tmp_path / f".{name}.replaced")
    with pytest.raises(KeyError):
        write_heads(tmp_path / "all.parquet", pd.DataFrame({"layer": [0, 1]}), {}, {})
    assert len(pd.read_parquet(tmp_path / "all.parquet")) == 1
    assert json.loads((tmp_path / "all.json").read_text())["heads"] == 1


def test_where_nothing_has_heads_there_is_no_table(light: Light) -> None:
    Path("bad").touch()
    found = light({"model": ["bad"], "seed": [0]}, table="all.parquet")
    assert not Path("all.parquet").exists()
    with pytest.raises(RunError, match="no item of this sweep is finished and has heads"):
        found.table()
