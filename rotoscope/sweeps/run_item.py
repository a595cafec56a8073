"""One item: its command run in this process, what it prints kept in its log, and how it ended noted beside its run."""

from __future__ import annotations

import gc
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from rotoscope.errors import RotoscopeError
from rotoscope.sweeps.commands import run_words
from rotoscope.sweeps.inputs import input_hashes
from rotoscope.sweeps.lock import only_process
from rotoscope.sweeps.result import FAILED, FINISHED, Outcome, close, open_again

LAST_BYTES = 20_000
"""Of a log, in which the reason is looked for."""
OURS = "rotoscope: "
WAIT_S = 60.0
"""Seconds that an earlier process of the same item may take to end."""


def run_item(words: Sequence[str], folder: Path) -> Outcome:
    """Run an item's command line, whatever happens; the folder holds its run, its log and its note when this returns, if it
    can be written to at all."""
    began = time.perf_counter()
    try:
        with only_process(folder, WAIT_S):
            outcome = _run_and_note(words, folder, began)
    except (OSError, RotoscopeError) as problem:  # of its folder; other items have others
        outcome = Outcome(FAILED, time.perf_counter() - began, str(problem))
    _let_go()
    return outcome


def _run_and_note(words: Sequence[str], folder: Path, began: float) -> Outcome:
    log = open_again(folder)
    hashed: dict[str, str] = {}
    inputs = input_hashes(words, hashed)
    earlier = log.stat().st_size if log.exists() else 0
    with _into(log):
        print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  rotoscope {shlex.join(words)}", flush=True)
        code = _run(list(words))
    state, reason = (FINISHED, "") if code == 0 else (FAILED, _reason(log, earlier))
    fetched = input_hashes(words, {value: checksum for value, checksum in hashed.items() if checksum})
    outcome = Outcome(state, time.perf_counter() - began, reason, fetched | inputs)
    close(folder, outcome)
    return outcome


def _run(words: list[str]) -> int:
    try:
        return run_words(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # a mistake of ours must not stop the other items
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _into(log: Path) -> Iterator[None]:
    """What this process prints goes to a log, also what libraries print past Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    streams = sys.stdout, sys.stderr
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        with _stream(1) as printed, _stream(2) as complained:
            sys.stdout, sys.stderr = printed, complained
            yield
    finally:
        sys.stdout, sys.stderr = streams
        for number, kept in enumerate(before, 1):
            os.dup2(kept, number)
            os.close(kept)
        os.close(file)


def _stream(number: int) -> TextIO:
    """An open file as Python prints to it, a line at a time."""
    return open(number, "w", encoding="utf-8", errors="replace", closefd=False, buffering=1)


def _reason(log: Path, earlier: int) -> str:
    """The sentence that the command complained with, or its last line; what earlier tries wrote is passed over."""
    with log.open("rb") as file:
        file.seek(max(earlier, log.stat().st_size - LAST_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    said = [line for line in lines if line.strip()]
    ours = [line.removeprefix(OURS) for line in said if line.startswith(OURS)]
    return (ours or said or ["it ended without a word"])[-1].strip()


def _let_go() -> None:
    """The next item may need the memory of this one."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
