"""Commands that would take days, or more memory than there is, say so at once; ordinary ones run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reading.test_missing_weights import saved

FIGURES = re.compile(r"would take about .*(GB of memory, and .* GB are free|[\d,]+ (days|years) on )")
TOO_LARGE = [
    "train number --steps 10000000 --batch 1000",
    "train number --steps 10000000 --batch 10000000 --train-sequences 100000000",
    "train letter --layers 1000 --width 100000",
    "train number --target 100000 --window 100000",
    "train number --steps 10000000 --watch-every 1 --validation-sequences 100000",
    "train number --inputs 1000000 --validation-sequences 100000000",
    "canonical all --steps 10000000 --batch 1000",
    "canonical index --seeds 10000 --preset paper",
    "canonical retrieval --keys 10000 --symbols 10000 --entities 10000 --batch 100000 --preset paper",
    "canonical index --tested 10000000 --evaluations 10000 --preset paper",
    "lengths number --inputs 1000000",
    "gate number --prompts 1000000 --controls 1000 --remove 1",
    "ask --endpoint http://localhost:1/v1 --model m --questions 1000000 --runs 1000",
    "ask --endpoint http://localhost:1/v1 --model m --questions 1000000 --dry-run",
]


@pytest.mark.parametrize("line", TOO_LARGE)
def test_nonsense_is_refused_with_figures(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, problem = run(*line.split())
    assert (code, problem.count("\n")) == (2, 1), problem
    assert FIGURES.search(problem), problem
    assert "say that you mean it (--force, force=True)" in problem
    assert not list(tmp_path.iterdir())


def test_prompts_are_counted_before_they_are_made(run, tmp_path: Path) -> None:
    """A million of them: refused from the first."""
    model = saved(tmp_path / "model")
    place = ("--device", "cpu", "--out", tmp_path / "run")
    for line in (
        ("profile", model, "--task", "repeats", "--prompts", 1_000_000, "--null-draws", 1000),
        ("dynamics", model, "--task", "repeats", "--inputs", 1_000_000, "--queries", "all"),
    ):
        code, _, problem = run(*line, *place)
        assert code == 2, problem
        assert "1,000,000 prompts of up to 64 tokens" in problem
        assert FIGURES.search(problem)
        assert not (tmp_path / "run").exists()


def test_force_also_from_the_environment(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the estimate, the folder is looked at: one that is not ours is left alone."""
    (tmp_path / "mine").write_text("a letter")
    line = ("canonical", "index", "--preset", "paper", "--seeds", 10_000, "--out", tmp_path)
    assert "days" in run(*line)[2]
    monkeypatch.setenv("ROTOSCOPE_CANONICAL_FORCE", "true")
    assert "so nothing is written there" in run(*line)[2]
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
