"""Sweeps on real Ray clusters of several nodes on one machine: slow, and in an environment of their own (`make test-ray`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from tests.others.environment import python_of
from tests.sweep.conftest import ROOT, Light, sweep_text

RAY = ("ray==2.60.0",)
GRID: dict[str, Any] = {"model": ["a", "b"], "task": ["repeats", "lookup"], "seed": list(range(6))}

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def on_cluster(what: str, place: Path, grid: dict[str, Any] = GRID, moment: float = 0.1) -> dict[str, Any]:
    (place / "sweep.toml").write_text(sweep_text(grid, prompts=4))
    known = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "LIGHT_JOURNAL": str(place / "journal"),
        "LIGHT_MOMENT": str(moment),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [python_of("ray", RAY), "-m", "tests.sweep.on_cluster", what],
        cwd=place, env=known, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    place = tmp_path / "cluster"
    place.mkdir()
    return place


def same_as_here(elsewhere: Path, light: Light) -> None:
    """The tables are those of a sweep in this process, bit for bit."""
    here, there = light(GRID), rs.open(elsewhere / "swept")
    assert len(here.items) == 24
    pd.testing.assert_frame_equal(here.heads, there.heads, check_exact=True)
    assert list(there.items["state"]) == ["finished"] * 24


def test_a_cluster_gives_what_this_machine_gives(elsewhere: Path, light: Light) -> None:
    found = on_cluster("plainly", elsewhere, moment=0.0)
    assert len(found["finished"]) == 24
    assert found["complete"]
    assert found["again"]
    same_as_here(elsewhere, light)


def test_a_node_that_is_killed_loses_nothing(elsewhere: Path, light: Light) -> None:
    found = on_cluster("losing_a_node", elsewhere)
    assert found["code"] == 0
    assert 8 <= found["before"] < 24
    assert found["twice"] == []
    same_as_here(elsewhere, light)


def test_a_driver_that_is_killed_comes_back(elsewhere: Path, light: Light) -> None:
    found = on_cluster("losing_the_driver", elsewhere)
    assert 8 <= found["before"] < 24
    assert found["twice"] == []
    assert found["complete"]
    same_as_here(elsewhere, light)


def test_items_that_fail_are_listed_and_tried_again(elsewhere: Path) -> None:
    grid = {"model": ["a", "bad", "killer"], "seed": [0]}
    found = on_cluster("failing", elsewhere, grid, moment=0.0)
    assert found["errors"]["a"] == ""
    assert found["errors"]["bad"] == "this model is bad; give a better one"
    assert "its task was lost (WorkerCrashedError: " in found["errors"]["killer"]
    assert found["states"] == ["finished", "finished", "failed"]
