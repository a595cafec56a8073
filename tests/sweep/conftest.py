"""Sweeps of runs that take a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import rotoscope as rs
from rotoscope.sweep import driver, here, one_item
from rotoscope.sweep.items import Item
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.sweep.light import Commands

GRID = {"model": ["a", "b"], "seed": [0, 1]}
ROOT = Path(__file__).parents[2]


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else repr(value)


def sweep_text(grid: dict[str, Any], command: str = "profile", **settings: Any) -> str:
    """A sweep's file."""
    lines = [f'command = "{command}"', 'out = "swept"', "[grid]"]
    lines += [f"{name} = {toml(value)}" for name, value in grid.items()]
    lines += ["[settings]", *(f"{name} = {toml(value)}" for name, value in settings.items())]
    return "\n".join(lines) + "\n"


Light = Callable[..., rs.results.Sweep]


class AtOnce:
    """In place of processes: items are run here, one after the other."""

    def run(self, items: Sequence[Item], folder: Path, ended: here.Ended, doing: Any) -> None:
        for item in items:
            doing([item.name])
            ended(item, one_item.run_item(item.line(folder), folder / item.name))


def at_once(*how: Any) -> Any:
    """In place of a pool of processes."""
    return nullcontext(AtOnce())


def _sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LIGHT_JOURNAL", str(tmp_path / "journal"))

    def swept(grid: dict[str, Any] | None = None, **how: Any) -> rs.results.Sweep:
        Path("sweep.toml").write_text(sweep_text(grid or GRID, prompts=4))
        return rs.sweep("sweep.toml", show_progress=False, **how)

    return swept


@pytest.fixture
def in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    """A sweep of light runs in processes of their own."""
    monkeypatch.setattr(here, "WORKER", "tests.sweep.light")
    return _sweeps(tmp_path, monkeypatch)


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    """The same in this process."""
    monkeypatch.setattr(driver, "pool", at_once)
    monkeypatch.setattr(one_item, "command_line", lambda: Commands)
    return _sweeps(tmp_path, monkeypatch)


@pytest.fixture
def journal(tmp_path: Path) -> Callable[[], list[str]]:
    """What was begun and finished."""
    return lambda: (tmp_path / "journal").read_text().splitlines() if (tmp_path / "journal").exists() else []
