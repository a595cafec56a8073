"""Commands that are killed, stopped, met by another process or not allowed to write: what there is stays whole, and goes on."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rotoscope.cli import main
from tests.campaign.kinds import content, difference, forked
from tests.models.test_load import word_tokenizer
from tests.sweep.conftest import ROOT
from tests.tiny_models import tiny
from tests.waiting import wait_until

SIZES = "--sources repeats --prompts 2 --length 8 --no-page"
COMMANDS = {
    "cache": f"plan cache model {SIZES} --window 4 --sinks 1 --frontier 0.5",
    "rotation": f"plan rotation model {SIZES} --planes 2",
    "profile": "profile model --task repeats --length 8 --prompts 6 --batch-tokens 16 --null none --no-page",
}
DONE = ".done.json"
PROMPTLY_S = 30.0
LONG = "profile model --task repeats --length 30 --prompts 60 --batch-tokens 60 --null none --no-page --out run"
"""A run of 60 pieces."""


def run(line: str) -> tuple[int, str]:
    """A command in this process: its exit code, and what it says on standard error."""
    problem = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(problem):
        try:
            main(line.split())
        except SystemExit as ended:
            return int(ended.code or 0), problem.getvalue()
    raise AssertionError("a command ends with its exit code")


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model")


def save_model(folder: Path) -> None:
    tiny("llama", num_hidden_layers=2).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)


def signalled(line: str, pieces: int, number: int) -> int:
    """A command in a process of its own that gets a signal when so many pieces are whole; its exit code."""

    def work() -> int:
        done = 0

        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal done
            if done == pieces:  # the first event after the renaming of the piece's marker
                done = -1  # the signal is an event, too
                os.kill(os.getpid(), number)
            if event == "os.rename" and str(arguments[1]).endswith(DONE):
                done += 1

        sys.addaudithook(heard)
        return run(line)[0]

    return os.waitstatus_to_exitcode(os.waitpid(forked(work), 0)[1])


def check_goes_on(line: str, pieces: int, number: int) -> None:
    """Killed after so many pieces and resumed, a run makes the others and is what the undisturbed one is."""
    assert signalled(f"{line} --out killed", pieces, number) == -number
    markers = {file: file.stat().st_mtime_ns for file in Path("killed").rglob(f"*{DONE}")}
    assert len(markers) == pieces
    made = list[str]()

    def work() -> int:
        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "os.rename" and str(arguments[1]).endswith(DONE):
                made.append(Path(arguments[1]).name)

        sys.addaudithook(heard)
        code = run(f"{line} --out killed")[0]
        Path("made.json").write_text(json.dumps(made))
        return code

    assert os.waitpid(forked(work), 0)[1] == 0
    assert not {file.name for file in markers} & set(json.loads(Path("made.json").read_text()))
    assert difference(content(Path("calm")), content(Path("killed"))) is None


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["profile", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cache", "rotation"))]
)
def test_killed_after_some_pieces(name: str, number: int) -> None:
    assert run(f"{COMMANDS[name]} --out calm")[0] == 0
    for pieces in (1, 3):
        shutil.rmtree("killed", ignore_errors=True)
        check_goes_on(COMMANDS[name], pieces, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_after_every_piece(name: str, number: int) -> None:
    assert run(f"{COMMANDS[name]} --out calm")[0] == 0
    pieces = 0
    while signalled(f"{COMMANDS[name]} --out counted", pieces + 1, number) != 0:
        shutil.rmtree("counted")
        pieces += 1
        shutil.rmtree("killed", ignore_errors=True)
        check_goes_on(COMMANDS[name], pieces, number)
    assert pieces >= 3


@contextlib.contextmanager
def started(line: str) -> Iterator[subprocess.Popen[str]]:
    """A command as a user starts it, past its first pieces."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rotoscope", *line.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: list(Path("run").rglob(f"*{DONE}")) or process.poll() is not None)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_terminated_profile_ends_at_once_and_goes_on() -> None:
    with started(LONG) as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PROMPTLY_S)
        assert process.returncode == -signal.SIGTERM
    assert not json.loads(Path("run/run.json").read_text())["complete"]
    assert run(LONG)[0] == 0
    assert run(LONG.replace("--out run", "--out calm"))[0] == 0
    assert difference(content(Path("calm")), content(Path("run"))) is None


