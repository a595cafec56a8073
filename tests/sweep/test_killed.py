"""Drivers and workers killed at random moments: the sweep goes on, and its tables are those of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.sweeps.result import outcome_of
from tests.models.test_load import word_tokenizer
from tests.sweep.conftest import ROOT, Light, sweep_text
from tests.tiny_models import tiny
from tests.waiting import wait_until

PATIENCE_S = 900.0
"""Libraries are read by several processes again and again, on machines that may have more to do."""
LIGHT, REAL = "tests.sweep.light", "tests.sweep.program"


@dataclass
class Driver:
    """A driver in a process of its own, and whom it started."""

    program: str
    place: Path
    started: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        known = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LIGHT_JOURNAL": str(self.place / "journal"),
            "LIGHT_MOMENT": "0.05",
        }
        self.began = time.time_ns()
        words = [sys.executable, "-m", self.program, "sweep", "sweep.toml", "--workers", "2"]
        with (self.place / "complaints").open("ab") as said:
            self.process = subprocess.Popen(words, cwd=self.place, env=known, stdout=said, stderr=said)

    def workers(self) -> list[int]:
        """The processes that the driver has started and that live."""
        found = []
        with suppress(OSError):
            for children in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split()]
        self.started |= set(found)
        return found

    def busy(self) -> bool:
        """Whether it is past its beginning: an item's log has grown, or it has ended."""
        self.workers()
        if self.process.poll() is not None:
            return True
        with suppress(FileNotFoundError):
            return any(log.stat().st_mtime_ns > self.began for log in (self.place / "swept").glob("*.log"))
        return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.workers()
        self.process.send_signal(number)
        self.process.wait()

    def ends(self) -> None:
        """Let it run to its end."""
        assert self.process.wait() == 0, (self.place / "complaints").read_text()


@contextmanager
def driving(program: str, place: Path) -> Iterator[Driver]:
    driver = Driver(program, place)
    try:
        yield driver
    finally:
        driver.kill()


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def undisturbed(program: str, place: Path, text: str) -> None:
    place.mkdir()
    (place / "sweep.toml").write_text(text)
    with driving(program, place) as driver:
        driver.ends()


def disturbed(program: str, place: Path, text: str, kills: int, seed: int) -> None:
    """Kill the driver or a worker so many times, at moments drawn at random, and let it finish at last."""
    dice = random.Random(seed)
    place.mkdir()
    (place / "sweep.toml").write_text(text)
    before = list[int]()
    while kills:
        with driving(program, place) as driver:
            wait_until(driver.busy, PATIENCE_S)
            assert not [process for process in before if lives(process)], (
                "workers of a killed driver are at work"
            )
            finished = done(place)
            wanted = len(finished) + dice.randrange(3)
            wait_until(lambda: len(done(place)) >= wanted or driver.process.poll() is not None, PATIENCE_S)  # noqa: B023
            while kills and dice.random() < 0.5 and (workers := driver.workers()):
                with suppress(ProcessLookupError):
                    os.kill(dice.choice(workers), signal.SIGKILL)
                kills -= 1
                wait_until(lambda: driver.busy(), PATIENCE_S)
            assert driver.process.poll() is None, "there was nothing left to be killed"
            if kills:
                driver.kill()
                kills -= 1
            before = list(driver.started)
    with driving(program, place) as driver:
        driver.ends()
    wait_until(lambda: not [process for process in before if lives(process)])


def done(place: Path) -> set[str]:
    folders = (
        [item for item in (place / "swept").glob("*") if item.is_dir()] if (place / "swept").is_dir() else []
    )
    return {item.name for item in folders if outcome_of(item).state == "finished"}


