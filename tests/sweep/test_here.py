"""A sweep in processes of this machine: what is done is skipped, what fails is listed, and all heads are in one table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.results import items as kept
from rotoscope.sweep import here
from rotoscope.sweep.commands import Swept
from rotoscope.sweep.company import only_driver
from rotoscope.sweep.items import Item
from tests.sweep.conftest import Light
from tests.sweep.light import HEADS, PIECES


def test_every_item_is_a_run_of_its_own_and_all_heads_are_in_one_table(in_processes: Light) -> None:
    found = in_processes(workers=2)
    assert list(found.items["state"]) == ["finished"] * 4
    assert found.run.complete
    assert list(found.items.columns) == ["item", "model", "seed", "state", "seconds", "error", "folder"]
    assert list(zip(found.items["model"], found.items["seed"], strict=True)) == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]
    assert list(found.heads.columns) == ["item", "model", "seed", "layer", "head", "positional_score"]
    assert len(found.heads) == 4 * PIECES * HEADS
    for row in found.items.itertuples():
        own = rs.open(Path("swept") / str(row.folder)).heads
        rows = found.heads[found.heads["item"] == row.item].drop(columns=["item", "model", "seed"])
        pd.testing.assert_frame_equal(own, rows.reset_index(drop=True))
    again = rs.open("swept")
    assert isinstance(again, rs.results.Sweep)
    pd.testing.assert_frame_equal(again.heads, found.heads)
    assert "4 items" in repr(again)


def test_what_is_finished_is_not_run_again(light: Light, journal: Callable[[], list[str]]) -> None:
    light()
    before = journal()
    assert len(before) == 8
    light()
    assert journal() == before


def test_more_of_the_grid_runs_only_what_is_new(light: Light, journal: Callable[[], list[str]]) -> None:
    light()
    found = light({"model": ["a", "b"], "seed": [0, 1, 2]})
    assert len(found.items) == 6
    assert len(journal()) == 2 * 6


def test_an_item_that_fails_does_not_stop_the_others(light: Light, journal: Callable[[], list[str]]) -> None:
    Path("bad").touch()
    found = light({"model": ["bad", "b"], "seed": [0]})
    assert list(found.items["state"]) == ["failed", "finished"]
    assert found.run.complete  # nothing is left to be run, unless it is asked for
    assert list(found.failed["error"]) == ["this model is bad; give a better one"]
    name = found.items["folder"][0]
    assert "this model is bad" in (Path("swept") / name / "item.log").read_text()
    assert found.run.warnings == [f"the item {name} failed: this model is bad; give a better one"]
    opened = rs.open("swept")
    assert list(opened.items["state"]) == ["failed", "finished"]
    assert len(opened.heads) == PIECES * HEADS


def test_what_failed_is_tried_again_only_when_asked_for(light: Light, journal: Callable[[], list[str]]) -> None:
    Path("bad").touch()
    grid: dict[str, Any] = {"model": ["bad"], "seed": [0]}
    light(grid)
    Path("bad").unlink()
    assert list(light(grid).items["state"]) == ["failed"]
    found = light(grid, retry_failed=True)
    assert list(found.items["state"]) == ["finished"]
    log = (Path("swept") / found.items["folder"][0] / "item.log").read_text()
    assert log.index("this model is bad") < log.index("wrote ")


def test_an_item_that_kills_its_process_fails_after_some_tries(
    in_processes: Light, journal: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "MOST_TRIES", 2)
    found = in_processes({"model": ["killer", "b"], "seed": [0]})
    assert list(found.items["state"]) == ["failed", "finished"]
    assert "its process was killed (SIGKILL) 2 times" in found.failed["error"][0]
    assert sum(line.startswith("begun killer") for line in journal()) == 2


def test_processes_are_gone_when_the_driver_is_interrupted(
    in_processes: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def interrupted(pool: here.Pool, *what: Any) -> None:
        started.extend(worker.process.pid for worker in pool.workers)
        raise KeyboardInterrupt

    monkeypatch.setattr(here.Pool, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_processes(workers=2)
    assert len(started) == 2
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_part_runs_its_own_items(light: Light, journal: Callable[[], list[str]]) -> None:
    first = light(shard="1/2")
    assert list(first.items["state"]) == ["finished", "waiting", "finished", "waiting"]
    assert not first.run.complete
    both = light(shard="2/2")
    assert list(both.items["state"]) == ["finished"] * 4
    assert both.run.complete
    assert len(journal()) == 8


def test_a_finished_run_without_its_note_is_looked_at_again(
    light: Light, journal: Callable[[], list[str]]
) -> None:
    """Killed between the run and its figures, say."""
    found = light({"model": ["a"], "seed": [0]})
    note = Path("swept") / found.items["folder"][0] / kept.ITEM
    note.unlink()
    assert list(rs.open("swept", rs.results.Sweep).items["state"]) == [
        "finished"
    ]  # the sweep was whole, and says so
    light({"model": ["a"], "seed": [0]})
    assert json.loads(note.read_text())["state"] == "finished"
    assert len(journal()) == 4


def test_a_note_without_its_run_is_not_believed(light: Light) -> None:
    found = light({"model": ["a"], "seed": [0]})
    place = Path("swept") / found.items["folder"][0]
    (place / "run.json").unlink()
    assert kept.outcome_of(place).state == "unfinished"


def test_two_drivers_are_refused(light: Light) -> None:
    with (
        only_driver(Path("swept"), (1, 1)),
        pytest.raises(RunError, match=f"process {os.getpid()} on .* is at work in swept"),
    ):
        light()
    with only_driver(Path("swept"), (1, 2)):
        with pytest.raises(RunError, match="is at work in swept; wait for it"):
            light()
        with pytest.raises(RunError, match="is at work in swept; wait for it"):
            light(shard="1/2")
        with pytest.raises(RunError, match="it has cut the sweep into 2 parts, not into 3"):
            light(shard="2/3")
        assert list(light(shard="2/2").items["state"]).count("finished") == 2


def test_a_folder_that_is_no_sweep_is_left_alone(light: Light, tmp_path: Path) -> None:
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept" / "mine").write_text("a letter")
    with pytest.raises(RunError, match="swept exists and is no sweep, so nothing is written there"):
        light()
    assert [file.name for file in (tmp_path / "swept").iterdir()] == ["mine"]


def test_a_run_is_no_place_for_a_sweep(light: Light) -> None:
    found = light({"model": ["a"], "seed": [0]})
    with pytest.raises(RunError, match="holds a run of kind 'restrictions', not a sweep"):
        light(out=Path("swept") / found.items["folder"][0])


def test_one_process_per_gpu_or_per_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def item(**given: Any) -> Item:
        return Item("one", Swept("profile"), given, ())

    monkeypatch.setattr(here, "cores", lambda: 8)
    monkeypatch.setattr(here, "gpus", lambda: ["4", "7"])
    many = [item()] * 20
    assert [place.get(here.VISIBLE) for place in here.environments(None, many)] == ["4", "7"]
    assert [place.get(here.VISIBLE) for place in here.environments(3, many)] == ["4", "7", "4"]
    on_cpu = here.environments(None, [item(device="cpu")] * 20)
    assert len(on_cpu) == 4
    assert all(place["OMP_NUM_THREADS"] == "1" and here.VISIBLE not in place for place in on_cpu)
    assert len(here.environments(None, [item(device="cpu")])) == 1


def test_tables_of_items_are_joined_by_name(light: Light) -> None:
    found = light()
    assert len(found.joined("heads")) == len(found.heads)
    with pytest.raises(RunError, match=r"no item of this sweep has a table 'writers' \(there are heads\)"):
        found.joined("writers")
