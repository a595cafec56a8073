"""Models that are not whole, on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

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


@pytest.mark.parametrize(
    "words",
    [
        ("dynamics", "--queries", "last", "--inputs", 2, "--no-roles"),
        ("lengths", "--lengths", 7, "--inputs", 1, "--no-heads"),
    ],
    ids=["dynamics", "lengths"],
)
def test_allow_missing_along_training(
    run, trained: dict[str, rs.results.Training], tmp_path: Path, words: tuple[object, ...]
) -> None:
    """One checkpoint lacks a tensor; the warning is said, written, and there again when the run is opened."""
    source = tmp_path / "trained"
    last = max(trained["number"].folder.glob("checkpoint-*"), key=lambda place: int(place.name.split("-")[1]))
    shutil.copytree(last, source / "checkpoint-1")
    weights = source / "checkpoint-1" / "model.safetensors"
    state = without("h.1.mlp.fc_in.bias")(load_file(weights))
    save_file(state, weights, metadata={"format": "pt"})
    command, *rest = words
    line = (command, source, *rest, "--no-figures", "--device", "cpu", "--out", tmp_path / "run")
    code, _, error = run(*line)
    assert (code, error.count("\n")) == (2, 1), error
    assert "h.1.mlp.fc_in.bias" in error
    assert not (tmp_path / "run").exists()
    for _ in range(2):
        code, output, error = run(*line, "--allow-missing")
        assert code == 0, error
        assert "what is missing is random" in " ".join(output.split())
        noted = json.loads((tmp_path / "run" / "run.json").read_text())["warnings"]
        assert any("h.1.mlp.fc_in.bias" in said for said in noted)
