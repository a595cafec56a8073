"""Models that are not whole, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.test_missing_weights import saved, without

MISSING = "model.layers.1.mlp.up_proj.weight"
REPEATS = ("--task", "repeats", "--length", 4, "--prompts", 1)


@pytest.mark.parametrize(
    "words",
    [
        ("profile", *REPEATS, "--null", "none"),
        ("gate", *REPEATS, "--silence", "--heads", "0:0", "--no-scores"),
        ("ask", "--task", "letter", "--lengths", 12, "--runs", 1, "--questions", 1),
    ],
)
def test_a_model_with_missing_weights_is_refused(run, tmp_path: Path, words: tuple[object, ...]) -> None:
    command, *rest = words
    model = saved(tmp_path / "model", without("layers.1.mlp.up_proj"))
    code, _, error = run(command, model, *rest, "--no-page", "--device", "cpu", "--out", tmp_path / "run")
    assert code == 2
    assert MISSING in error
    assert "allow_missing=True" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
