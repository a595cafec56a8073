"""A sweep in processes of this machine: what is done is skipped, what fails is listed, and all heads are in one table."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.sweeps import local_pool, run_item
from rotoscope.sweeps import result as kept
from rotoscope.sweeps.items import Item, Swept
from tests.sweep.conftest import Light, locked, sweep_text
from tests.sweep.light import HEADS, PIECES
from tests.waiting import wait_until


@pytest.mark.parametrize("way", ["light", pytest.param("in_processes", marks=pytest.mark.slow)])
def test_every_item_is_a_run_of_its_own_and_all_heads_are_in_one_table(
    way: str, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(way)(workers=2)
    assert list(found.items["state"]) == ["finished"] * 4
    assert found.run.complete
    assert list(found.items.columns) == [
        "item",
        "model",
        "seed",
        "state",
        "seconds",
        "error",
        "folder",
        "fingerprint",
    ]
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
    assert isinstance(again, rs.sweeps.result.Sweep)
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


@pytest.mark.slow
@pytest.mark.parametrize("losses", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_item_that_kills_its_process_fails_after_some_tries(
    losses: int, in_processes: Light, journal: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_pool, "MOST_LOSSES", losses)
    found = in_processes({"model": ["killer", "b"], "seed": [0]})
    assert list(found.items["state"]) == ["failed", "finished"]
    assert f"its process was killed {losses} times" in found.failed["error"][0]
    assert sum(line.startswith("begun killer") for line in journal()) == losses


@pytest.mark.slow
def test_processes_are_gone_when_the_driver_is_interrupted(
    in_processes: Light, monkeypatch: pytest.MonkeyPatch, journal: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("LIGHT_MOMENT", "60")
    before = set(multiprocessing.active_children())
    started: list[multiprocessing.process.BaseProcess] = []

    def interrupted(*what: Any, **how: Any) -> None:
        wait_until(lambda: len(journal()) == 2)
        started.extend(set(multiprocessing.active_children()) - before)
        raise KeyboardInterrupt

    monkeypatch.setattr(local_pool, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_processes(workers=2)
    assert len(started) == 2
    assert not any(process.is_alive() for process in started)


@pytest.mark.slow
def test_a_script_needs_no_guard(in_processes: Light, tmp_path: Path) -> None:
    """Processes do not run the script once more that started the sweep."""
    (tmp_path / "sweep.toml").write_text(sweep_text({"model": ["a"], "seed": [0]}, prompts=4))
    (tmp_path / "script.py").write_text(
        "import rotoscope as rs\nfrom rotoscope.sweeps import local_pool\nfrom tests.sweep.light import light_item\n"
        "local_pool.TASK = light_item\nprint('once')\n"
        "print(list(rs.sweep('sweep.toml', on='here', show_progress=False).items['state']))\n"
    )
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["once", "['finished']"], done.stderr


def test_a_process_has_its_environment_and_the_driver_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv(local_pool.VISIBLE, raising=False)
    with local_pool._starting({"OMP_NUM_THREADS": "1", local_pool.VISIBLE: "3"}):
        assert (os.environ["OMP_NUM_THREADS"], os.environ[local_pool.VISIBLE]) == ("1", "3")
        assert not hasattr(sys.modules["__main__"], "__file__")  # the caller's script, which is not run again
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert local_pool.VISIBLE not in os.environ


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
    assert list(rs.open("swept", rs.sweeps.result.Sweep).items["state"]) == [
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


@contextmanager
def another_driver(part: int, parts: int) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of a driver until the block ends."""
    Path("swept").mkdir(exist_ok=True)
    with locked(Path("swept") / f".sweep-{part}-of-{parts}.lock") as process:
        yield process


def test_two_drivers_are_refused(light: Light, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_item, "CHECK_S", 0.1)
    with another_driver(1, 1):
        for shard in (None, "1/2"):
            with pytest.raises(RunError, match="another rotoscope is at work in swept; wait for it"):
                light(shard=shard)
    with another_driver(1, 2) as process:
        for shard in (None, "1/2", "2/3"):
            with pytest.raises(RunError, match="another rotoscope is at work in swept; wait for it"):
                light(shard=shard)
        assert list(light(shard="2/2").items["state"]).count("finished") == 2
        process.kill()  # its lock dies with it
        process.wait()
        assert list(light().items["state"]) == ["finished"] * 4
    assert not [file.name for file in Path("swept").iterdir() if file.name.startswith(".sweep-1-of-1")]


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

    monkeypatch.setattr(local_pool, "cores", lambda: 8)
    monkeypatch.setattr(local_pool, "gpus", lambda: ["4", "7"])
    many = [item()] * 20
    assert [place.get(local_pool.VISIBLE) for place in local_pool.environments(None, many)] == ["4", "7"]
    assert [place.get(local_pool.VISIBLE) for place in local_pool.environments(3, many)] == ["4", "7", "4"]
    on_cpu = local_pool.environments(None, [item(device="cpu")] * 20)
    assert len(on_cpu) == 4
    assert all(place["OMP_NUM_THREADS"] == "1" and local_pool.VISIBLE not in place for place in on_cpu)
    assert len(local_pool.environments(None, [item(device="cpu")])) == 1


def test_tables_of_items_are_joined_by_name(light: Light) -> None:
    found = light()
    assert len(found.joined("heads")) == len(found.heads)
    with pytest.raises(RunError, match=r"no item of this sweep has a table 'writers' \(there are heads\)"):
        found.joined("writers")
