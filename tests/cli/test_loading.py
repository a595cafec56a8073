"""Models that are not whole, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rotoscope as rs
from tests.reading.test_missing_weights import saved, without

MISSING = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", without("layers.1.mlp.up_proj"))


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "--task", "repeats", "--length", 4, "--prompts", 1, "--null", "none"),
        (
            "gate",
            "--task",
            "repeats",
            "--length",
            4,
            "--prompts",
            1,
            "--silence",
            "--heads",
            "0:0",
            "--no-scores",
        ),
        ("ask", "--task", "letter", "--lengths", 12, "--runs", 1, "--questions", 1),
    ],
)
def test_allow_missing(run, partial: Path, tmp_path: Path, words: tuple[object, ...]) -> None:
    command, *rest = words
    line = (command, partial, *rest, "--no-figures", "--device", "cpu", "--out", tmp_path / "run")
    code, _, error = run(*line)
    assert code == 2
    assert MISSING in error
    assert "--allow-missing" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
    code, output, _ = run(*line, "--allow-missing")
    assert code == 0
    assert f"caveat: weights and configuration do not belong together: of 30 tensors of the model, the file lacks 1 ({MISSING})" in " ".join(output.split())  # fmt: skip
    assert MISSING in json.loads((tmp_path / "run" / "run.json").read_text())["warnings"][0]
    assert MISSING in rs.open(tmp_path / "run").run.warnings[0]


def test_an_endpoint_has_no_weights(run) -> None:
    code, _, error = run("ask", "m", "--endpoint", "http://localhost:1/v1", "--allow-missing")
    assert code == 2
    assert "--allow-missing means something for a model that runs here only" in error
