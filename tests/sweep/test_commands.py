"""A small sweep of every command that makes runs of models, by the code that the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rotoscope as rs
from rotoscope.sweeps import driver
from tests.sweep.conftest import at_once, sweep_text

SMALL: dict[str, dict[str, Any]] = {
    "profile": {"prompts": 2, "null": "none"},
    "depths": {"prompts": 2, "swaps": 3, "null": "none"},
    "gate": {"prompts": 2, "bands": 2},
    "lengths": {"lengths": [17, 20], "inputs": 8},
    "plan": {
        "decision": "cache", "sources": ["repeats"], "length": 8, "window": 3, "prompts": 1, "frontier": [0.5],
    },
    "train": {
        "steps": 2, "batch": 8, "layers": 2, "width": 32,
    },
}  # fmt: skip
AXES: dict[str, dict[str, Any]] = {
    "lengths": {"source": ["letter", "number"]},
    "train": {"task": ["number"], "seeds": [1, 2]},
    "depths": {"model": ["letter"], "at": [["0", "own"], ["0", "3"]]},
}


QUICK = ("depths", "train")
"""Those that have shown something that the others do not: columns of several kinds, several runs in one item."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]
)
def test_every_command_can_be_swept(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "pool", at_once)
    grid = AXES.get(command, {"model": ["letter"], "seed": [0, 1]})
    Path("sweep.toml").write_text(sweep_text(grid, command, **SMALL[command], device="cpu", figures=False))
    found = rs.sweep("sweep.toml", show_progress=False)
    assert list(found.items["state"]) == ["finished"] * 2, list(found.items["error"])
    assert found.run.complete
    assert found.run.warnings == []
    again = rs.open("swept")
    assert again.tables.keys() == found.tables.keys()
    if command == "train":
        assert set(found.heads["run"].dropna()) == {"number-0", "number-1"}
