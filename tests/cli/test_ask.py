"""`rotoscope ask` and `rotoscope lengths` as a user meets them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope.tasks.onehop import OneHopPlan
from tests.conftest import SMALL, Trainings
from tests.experiments.test_onehop import subject
from tests.server import refused, replied, scripted
from tests.waiting import wait_until

PLAN = OneHopPlan(lengths=(12, 16), runs=1, questions=2)
ANSWERS = {question.text: question.answer for _, question in PLAN}
FEW = ["--lengths", 12, 16, "--runs", 1, "--questions", 2]


def right(_: int, request: dict) -> tuple:
    return replied(ANSWERS[request["messages"][0]["content"]])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tested = subject(chat=True)
    tested.model.save_pretrained(tmp_path / "model")
    tested.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_local_model(run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, told, problem = run("ask", model, *FEW, "--device", "cpu", "--figures", "--verbose", "--out", out)
    assert code == 0, problem
    assert "Beside P2's Table 3" in told
    assert "P2's screening rule: not selected. " in told
    written = {"answers.parquet", "run.json", "one_hop_accuracy.png", "report.html"}
    assert written <= {file.name for file in out.iterdir()}
    assert len(rs.open(out).answers) == 8


def test_endpoint(run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with scripted(right) as server:
        ask = ["ask", "--endpoint", server.url, "--model", "org/m", *FEW, "--no-page", "--out", out]
        code, told, problem = run(*ask, "--dry-run")
        assert code == 0, problem
        assert "to be asked: 8 questions, about" in told
        assert "nothing was sent" in told
        assert not server.asked
        assert not out.exists()
        code, told, problem = run(*ask, "--body", '{"max_completion_tokens": 3}')
        assert code == 0, problem
        assert "selected. Letter task at length 16: 1.00 [0.34, 1.00]" in " ".join(told.split())
        assert server.asked[0]["max_completion_tokens"] == 3
        assert "max_tokens" not in server.asked[0]


def test_own_template(run, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("In {sequence}, what begins with {query}?")
    ask = ["ask", model, "--lengths", 12, "--runs", 1, "--questions", 1, "--no-page"]
    code, _, problem = run(*ask, "--task", "letter", "--template", file, "--out", tmp_path / "run")
    assert code == 0, problem
    assert rs.open(tmp_path / "run").run.settings["template"] == file.read_text()
    file.write_text("In {sequence}?")
    code, _, problem = run(*ask, "--task", "letter", "--template", file, "--out", tmp_path / "other")
    assert (code, problem.count("\n")) == (2, 1)
    assert "has no {query}" in problem


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ([], "say what to ask"),
        (["--endpoint", "http://localhost/v1"], "--model NAME"),
        (["smollm2", "--dry-run"], "--dry-run means something for an endpoint only"),
        (
            ["m", "--endpoint", "http://localhost/v1", "--device", "cpu"],
            "--device means something for a model that runs",
        ),
        (
            ["m", "--endpoint", "http://localhost/v1", "--chat"],
            "--chat means something for a model that runs here",
        ),
        (["--endpoint", "localhost", "--model", "m"], "written with its scheme"),
        (["--endpoint", "http://x/v1", "--model", "m", "--body", "{"], "--body is no JSON"),
        (["--endpoint", "http://x/v1", "--model", "m", "--body", "[]"], "must be a JSON object"),
        (["smollm2", "--lengths", "0"], "at least 1"),
        (["smollm2", "--template", "/no/such/file"], "cannot be read"),
    ],
)
def test_wrong_use(run, wrong: list[str], sentence: str) -> None:
    code, _, problem = run("ask", *wrong)
    assert code == 2
    assert sentence in problem


def test_wrong_key_is_one_sentence(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTOSCOPE_API_KEY", "secret-key")
    with scripted(lambda *_: refused(401, "bad key secret-key")) as server:
        code, told, problem = run(
            "ask", "--endpoint", server.url, "--model", "m", *FEW, "--out", tmp_path / "run"
        )
    assert code == 2
    assert "refuses the key (401)" in problem
    assert "secret-key" not in told + problem


def test_a_password_in_the_address_is_not_printed(run, tmp_path: Path) -> None:
    ask = ["ask", "--model", "m", *FEW, "--out", tmp_path / "run"]
    code, told, problem = run(*ask, "--endpoint", "http://me:hidden@localhost:9/v1?key=hidden", "--dry-run")
    assert code == 0, problem
    assert "--endpoint 'http://***@localhost:9/v1?***'" in " ".join(told.split())
    assert "hidden" not in told + problem
    code, told, problem = run("ask", "m", "one", "http://me:hidden@localhost:9/v1")
    assert (code, told) == (2, "")
    assert "http://***@localhost:9/v1" in problem
    assert "hidden" not in problem


@pytest.mark.slow
def test_interrupted_at_the_keyboard(run, tmp_path: Path) -> None:
    """Ctrl-C in the middle: one sentence, and the same command goes on."""
    out, gate = tmp_path / "run", threading.Event()

    def script(number: int, request: dict) -> tuple:
        if number > 3:
            gate.wait(20)
        return right(number, request)

    launch = [sys.executable, "-c", "from rotoscope.cli import main; main()"]
    with scripted(script) as server:
        command = [
            *launch, "ask", "--endpoint", server.url, "--model", "m", *map(str, FEW), "--concurrency", "1",
            "--no-page", "--out", str(out),
        ]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        wait_until(lambda: len(server.asked) >= 4)
        os.kill(process.pid, signal.SIGINT)
        gate.set()
        _, problem = process.communicate(timeout=30)
        assert process.returncode == 130
        assert problem.strip().startswith("rotoscope: stopped; what is finished is kept")
        assert run(*command[len(launch) :])[0] == 0
    assert sorted(server.texts) == sorted(ANSWERS)
    assert rs.open(out).answers["correct"].all()


@pytest.mark.slow
def test_multihop_models_from_the_command_line(run, tmp_path: Path, trained: Trainings) -> None:
    out, model = tmp_path / "lengths", trained["letter"].folder / f"checkpoint-{SMALL['steps']}"
    code, output, _ = run(
        "lengths", model, "--lengths", 7, 20, "--inputs", 8, "--device", "cpu", "--figures", "--out", out
    )
    assert code == 0
    for name in ("length_accuracy.png", "length_prediction.png", "accuracy.parquet"):
        assert (out / name).is_file()
        assert name in output
    code, output, _ = run("lengths", "stored", "--no-page", "--out", tmp_path / "stored")
    assert code == 0
    assert "decays for positional" in output
    assert "number-2-22500" in output
    code, _, error = run("lengths", "stored", "--inputs", 8, "--out", tmp_path / "other")
    assert code == 2
    assert "--inputs means nothing for stored measurements" in error
    code, _, error = run("lengths", "smollm2", "--device", "cpu", "--out", tmp_path / "other")
    assert code == 2
    assert "rotoscope ask" in error
    code, _, error = run("lengths", "number", "--lengths", 9000, "--out", tmp_path / "long")
    assert code == 2
    assert "8192 positions" in error
