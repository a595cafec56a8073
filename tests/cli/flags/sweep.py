"""`rotoscope sweep`."""

from __future__ import annotations

import json
import sys

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.sweeps import driver, one_item
from tests.cli.flags.effect import Outcome, Table, World, once
from tests.sweep.conftest import at_once, sweep_text
from tests.sweep.light import HEADS, PIECES, Commands


def line(world: World, more: str = "", grid: dict[str, list[object]] | None = None) -> Outcome:
    """A sweep of light runs, in this process."""
    (world.place / "sweep.toml").write_text(
        sweep_text(grid or {"model": ["a", "b"], "seed": [0, 1]}, prompts=4)
    )
    world.known.clear()  # the same line may find another folder
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world.place)
        patch.setattr(driver, "pool", at_once)
        patch.setattr(one_item, "command_line", lambda: Commands)
        return world.run(f"sweep sweep.toml {more}")


def states(outcome: Outcome) -> list[str]:
    return list(rs.open(outcome.folder).items["state"])


@once
def all_or_a_part(world: World) -> None:
    """Everything goes to --out, or to the folder of the file; with --shard only a part is run."""
    whole, part = line(world), line(world, "--shard 1/2")
    assert whole.code == part.code == 0, whole.problem + part.problem
    assert states(whole) == ["finished"] * 4
    assert states(part) == ["finished", "waiting", "finished", "waiting"]
    assert not (world.place / "swept").exists()
    assert "4 items of profile: 4 finished" in whole.told


@once
def nothing_is_run(world: World) -> None:
    """--dry-run: what would be run, and nothing on disk."""
    found = line(world, "--dry-run")
    assert found.code == 0, found.problem
    assert "4 items of profile: 4 waiting; nothing is run" in found.told
    assert not found.folder.exists()


@once
def what_failed_is_tried_again(world: World) -> None:
    place = world.place / "failing"
    (world.place / "bad").touch()
    grid: dict[str, list[object]] = {"model": ["bad", "b"], "seed": [0]}
    first = line(world, f"--out {place}", grid)
    assert first.code == 1
    assert "this model is bad; give a better one" in first.told
    (world.place / "bad").unlink()
    assert line(world, f"--out {place}", grid).code == 1
    again = line(world, f"--out {place} --retry-failed", grid)
    assert again.code == 0, again.told
    assert states(again) == ["finished"] * 2


@once
def in_so_many_processes(world: World) -> None:
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        whole = driver.environments
        patch.setattr(driver, "environments", lambda *how: asked.append(len(whole(*how))) or whole(*how))
        for more in ("", "--workers 3"):
            assert line(world, more).code == 0
    assert asked[0] != asked[1] == 3


def on_ray(world: World) -> None:
    """Ray is asked for, and is not here; an address means something for it alone."""
    assert "with --on ray only" in line(world, "--address auto").problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        assert "pip install 'rotoscope[ray]'" in line(world, "--on ray").problem


@once
def one_table(world: World) -> None:
    """--table: the heads of all items in one file, with a card beside it."""
    file = world.place / "heads.parquet"
    found = line(world, f"--table {file}")
    assert found.code == 0, found.problem
    assert len(pd.read_parquet(file)) == 4 * PIECES * HEADS
    assert json.loads(file.with_suffix(".json").read_text())["items"] == 4
    assert str(file.name) in found.told


FLAGS: Table = {
    "file": ("tests/sweep/test_file.py::test_a_file_that_is_not_there", all_or_a_part),
    "on": on_ray,
    "shard": all_or_a_part,
    "dry_run": nothing_is_run,
    "retry_failed": what_failed_is_tried_again,
    "workers": in_so_many_processes,
    "address": (on_ray, "tests/sweep/test_on_ray.py::test_a_cluster_that_does_not_answer_is_refused_at_once"),
    "table": one_table,
    "out": all_or_a_part,
}
