"""A removed command or flag is answered with what to use instead, wherever it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rotoscope import removed
from rotoscope.cli import commands, main
from rotoscope.command import flags, usual

LINES = [
    *((command, answer) for command, answer in removed.COMMANDS.items()),
    *((f"{flag} 1", answer) for flag, answer in removed.FLAGS.items()),
    ("--config settings.toml bundle a", removed.COMMANDS["bundle"]),
    ("--config=settings.toml profile --devices 2", removed.FLAGS["profile --devices"]),
    ("plan --decision context", removed.COMMANDS["plan context"]),
    ("plan smollm2 --decision=context", removed.COMMANDS["plan context"]),
    ("plan --rankings mean rotation", removed.FLAGS["plan cache --rankings"]),
]


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


@pytest.mark.parametrize(("line", "answer"), LINES, ids=[line for line, _ in LINES])
def test_the_answer_names_what_to_use(line: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer in complaint(line.split(), capsys)


SETTINGS = {
    "[bundle]\nout = 'x'": removed.COMMANDS["bundle"],
    "[profile]\nleast-mass = 1": removed.FLAGS["profile --least-mass"],
    "[plan]\nrandom_draws = 1": removed.FLAGS["plan cache --random-draws"],
    "[plan]\ndecision = 'context'": removed.COMMANDS["plan context"],
}


@pytest.mark.parametrize("content", SETTINGS)
def test_a_settings_file_is_answered_alike(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(content)
    assert SETTINGS[content] in complaint(["--config", str(file), "theory"], capsys)


VARIABLES = {
    "ROTOSCOPE_BUNDLE_OUT": ("x", removed.COMMANDS["bundle"]),
    "ROTOSCOPE_PROFILE_LEAST_MASS": ("1", removed.FLAGS["profile --least-mass"]),
    "ROTOSCOPE_PLAN_DECISION": ("context", removed.COMMANDS["plan context"]),
}


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_environment_is_answered_alike(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value, answer = VARIABLES[variable]
    monkeypatch.setenv(variable, value)
    text = complaint(["theory"], capsys)
    assert variable in text
    assert answer in text


SWEEPS = {
    "command = 'bundle'\n[grid]\nmodel = ['a']": removed.COMMANDS["bundle"],
    "command = 'profile'\n[grid]\nleast_mass = [1]": removed.FLAGS["profile --least-mass"],
    "command = 'plan'\n[grid]\ndecision = ['context']": removed.COMMANDS["plan context"],
}


@pytest.mark.parametrize("content", SWEEPS)
def test_a_sweep_is_answered_alike(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(f"out = '{tmp_path / 'swept'}'\n{content}")
    assert SWEEPS[content] in complaint(["sweep", str(file)], capsys)


def test_only_what_is_gone_is_listed() -> None:
    assert not removed.COMMANDS.keys() & commands().keys()
    for listed in removed.FLAGS:
        command, flag = listed.split()[0], listed.split()[-1].removeprefix("--").replace("-", "_")
        run = commands()[command]
        assert flag not in flags(run), listed
        positive = flag.removeprefix("no_")
        assert positive == flag or usual(run).get(positive) is not True, listed