def same(one: Path, other: Path, items: int) -> None:
    """The same items with the same tables, bit for bit, and nothing left over."""
    a, b = rs.open(one / "swept"), rs.open(other / "swept")
    timeless = [name for name in a.items if name != "seconds"]
    assert len(a.items) == items
    pd.testing.assert_frame_equal(a.items[timeless], b.items[timeless], check_exact=True)
    pd.testing.assert_frame_equal(a.heads, b.heads, check_exact=True)
    for name in a.items["folder"]:
        runs = [rs.open(place / "swept" / name) for place in (one, other)]
        assert runs[0].tables.keys() == runs[1].tables.keys()
        for table in runs[0].tables:
            pd.testing.assert_frame_equal(*(run.tables[table] for run in runs), check_exact=True)
        files = [sorted(file.name for file in (place / "swept" / name).iterdir()) for place in (one, other)]
        assert files[0] == files[1]
    assert not list((other / "swept").glob("*.log"))


@pytest.mark.slow
def test_a_worker_and_a_driver_are_killed(tmp_path: Path, light: Light) -> None:
    """24 items in two processes; no finished one is begun again."""
    grid = {"model": ["a", "b"], "task": ["repeats", "lookup"], "seed": list(range(6))}
    light(grid)
    disturbed(LIGHT, tmp_path / "killed", sweep_text(grid, prompts=4), kills=2, seed=5)
    same(tmp_path, tmp_path / "killed", items=24)
    lines = (tmp_path / "killed" / "journal").read_text().splitlines()
    for name in done(tmp_path / "killed"):
        ends = [line.split()[0] for line in lines if line.split()[1] == name]
        assert ends[-1] == "finished"
        assert ends.count("finished") <= 2  # killed after its end and before its note, which takes a moment


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_finished_items_are_not_made_again(tmp_path: Path, light: Light, number: int) -> None:
    """Their folders are not even touched."""
    grid = {"model": ["a", "b"], "seed": list(range(6))}
    light(grid)
    place = tmp_path / "killed"
    place.mkdir()
    (place / "sweep.toml").write_text(sweep_text(grid, prompts=4))
    with driving(LIGHT, place) as driver:
        wait_until(lambda: len(done(place)) >= 3 or driver.process.poll() is not None, PATIENCE_S)
        driver.kill(number)
        assert driver.process.returncode == -number
    wait_until(lambda: not [process for process in driver.started if lives(process)])
    finished = done(place)
    assert 3 <= len(finished) < 12
    written = {name: times(place / "swept" / name) for name in finished}
    with driving(LIGHT, place) as driver:
        driver.ends()
    assert {name: times(place / "swept" / name) for name in finished} == written
    same(tmp_path, place, items=12)


def times(folder: Path) -> dict[str, int]:
    """When each file was written."""
    return {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_killed_ten_times(tmp_path: Path, seed: int) -> None:
    text = sweep_text({"model": ["a", "b"], "task": ["repeats", "lookup"], "seed": list(range(10))}, prompts=4)
    undisturbed(LIGHT, tmp_path / "calm", text)
    disturbed(LIGHT, tmp_path / "killed", text, kills=10, seed=seed)
    same(tmp_path / "calm", tmp_path / "killed", items=40)


@pytest.mark.slow
def test_real_runs_killed_ten_times(tmp_path: Path) -> None:
    """Profiles of tiny models with a null, figures and all."""
    for name, seed in (("first", 0), ("second", 1)):
        tiny("llama", seed=seed, num_hidden_layers=2).save_pretrained(tmp_path / name)
        word_tokenizer().save_pretrained(tmp_path / name)
    models = [str(tmp_path / name) for name in ("first", "second")]
    grid = {"model": [*models, "letter"], "seed": list(range(8))}
    text = sweep_text(grid, task="repeats", length=12, prompts=4, null_draws=2, batch_tokens=24)
    undisturbed(REAL, tmp_path / "calm", text)
    disturbed(REAL, tmp_path / "killed", text, kills=10, seed=2)
    same(tmp_path / "calm", tmp_path / "killed", items=24)


@pytest.mark.slow
def test_smollm2_killed(tmp_path: Path) -> None:
    grid = {"model": ["smollm2", "number", "letter"], "task": ["repeats"], "seed": list(range(8))}
    text = sweep_text(grid, length=8, prompts=2, null="none", figures=False)
    undisturbed(REAL, tmp_path / "calm", text)
    disturbed(REAL, tmp_path / "killed", text, kills=10, seed=3)
    same(tmp_path / "calm", tmp_path / "killed", items=24)
