"""Odd names, places and values: one sentence and exit code 2, or the work done; never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope import cli
from rotoscope.command import check_line, make_app
from rotoscope.lab.checkpoints import word_tokenizer as letters_only
from tests.cli.world import LETTER
from tests.disk import full_disk
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

QUICK = ("--prompts", 2, "--null", "none", "--no-page")
LONG = "n" * 300


def refused(answer: tuple[int, str, str], words: str) -> None:
    """Exit code 2, and one line that holds these words."""
    code, _, problem = answer
    assert code == 2, problem
    assert problem.startswith("rotoscope: ")
    assert problem.count("\n") == 1
    assert words in problem


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("gate number --prompts 2 --remove 5-2", "'5-2' holds no frequency: write the smaller id first, 2-5"),
        ("gate number --prompts 2 --keep 1-2-3", "frequency ids are written 1-8,12"),
        ("gate number --prompts 2 --remove 1-9999999999999", "frequency ids go from 1 (fastest) to 64"),
        ("gate number --prompts 2 --remove|angle 5-6", "holds no frequency of this model"),
        ("gate number --prompts 2 --remove|angle nan-nan", "holds no frequency of this model"),
        (f"profile number --prompts 2 --out {LONG}", "File name too long"),
        (f"gate number --remove 1 --prompts 2 --classes {LONG}", "File name too long"),
        (f"report {LONG}", "File name too long"),
        (f"dynamics {LONG}", "File name too long"),
        (f"--config {LONG} profile number", "File name too long"),
        ("report loop", "no such run folder: loop"),
        ("profile number --prompts 1.5", 'unable to convert "1.5" into int'),
        ("train number --nope 0 1.5", 'unable to convert "1.5" into int'),
        ("serve . --port 80.5", 'unable to convert "80.5" into int'),
        ("--config half.toml lengths number", 'unable to convert "18.5" into int'),
        ("dynamics number --seed 99999999999999999999", "seed must be at most 4,294,967,295"),
        ("canonical index --angles nan", "angles must be a number, found nan"),
        ("train number --strength nan --favour symbolic", "strength must be a number, found nan"),
        ("dynamics number --task binding --inputs 2", "knows only the words of its number task"),
        ("gate letter --task text --text text.txt", "knows only the words of its letter task"),
        ("ask number --lengths 12", "knows only the words of its number task"),
        ("profile caf\udce9", "'caf\\udce9' is no UTF-8"),
        ("report number --out a\0b", "'a\\x00b' holds a zero byte"),
        ("lengths number --lengths", "the list of lengths is empty"),
        ("depths number --at", "the list of at is empty"),
        ("train number --out caf\udce9", "'caf\\udce9' is no UTF-8"),
    ],
)
def test_wrong_input_is_one_sentence(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    (tmp_path / "text.txt").write_text("a b. c d. e")
    (tmp_path / "half.toml").write_text("[lengths]\nlengths = [17, 18.5]\n")
    plain, *last = command.split("|")  # what stands after the bar is one word
    refused(run(*plain.split(), *last), words)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["half.toml", "loop", "text.txt"]


def test_a_variable_that_is_no_setting(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTOSCOPE_PROFILE_PAIR", "3")
    refused(
        run("profile", "number"),
        "ROTOSCOPE_PROFILE_PAIR is no setting: did you mean 'ROTOSCOPE_PROFILE_PAIRS'?",
    )


def test_out_of_memory_is_one_sentence(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise RuntimeError("CUDA out of memory. Tried to allocate 16.00 GiB.")

    monkeypatch.setattr(cli, "app", lambda: make_app({"doctor": fail}))
    refused(run("doctor"), "the device is out of memory: use fewer or shorter prompts")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "words", ["--version", "profile --help", pytest.param("theory exclusion", marks=pytest.mark.slow)]
)
def test_standard_output_on_a_full_device(tmp_path: Path, words: str) -> None:
    program = [sys.executable, "-c", "from rotoscope.cli import main; main()", *words.split()]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    refused(
        (ended.returncode, "", ended.stderr),
        "standard output or a file cannot be used (No space left on device)",
    )


@pytest.mark.parametrize("room", [1000, 4000, 9000])
def test_training_on_a_full_disk(run, tmp_path: Path, room: int) -> None:
    """Weights, tokenizer and tables are written by different libraries; the same command goes on once there is room."""
    line = (*LETTER.split(), "--out", tmp_path / "run")
    with full_disk(room):
        refused(run(*line), "cannot be written")
    code, _, problem = run(*line)
    assert code == 0, problem
    assert not list(tmp_path.rglob(".*.part"))


def test_one_input_at_every_length(run, tmp_path: Path) -> None:
    """Fewer inputs than there are numbers of hops."""
    code, _, problem = run(*LETTER.replace("--hops 1", "--hops 2").split(), "--out", tmp_path / "trained")
    assert code == 0, problem
    code, _, problem = run(
        "lengths", tmp_path / "trained", "--lengths", 13, 14, "--inputs", 1, "--no-page", "--device", "cpu",
        "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, problem
    assert set(rs.open(tmp_path / "run").tables["predicted"]["hops"]) == {1, 2}


def test_words_that_a_tokenizer_does_not_have(run, tmp_path: Path) -> None:
    """Without a token for what is unknown."""
    tiny("llama").save_pretrained(tmp_path / "model")
    letters_only("abc").save_pretrained(tmp_path / "model")
    for line in (("profile",), ("ask", "--lengths", 12)):
        command, *rest = line
        answer = run(command, tmp_path / "model", *rest, "--device", "cpu", "--out", tmp_path / "run")
        refused(answer, "the model's tokenizer has no tokens for ")


def test_windows_that_hide_all_blocks(run, tmp_path: Path) -> None:
    """No head of any layer sees what is swapped: no scores, no figures of nothing, and no zeros in their place."""
    tiny("mistral", sliding_window=2).save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(" ".join(f"w{k}" for k in range(3, 17)))
    code, _, problem = run(
        "profile", tmp_path / "model", "--task", "text", "--text", tmp_path / "text.txt", "--blocks", "1:3,3:5",
        "--input-swaps", 4, "--null", "none", "--out", tmp_path / "run",
    )  # fmt: skip
    assert code == 0, problem
    opened = rs.open(tmp_path / "run")
    assert opened.heads["positional_score"].isna().all()
    scores = opened.tables["input_prompts"].filter(like="score")
    assert scores.shape == (12, 2)
    assert scores.isna().all(axis=None)


def test_the_same_tau_twice_is_one_tau(run, tmp_path: Path) -> None:
    code, _, problem = run("profile", "number", "--tau", 1e-4, 1e-2, 1e-4, *QUICK, "--out", tmp_path / "run")
    assert code == 0, problem
    assert rs.open(tmp_path / "run").taus == [1e-4, 1e-2]


@pytest.mark.parametrize(
    "name", ["[/red]", *(pytest.param(name, marks=pytest.mark.slow) for name in ("[bold]$\\frac$", "~nouser"))]
)
def test_names_are_shown_as_they_are(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    rs.load("number", device="cpu").model.save_pretrained(tmp_path / name)
    rs.load("number", device="cpu").tokenizer.save_pretrained(tmp_path / name)
    drawn = "$" in name  # what mathematical text would be made of in a title; the others are not special there
    figures = "--figures" if drawn else "--no-page"
    command = ("profile", tmp_path / name, "--prompts", 2, "--null", "none", figures, "--out", f"{name}-run")
    code, output, problem = run(*command)
    assert code == 0, problem
    assert f"{Path(name).name} on cpu" in output
    assert f"{name}-run  (" in output
    assert Path(f"{name}-run/plane.png").is_file() == drawn
    code, output, problem = run("report", f"{name}-run", "--out", f"{name}.html")
    assert code == 0, problem
    assert output.startswith(f"{name}.html: open it")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write and read everywhere")
def test_places_that_may_not_be_read_or_written(run, tmp_path: Path) -> None:
    code, _, problem = run("profile", "number", *QUICK, "--out", tmp_path / "run")
    assert code == 0, problem
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    refused(run("profile", "number", *QUICK, "--out", closed / "run"), "Permission denied")
    refused(run("report", tmp_path / "run", "--out", closed / "page.html"), "Permission denied")
    (tmp_path / "run" / "run.json").chmod(0)
    refused(run("profile", "number", *QUICK, "--out", tmp_path / "run"), "Permission denied")
    (tmp_path / "run").chmod(0)
    for command in ("report", "doctor", "dynamics", "lengths", "profile"):
        refused(run(command, tmp_path / "run"), "Permission denied")
    (tmp_path / "run").chmod(0o700)


def test_percentages_are_understood_also_where_pydantic_is_there() -> None:
    """The command line's library then checks every value again, against the annotation."""
    pytest.importorskip("pydantic")
    found = check_line(cli.app(), ["plan", "cache", "letter", "--keep", "25%", "--frontier", "10%", "0.5"])
    assert (found["keep"], found["frontier"]) == (0.25, (0.1, 0.5))
