"""Sweeps of runs that take a moment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import rotoscope as rs
from rotoscope.sweeps import driver, local_pool
from rotoscope.sweeps import run_item as one_item
from rotoscope.sweeps.items import Item
from tests.cli.conftest import run  # noqa: F401 - a fixture
from tests.sweep.light import Commands, light_item

GRID = {"model": ["a", "b"], "seed": [0, 1]}
ROOT = Path(__file__).parents[2]


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else repr(value)


@contextmanager
def locked(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lock until the block ends."""
    code = "import sys, filelock\nwith filelock.FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.readline()"
    line = [sys.executable, "-c", code, str(file)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def sweep_text(grid: dict[str, Any], command: str = "profile", **settings: Any) -> str:
    """A sweep's file."""
    lines = [f'command = "{command}"', 'out = "swept"', "[grid]"]
    lines += [f"{name} = {toml(value)}" for name, value in grid.items()]
    lines += ["[settings]", *(f"{name} = {toml(value)}" for name, value in settings.items())]
    return "\n".join(lines) + "\n"


Light = Callable[..., rs.sweeps.result.Sweep]


class AtOnce:
    """In place of processes: items are run here, one after the other."""

    def run(self, items: Sequence[Item], folder: Path, ended: local_pool.Ended, doing: Any) -> None:
        for item in items:
            doing([item.name])
            ended(item, one_item.run_item(item.line(folder), folder / item.name))


def at_once(*environments: Any) -> Any:
    """In place of a pool of processes."""
    return nullcontext(AtOnce())


def _sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LIGHT_JOURNAL", str(tmp_path / "journal"))

    def swept(grid: dict[str, Any] | None = None, **how: Any) -> rs.sweeps.result.Sweep:
        Path("sweep.toml").write_text(sweep_text(grid or GRID, prompts=4))
        return rs.sweep("sweep.toml", show_progress=False, **how)

    return swept


@pytest.fixture
def in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    """A sweep of light runs in processes of their own."""
    monkeypatch.setattr(local_pool, "TASK", light_item)
    return _sweeps(tmp_path, monkeypatch)


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Light:
    """The same in this process."""
    monkeypatch.setattr(driver, "pool", at_once)
    monkeypatch.setattr(one_item, "run_words", Commands.main)
    return _sweeps(tmp_path, monkeypatch)


@pytest.fixture
def journal(tmp_path: Path) -> Callable[[], list[str]]:
    """What was begun and finished."""
    return lambda: (tmp_path / "journal").read_text().splitlines() if (tmp_path / "journal").exists() else []
