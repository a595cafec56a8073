"""`--rope` on every command that names a language model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rotoscope as rs
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

YARN = {"rope_type": "yarn", "factor": 4.0}
REPEATS = "--task repeats --length 8 --prompts 1"
LINES = (
    f"profile {{model}} {REPEATS} --null none",
    f"depths {{model}} {REPEATS} --at 0",
    f"gate {{model}} {REPEATS} --silence --heads 0:0 --no-scores",
    "ask {model} --task letter --lengths 12 --runs 1 --questions 1",
    "plan cache {model} --sources repeats --prompts 2 --length 8 --window 4 --sinks 1 --frontier 0.5",
    "plan rotation {model} --sources repeats --prompts 2 --length 8 --planes 2",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny("llama").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=line.split("{")[0].strip(), marks=[] if "profile" in line else pytest.mark.slow)
        for line in LINES
    ],
)
def test_rope(run, folder: Path, tmp_path: Path, line: str) -> None:
    words = [*line.replace("{model}", str(folder)).split(), "--no-page", "--device", "cpu"]
    made = [tmp_path / "pairs", tmp_path / "json"]
    for out, rope in zip(made, ("rope_type=yarn,factor=4.0", json.dumps(YARN)), strict=True):
        code, _, error = run(*words, "--rope", rope, "--out", out)
        assert code == 0, error
    runs = [rs.open(out).run for out in made]
    assert [one.settings["rope"] for one in runs] == [YARN, YARN]
    assert runs[0].settings["fingerprint"] == rs.load(folder, rope=YARN).fingerprint
    assert runs[0].settings["fingerprint"] != rs.load(folder).fingerprint
    code, _, error = run(*words, "--out", made[0])
    assert code == 2
    assert "rope" in error or "fingerprint" in error


def test_a_rope_that_is_none(run, folder: Path, tmp_path: Path) -> None:
    line = ("profile", folder, *REPEATS.split(), "--out", tmp_path / "run")
    code, _, error = run(*line, "--rope", "rope_type=stretched,factor=2")
    assert code == 2
    assert "unknown rope_type 'stretched'; transformers knows default, linear, dynamic, yarn" in error
    assert error.count("\n") == 1
    code, _, error = run("ask", "m", "--endpoint", "http://localhost:1/v1", "--rope", "factor=2")
    assert code == 2
    assert "--rope means something for a model that runs here only" in error
