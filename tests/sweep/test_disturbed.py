"""What goes wrong with one item, one folder or one driver of a sweep, and what the others have of it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.runs.folder import Place
from rotoscope.sweeps import driver, local_pool
from rotoscope.sweeps import run_item as one_item
from rotoscope.sweeps.items import Item, Swept, items_of, read_file
from tests.sweep.conftest import ROOT, Light, locked, sweep_text
from tests.sweep.light import HEADS, PIECES

TWO: dict[str, Any] = {"model": ["a"], "seed": [0, 1]}


@pytest.mark.parametrize("way", ["light", pytest.param("in_processes", marks=pytest.mark.slow)])
def test_a_folder_that_cannot_be_written_fails_alone(
    way: str, request: pytest.FixtureRequest, journal: Callable[[], list[str]]
) -> None:
    swept: Light = request.getfixturevalue(way)
    names = list(swept(TWO, dry_run=True).items["folder"])
    swept({"model": ["a"], "seed": [5]})
    (Path("swept") / names[0]).write_text("a letter")
    found = swept(TWO)
    assert list(found.items["state"]) == ["failed", "finished"]
    assert "cannot be written" in found.items["error"][0]
    assert (Path("swept") / names[0]).read_text() == "a letter"
    assert list(rs.open("swept").items["state"]) == ["failed", "finished"]
    (Path("swept") / names[0]).unlink()
    assert list(swept(TWO).items["state"]) == ["finished"] * 2


def test_the_reason_is_that_of_the_last_try(light: Light, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bad").touch()
    grid: dict[str, Any] = {"model": ["bad"], "seed": [0]}
    assert list(light(grid).failed["error"]) == ["this model is bad; give a better one"]

    class Mistaken:
        @staticmethod
        def main(words: list[str]) -> None:
            raise KeyError("a mistake of ours")

    monkeypatch.setattr(one_item, "run_words", Mistaken.main)
    assert list(light(grid, retry_failed=True).failed["error"]) == ["KeyError: 'a mistake of ours'"]


def test_a_damaged_item_is_left_out_and_named(light: Light) -> None:
    found = light(TWO)
    first, second = found.items["folder"]
    (Path("swept") / first / "heads.parquet").write_bytes(b"damaged")
    again = light(TWO)
    assert set(again.heads["item"]) == {second}
    assert any(f"heads of an item are left out: {first}: " in one for one in again.run.warnings)
    with pytest.warns(UserWarning, match=f"heads of an item are left out: {first}: .*; delete its folder"):
        joined = again.joined("heads")
    assert set(joined["item"]) == {second}


def test_a_sweep_is_not_whole_while_an_item_is_made_again(
    light: Light, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = light(TWO)
    first = Path("swept") / found.items["folder"][0]
    for file in first.iterdir():
        file.unlink()
    first.rmdir()

    def killed(*what: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(driver, "_run_here", killed)
        with pytest.raises(KeyboardInterrupt):
            light(TWO)
    opened = rs.open("swept")
    assert not opened.run.complete
    assert list(opened.items["state"]) == ["waiting", "finished"]
    assert light(TWO).run.complete


def test_a_damaged_description_can_be_made_again(light: Light) -> None:
    light(TWO)
    (Path("swept") / "run.json").write_text("{")
    with pytest.raises(RunError, match="run.json is damaged .*; move it away to have it made again"):
        light(TWO)
    (Path("swept") / "run.json").unlink()
    assert light(TWO).run.complete


def test_tables_of_an_earlier_grid_are_gone(light: Light) -> None:
    found = light(TWO)
    assert (Path("swept") / "heads.parquet").exists()
    Path("bad").touch()
    found = light({"model": ["bad"], "seed": [0]})
    assert "heads" not in found.tables
    assert not (Path("swept") / "heads.parquet").exists()


def test_numbers_and_texts_in_one_column_are_texts(tmp_path: Path) -> None:
    """As of depths, which are layers or the own one, and of an axis with single values and lists."""
    from rotoscope.sweeps.result import _Joined

    joined = _Joined({"one": {"tau": 0.1}, "two": {"tau": [0.1, 0.2]}})
    for name, depth in (("one", 3), ("two", "own")):
        table = pd.DataFrame({"layer": [1], "tau": [0.1], "depth": [depth], "error": [None]})
        assert joined.add_item(name, tmp_path, lambda run, table=table: table) == []
    assert not joined.parts  # a folder without a run has no tables
    for name, depth in (("one", 3), ("two", "own")):
        joined._add(name, pd.DataFrame({"tau": [0.1], "depth": [depth], "error": [None]}), {})
    found = joined.table()
    assert list(found["depth"]) == ["3", "own"]
    assert list(found["grid_tau"]) == ["0.1", "0.1 0.2"]
    assert list(found["tau"]) == [0.1, 0.1]
    found.to_parquet(tmp_path / "table.parquet")


def test_several_runs_of_one_item_are_told_apart(light: Light, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.sweep.light import light_run

    class Several:
        @staticmethod
        def main(words: list[str]) -> int:
            given = dict(word.removeprefix("--").partition("=")[::2] for word in words[1:])
            out = Path(given.pop("out"))
            for seed in (0, 1):
                light_run(out / f"seed-{seed}", {**given, "seed": seed})
            return 0

    monkeypatch.setattr(one_item, "run_words", Several.main)
    found = light(TWO)
    assert set(found.heads["run"]) == {"seed-0", "seed-1"}
    assert len(found.heads) == 2 * 2 * PIECES * HEADS


def test_other_settings_from_the_environment_are_other_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('command = "profile"\n[grid]\nmodel = ["letter"]\n')
    plain = items_of(read_file(file))[0].name
    monkeypatch.setenv("ROTOSCOPE_PROFILE_PROMPTS", "3")
    three = items_of(read_file(file))[0].name
    monkeypatch.setenv("ROTOSCOPE_PROFILE_PROMPTS", "4")
    assert len({plain, three, items_of(read_file(file))[0].name}) == 3


def test_what_changes_no_result_makes_no_other_item(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"

    def names(more: str, grid: str = "") -> list[str]:
        file.write_text(
            f'command = "profile"\n[grid]\nmodel = ["letter"]\n{grid}[settings]\nprompts = 2\n{more}'
        )
        return [item.name for item in items_of(read_file(file))]

    assert names("") == names('device = "cpu"\n') == names("overwrite = true\n")
    assert names("") != names('dtype = "bfloat16"\n')
    assert len({one.rpartition("-")[2] for one in names("", 'device = ["cpu", "cuda"]\n')}) == 2


@pytest.mark.slow
def test_many_parts_at_once(tmp_path: Path) -> None:
    """Also where a killed driver of all items has left its lock file, which all of them look at."""
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept" / ".sweep-1-of-1.lock").touch()
    code = (
        "import sys, time; from pathlib import Path; from rotoscope.sweeps.run_item import only_driver\n"
        "sys.stdin.readline()\n"
        "with only_driver(Path('swept'), (int(sys.argv[1]), 6)): time.sleep(0.3)"
    )
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(k)], cwd=tmp_path, env=known, stdin=subprocess.PIPE, text=True
        )
        for k in range(1, 7)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
    assert [process.wait() for process in started] == [0] * 6


def test_an_item_waits_until_an_earlier_process_has_ended(
    light: Light, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a driver that was killed, say; if that goes on for long, the item fails and the run of the other is left alone."""
    name = light(TWO, dry_run=True).items["folder"][0]
    Path("swept").mkdir()
    with locked(Path("swept") / f".{name}.lock") as other:
        monkeypatch.setattr(one_item, "WAIT_S", 0.1)
        found = light(TWO)
        assert list(found.items["state"]) == ["failed", "finished"]
        assert "another rotoscope is at work in" in found.items["error"][0]
        assert not (Path("swept") / name).exists()
        other.kill()
        other.wait()
    assert list(light(TWO).items["state"]) == ["finished"] * 2


def test_where_there_are_no_locks_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*what: Any) -> None:
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(fcntl, "flock", none)
    with one_item.only_driver(tmp_path / "swept", (1, 2)), one_item.writing_tables(tmp_path / "swept"):
        place = Place(tmp_path / "run")
        place.begin()
        place.leave()


def item(**given: Any) -> Item:
    return Item("one", Swept("profile"), given, ())


def test_an_item_that_is_spread_has_all_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_pool, "gpus", lambda: ["4", "7"])
    items = [item(), item(device_map="auto")]
    for workers in (None, 2):
        assert local_pool.environments(workers, items) == [local_pool.THREADS]


def test_a_part_answers_for_its_own_items(light: Light, run: Callable[..., tuple[int, str, str]]) -> None:
    Path("bad").touch()
    Path("sweep.toml").write_text(sweep_text({"model": ["a", "bad"], "seed": [0]}, prompts=4))
    assert run("sweep", "sweep.toml", "--shard", "2/2")[0] == 1
    assert run("sweep", "sweep.toml", "--shard", "1/2")[0] == 0
    code, said, _ = run("sweep", "sweep.toml", "--dry-run")
    assert code == 0
    assert "nan" not in said