@pytest.mark.slow
def test_a_second_process_is_refused_and_the_first_is_unharmed() -> None:
    first = forked(lambda: run(LONG)[0])
    try:
        wait_until(lambda: list(Path("run").rglob(f"*{DONE}")))
        os.kill(first, signal.SIGSTOP)  # so that it cannot end before the others have tried
        for line in (LONG, f"{LONG} --overwrite", f"{LONG} --seed 3 --overwrite"):
            code, problem = run(line)
            assert code == 2
            assert problem == (
                "rotoscope: another rotoscope is at work in run; wait for it, or choose another --out\n"
            )
    finally:
        os.kill(first, signal.SIGCONT)
        _, status = os.waitpid(first, 0)
    assert status == 0
    assert run(LONG.replace("--out run", "--out calm"))[0] == 0
    assert difference(content(Path("calm")), content(Path("run"))) is None


def everything(place: Path) -> dict[str, bytes | None]:
    return {
        file.relative_to(place).as_posix(): file.read_bytes() if file.is_file() else None
        for file in place.rglob("*")
    }


REFUSED = {
    "a run": f"{COMMANDS['profile']} --out closed/new",
    "a run in place of another": f"{COMMANDS['profile']} --seed 3 --overwrite --out closed/profile",
    "an unfinished run that goes on": f"{COMMANDS['profile']} --out closed/unfinished",
    "a cache plan": f"{COMMANDS['cache']} --out closed/new",
    "a rotation plan": f"{COMMANDS['rotation']} --out closed/new",
    "a site": "report closed/profile --site closed/new",
    "a site in place of another": "report closed/profile --site closed/site --overwrite",
    "a page": "report closed/profile --out closed/page.html",
    "a sweep": "sweep sweep.toml --out closed/sweep --workers 1",
}
"""Commands that would write into folders in which this user may only read."""
CAPABILITIES_VERSION, OVERRIDES = 0x20080522, 1 << 1 | 1 << 2
"""Of Linux: version 3, and the capabilities to write and to read whatever permissions say."""


def bound_by_permissions() -> None:
    """Lose the superuser's right to write where permissions forbid it, for good."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        header = struct.pack("=Ii", CAPABILITIES_VERSION, 0)
        sets = ctypes.create_string_buffer(24)
        assert libc.capget(header, sets) == 0
        words = list(struct.unpack("=6I", sets.raw))
        words[:3] = [word & ~OVERRIDES for word in words[:3]]  # effective, permitted and inheritable
        assert libc.capset(header, struct.pack("=6I", *words)) == 0, os.strerror(ctypes.get_errno())


def test_where_nothing_may_be_written_nothing_is(tmp_path: Path) -> None:
    Path("sweep.toml").write_text('command = "profile"\nout = "swept"\n[grid]\nmodel = ["model"]\nseed = [0]\n')
    closed = tmp_path / "closed"
    for line in (
        f"{COMMANDS['profile']} --out closed/profile",
        "report closed/profile --site closed/site",
    ):
        assert run(line)[0] == 0, line
    assert signalled(f"{COMMANDS['profile']} --out closed/unfinished", 2, signal.SIGKILL) < 0
    before = everything(closed)

    def work() -> int:
        bound_by_permissions()
        ended = {name: run(line) for name, line in REFUSED.items()}
        ended["the same run again"] = run(f"{COMMANDS['profile']} --out closed/profile")
        Path("ended.json").write_text(json.dumps(ended))
        return 0

    paths = [closed, *closed.rglob("*")]
    try:
        for path in paths:
            path.chmod(0o555)
        assert os.waitpid(forked(work), 0)[1] == 0
    finally:
        for path in paths:
            path.chmod(0o755)
    ended = json.loads(Path("ended.json").read_text())
    assert ended.pop("the same run again")[0] == 0
    for name, (code, problem) in ended.items():
        assert code == 2, f"{name}: {problem}"
        assert problem.startswith("rotoscope: closed/"), f"{name}: {problem}"
        assert problem.endswith("cannot be written (Permission denied)\n"), f"{name}: {problem}"
        assert problem.count("\n") == 1, f"{name}: {problem}"
    assert everything(closed) == before
