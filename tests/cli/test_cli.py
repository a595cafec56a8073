"""The command line as a user meets it: exit codes, sentences, files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope.experiments.roles import run as roles
from tests.models.test_load import word_tokenizer
from tests.tiny_models import from_config, tiny, tokens
from tests.waiting import wait_until

ROTOSCOPE = str(Path(sys.executable).with_name("rotoscope"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny("llama").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


SMALL = ("--task", "repeats", "--length", 8, "--prompts", 2)


@pytest.mark.slow
def test_profile_writes_what_it_says(run, model: Path, tmp_path: Path, fine_pictures: None) -> None:
    out = tmp_path / "run"
    code, output, _ = run("profile", model, *SMALL, "--figures", "--out", out)
    assert code == 0
    assert {file.name for file in out.iterdir()} >= {
        "answers.parquet", "heads.parquet", "prompts.parquet", "nulls.parquet", "run.json", "report.html",
        "plane.pdf", "plane.png", "layer_map.pdf", "layer_map.png", "depth.png",
    }  # fmt: skip
    assert "12 heads" in output
    assert "self-check" in output
    assert f"open {out / 'report.html'}" in output
    assert len(rs.open(out).heads) == 12


@pytest.mark.slow
def test_frequencies_without_a_null(run, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, output, _ = run(
        "profile", model, *SMALL, "--frequencies", "--heads", "1:2,0:3", "--null", "none", "--input-swaps", 4, "--figures", "--out", out,
    )  # fmt: skip
    assert code == 0
    assert "careful: no null" in output
    heads = rs.open(out).frequencies[["layer", "head"]].drop_duplicates()
    assert sorted(map(tuple, heads.to_numpy().tolist())) == [(0, 3), (1, 2)]
    assert (out / "frequency_profiles.png").is_file()
    assert (out / "input_prompts.parquet").is_file()


def test_gate(run, model: Path, tmp_path: Path) -> None:
    small = ("gate", model, "--length", 8, "--prompts", 2, "--no-page")
    code, output, problem = run(
        *small, "--remove", "1-4", "--heads", "0:1,2:2", "--controls", 2, "--out", tmp_path / "run"
    )
    assert code == 0, problem
    assert "median positional score" in output
    assert "remove 1-4" in set(rs.open(tmp_path / "run").summary["condition"])
    code, _, problem = run("gate", model, "--keep", "1-99", "--length", 8, "--out", tmp_path / "other")
    assert code == 2
    assert "frequency ids go from 1" in problem
    code, _, _ = run(*small, "--bands", 2, "--controls", 1, "--figures", "--out", tmp_path / "sweep")
    assert code == 0
    assert (tmp_path / "sweep" / "gate_bands.png").is_file()


@pytest.mark.slow
def test_text_task_several_tau_and_queries(run, model: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("w3 w4 w5. w6 w7 w8. w9 w10")
    code, _, _ = run(
        "profile", model, "--task", "text", "--text", prompt, "--blocks", "token", "--tau", 1e-4, 1e-2,
        "--queries", "4,7", "--no-page", "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0
    opened = rs.open(tmp_path / "run")
    assert opened.taus == [1e-4, 1e-2]
    assert set(opened.queries["query_position"]) == {4, 7}
    assert not (tmp_path / "run" / "plane.png").exists()


@pytest.mark.slow
def test_settings_file_environment_and_flag(run, model: Path, tmp_path: Path, monkeypatch) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("[profile]\ntask = 'repeats'\nlength = 6\nprompts = 3\ngamma = 0.05\n")
    monkeypatch.setenv("ROTOSCOPE_PROFILE_PROMPTS", "2")
    code, _, problem = run(
        "profile", model, "--config", config, "--length", 7, "--no-page", "--out", tmp_path / "run"
    )
    assert code == 0, problem
    settings = rs.open(tmp_path / "run").run.settings
    assert (settings["gamma"], settings["prompts"], settings["task_settings"]["length"]) == (0.05, 2, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profile", "nowhere"], "no model called 'nowhere'"),
        (["profile", "{tmp}/empty"], "no config.json"),
        (["profile", "{tmp}/gpt2", "--task", "repeats"], "symbolic by construction"),
        (["profile", "{tmp}/model", "--tau", "0"], "tau must be positive"),
        (["profile", "{tmp}/model", "--task", "poem"], "poem"),
        (["profile", "{tmp}/model", "--pair", "3"], "--pairs"),
        (["profile", "{tmp}/model", "--task", "repeats", "--prompts", "0"], "prompts must be at least 1"),
        (["profile", "{tmp}/model", "--task", "text"], "needs --text"),
        (["profile", "{tmp}/model", "--task", "text", "--text", "{tmp}/none.txt"], "cannot be read"),
        (["profile", "{tmp}/model", "--task", "text", "--text", "{tmp}/pipe"], "no plain file"),
        (["gate", "{tmp}/model", "--heads-of-class", "symbolical"], 'Choose from: "positional", "symbolic"'),
        (["profile", "{tmp}/model", "--task", "text", "--text", "{tmp}/blank.txt"], "empty text"),
        (["profile", "{tmp}/model", "--task", "text", "--text", "{tmp}/one.txt"], "at least two blocks"),
        (["profile", "{tmp}/model", "--task", "text", "--text", "{tmp}/long.txt", "--blocks", "4"], "context of 512"),
        (["profile", "{tmp}/model", "--task", "text", "--text", "{tmp}/long.txt", "--blocks", "1:3,3:9999"], "contains the query"),
        (["profile", "{tmp}/model", "--task", "text", "--text", "{tmp}/long.txt", "--blocks", "1:x"], "start:stop"),
        (["profile", "{tmp}/model", "--queries", "first"], "last, all, task"),
        (["profile", "{tmp}/model", "--device", "abacus"], "abacus"),
        (["profile", "{tmp}/model", "--config", "{tmp}/none.toml"], "no such settings file"),
        (["profil"], "Did you mean"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_code_2(
    run, model: Path, tmp_path: Path, arguments, message: str
) -> None:
    import transformers as tf

    (tmp_path / "empty").mkdir()
    if "{tmp}/gpt2" in arguments:
        plain = tf.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
        from_config(plain).save_pretrained(tmp_path / "gpt2")
        word_tokenizer().save_pretrained(tmp_path / "gpt2")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "one.txt").write_text("w3 w4 w5")
    (tmp_path / "long.txt").write_text(" ".join(["w5"] * 700))
    out = tmp_path / "out"
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    if given[0] == "profile":
        given += ["--out", str(out)]
    code, _, problem = run(*given)
    assert code == 2
    assert message in problem
    assert "Traceback" not in problem
    assert problem.count("\n") == 1
    assert not out.exists() or not any(out.rglob("*.parquet"))


def test_help_does_not_import_torch() -> None:
    """What it would cost: benchmarks/command_line.py."""
    asked = subprocess.run([ROTOSCOPE, "--help"], capture_output=True, text=True, check=True)
    assert "profile" in asked.stdout
    probe = "import sys; from rotoscope.cli import main\ntry: main(['profile', '--help'])\nexcept SystemExit: pass\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True)


@pytest.mark.slow
def test_interrupt_keeps_what_is_done(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        ROTOSCOPE, "profile", str(model), "--task", "repeats", "--length", "30", "--prompts", "4000", "--null", "none", "--no-page", "--out", str(out),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    wait_until(lambda: list(out.glob("pieces/*/*.done.json")))
    started.send_signal(signal.SIGINT)
    _, problem = started.communicate(timeout=30)
    assert started.returncode == 130
    assert (
        problem.strip()
        == "rotoscope: stopped; what is finished is kept, and the same command goes on from there"
    )
    pieces = {piece: piece.stat().st_mtime_ns for piece in out.glob("pieces/*/*.parquet")}
    assert pieces
    assert not list(out.rglob("*.part"))


def test_doctor(run, smollm2: rs.Subject) -> None:
    code, output, _ = run("doctor", "--device", "cpu")
    assert code == 0
    assert "self-check on smollm2: passed" in " ".join(output.split())
    assert "queries and keys are read out of the forward pass" in " ".join(output.split())
    assert "torch" in output
    assert "largest difference" in " ".join(output.split())
    code, output, _ = run("doctor", "--device", "nowhere")
    assert code == 1
    assert "device 'nowhere' cannot be used" in output


def test_theory(run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, output, problem = run("theory", "appendix-b", "--figures", "--out", out)
    assert code == 0, problem
    assert "appendix-b: false as printed" in output
    assert "instead (checked, holds)" in output
    assert {"hop_path.png", "discrepancies.png", "target_weights.png"} <= {file.name for file in out.iterdir()}
    code, _, problem = run("theory", "h-poz")
    assert code == 2
    assert "did you mean 'h-pos'" in problem


def test_canonical(run, tmp_path: Path) -> None:
    out = tmp_path / "run"
    few = ("--steps", 12, "--keys", 6, "--angles", 1.0, 0.1, 0.0)
    code, output, problem = run("canonical", "index", *few, "--figures", "--out", out)
    assert code == 0, problem
    assert "Accuracy at the end of training" in output
    figures = {"accuracy.png", "positions.png", "vectors.png", "scores.png", "steps.png"}
    assert figures <= {file.name for file in out.iterdir()}
    assert set(rs.open(out).accuracy["theta"]) == {1.0, 0.1, 0.0}
    for wrong, message in (
        (["--angles", -1.0], "angles must be at least 0"),
        (["--steps", 13], "steps: 12 there, 13 now"),
    ):
        code, _, problem = run("canonical", "index", "--keys", 6, *wrong, "--out", out)
        assert code == 2
        if wrong[0] == "--angles":
            assert message in problem
    code, _, problem = run("canonical", "retrieval", "--keys", 17, "--out", tmp_path / "other")
    assert code == 2
    assert "need as many entities" in problem


@pytest.mark.slow
def test_train_then_dynamics_from_the_command_line(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, few in (("find_roles", {"inputs": 32, "fitted": 300}), ("trace", {"fitted": 300})):
        monkeypatch.setattr(roles, name, partial(getattr(roles, name), **few))
    small = ("--steps", 40, "--layers", 2, "--width", 32, "--device", "cpu")
    code, output, _ = run("train", "letter", *small, "--figures", "--out", tmp_path / "run")
    assert code == 0
    assert "accuracy by hops" in output
    assert "has not learned the whole task" in output
    written = {
        "metrics.jsonl",
        "metrics.parquet",
        "scores.parquet",
        "test.parquet",
        "checkpoint-40",
        "training_accuracy.png",
    }
    assert written <= {file.name for file in (tmp_path / "run").iterdir()}
    code, output, _ = run(
        "dynamics", tmp_path / "run", "--queries", "path", "--no-roles", "--no-page", "--out", tmp_path / "d"
    )
    assert code == 0
    assert set(rs.open(tmp_path / "d").scores["queries"]) == {"path"}
    code, output, _ = run(
        "dynamics",
        tmp_path / "run",
        "--inputs",
        20,
        "--figures",
        "--out",
        tmp_path / "whole",
        "--device",
        "cpu",
    )
    assert code == 0
    for name in ("information_flow.png", "geometry/dominant_planes.png", "roles/run.json"):
        assert (tmp_path / "whole" / name).is_file()
    assert "in the order of the hops" in " ".join(output.split())
    code, _, error = run("dynamics", tmp_path / "run", "--task", "number", "--out", tmp_path / "x")
    assert code == 2
    assert "trained on the letter task, not on the number task" in error
    code, _, error = run("train", "number", *small, "--out", tmp_path / "run")
    assert code == 2
    assert "made with other settings" in error


def test_dynamics_of_language_model_checkpoints(run, tmp_path: Path) -> None:
    for step in (5, 10):
        tiny("llama", seed=step).save_pretrained(tmp_path / "steps" / f"step-{step}")
        word_tokenizer().save_pretrained(tmp_path / "steps" / f"step-{step}")
    code, output, _ = run(
        "dynamics",
        tmp_path / "steps",
        "--task",
        "repeats",
        "--inputs",
        2,
        "--no-page",
        "--out",
        tmp_path / "out",
    )
    assert code == 0
    assert "says nothing of them" in " ".join(output.split())
    found = rs.open(tmp_path / "out")
    assert found.steps == [5, 10]
    assert found.task == "repeats"
    code, _, error = run("dynamics", tmp_path / "steps", "--out", tmp_path / "none")
    assert code == 2
    assert "does not say which multi-hop task" in error


def test_reproduce_one_claim_and_a_name_that_is_not_there(run, tmp_path: Path) -> None:
    code, output, _ = run("reproduce", "p2-number-order", "--out", tmp_path / "one")
    assert code == 0
    assert "p2-number-order" in output
    assert (tmp_path / "one" / "ledger.parquet").is_file()
    code, _, error = run("reproduce", "p2-nummber-order", "--out", tmp_path / "two")
    assert code == 2
    assert "did you mean 'p2-number-order'" in error
    assert not (tmp_path / "two").exists()


def test_doctor_of_a_run(run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rs.profile(tiny("llama"), tokens=tokens(2, 10), out=folder, null="none")
    code, output, _ = run("doctor", folder)
    assert code == 0
    assert "all as they were written" in output
    damaged = bytearray((folder / "prompts.parquet").read_bytes())
    damaged[40] ^= 1
    (folder / "prompts.parquet").write_bytes(damaged)
    (folder / "sinks.parquet").unlink(missing_ok=True)
    code, output, _ = run("doctor", folder)
    assert code == 1
    assert "prompts.parquet is not what was written" in output
    assert "damaged" in output
