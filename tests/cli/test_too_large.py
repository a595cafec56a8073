"""Commands whose tensors or tables cannot fit say so at once, with the bytes; nothing is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.models.test_missing_weights import saved

BYTES = re.compile(r"needs [\d.,]+ (GB|TB) of memory, and 4\.0 GB are free on cpu: use ")
TOO_LARGE = [
    "train number --steps 10000000 --batch 1000",
    "train letter --layers 1000 --width 100000",
    "canonical index --keys 10000 --seeds 10000 --preset paper",
    "lengths number --inputs 1000000",
    "ask --endpoint http://localhost:1/v1 --model m --questions 1000000 --runs 1000",
    "ask --endpoint http://localhost:1/v1 --model m --questions 1000000 --runs 1000 --dry-run",
]


@pytest.fixture
def four_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free, on whatever machine this runs."""
    monkeypatch.setattr("rotoscope.models.devices.free_memory", lambda device: 4_000_000_000)


@pytest.mark.usefixtures("four_gigabytes")
@pytest.mark.parametrize("line", TOO_LARGE)
def test_what_cannot_fit_is_refused_with_its_bytes(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, problem = run(*line.split(), *(() if line.startswith("ask") else ("--device", "cpu")))
    assert (code, problem.count("\n")) == (2, 1), problem
    assert BYTES.search(problem), problem
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("draws", [0, 1])
def test_tables_are_counted_before_anything_is_written(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: int
) -> None:
    """A table of 72 bytes a row, and as many rows again for a draw of the null."""
    model = saved(tmp_path / "model")
    heads = 12
    monkeypatch.setattr("rotoscope.models.devices.free_disk", lambda folder: 72 * heads * 3 * (1 + draws) - 1)
    null = ("--null", "gaussian", "--null-draws", draws) if draws else ("--null", "none")
    line = ("profile", model, "--task", "repeats", "--length", 8, *null, "--device", "cpu")
    code, _, problem = run(*line, "--prompts", 3, "--out", tmp_path / "run")
    assert code == 2, problem
    size = f"{72 * heads * 3 * (1 + draws) / 1000:.1f} kB"
    assert f"the tables of a profile of 3 prompts and {draws} draws of the null needs {size} of disk" in problem
    assert not (tmp_path / "run").exists()
