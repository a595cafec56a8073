"""`rotoscope profile --task` with several tasks: a run for each, and one over them."""

from __future__ import annotations

from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope.experiments.profile.across_tasks import Agreement
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

SMALL = ("--length", 6, "--pairs", 4, "--prompts", 2, "--null", "none", "--no-examples")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny("llama", num_hidden_layers=2).save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
def test_several_tasks(run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, output, _ = run(
        "profile", model, "--task", "repeats", "binding", *SMALL, "--figures", "--verbose", "--out", out
    )
    assert code == 0
    assert "Heads with the same class on two tasks" in output
    assert "careful: no variance components" in output  # to this tokenizer all binding prompts are one
    assert "careful: binding: no null" in output
    found = rs.open(out)
    assert isinstance(found, Agreement)
    assert found.tasks["task"].tolist() == ["repeats", "binding"]
    assert rs.open(out / "repeats").run.settings["task_settings"]["length"] == 6
    assert rs.open(out / "binding").run.settings["task_settings"]["pairs"] == 4
    written = {file.relative_to(out).as_posix() for file in out.rglob("*")}
    assert {"task_agreement.png", "pairs.parquet", "run.json", "report.html", "repeats/plane.png"} <= written


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("repeats", "repeats"), "give every task once"),
        (
            ("repeats", "binding", "--answer", "x"),
            "--answer means something for text only, not for repeats and binding",
        ),
    ],
)
def test_what_cannot_be_asked_of_several_tasks(
    run, model: Path, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    code, _, problem = run("profile", model, "--task", *flags, "--out", tmp_path / "run")
    assert code == 2
    assert message in problem
    assert not (tmp_path / "run").exists()
