"""One item of a sweep: the inputs it is made of, the locks of the sweep's folder, and its command run in this process.

What the command prints is kept in its log, and how it ended is noted beside its run.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.measures.measure import measure_file
from rotoscope.models.hub import cached_commit, hub_name
from rotoscope.models.zoo import ZOO, own_model
from rotoscope.runs.files import content_hash, disk_errors, make_folder
from rotoscope.runs.folder import FOREVER, FolderLock
from rotoscope.sweeps.items import OUT, Item, Swept, run_words
from rotoscope.sweeps.result import FAILED, FINISHED, Outcome, close, open_again, outcome_of

CHECK_S = 2.0
"""Seconds in which drivers that start together have looked at the locks of earlier ones."""


@contextmanager
def only_driver(folder: Path, part: tuple[int, int]) -> Iterator[None]:
    """Be the only driver of a sweep, or of one part of it beside drivers of the other parts."""
    number, parts = part
    lock = FolderLock(folder / f".sweep-{number}-of-{parts}.lock", folder)
    with disk_errors(folder):
        make_folder(folder)
        lock.take()
        try:
            for file in folder.glob(".sweep-*.lock"):
                if not file.name.endswith(f"-of-{parts}.lock"):
                    FolderLock(file, folder).check(CHECK_S)
        except BaseException:
            lock.release()
            raise
    try:
        yield
    finally:
        lock.release()


@contextmanager
def writing_tables(folder: Path) -> Iterator[None]:
    """Wait until no other driver writes the tables of the sweep, then write them alone."""
    lock = FolderLock(folder / ".tables.lock", folder)
    with disk_errors(folder):
        lock.take(FOREVER)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def only_process(folder: Path, wait_s: float) -> Iterator[None]:
    """Be the only process that makes an item; one whose driver was killed may still be ending."""
    lock = FolderLock(folder.with_name(f".{folder.name}.lock"), folder)
    with disk_errors(folder):
        make_folder(folder.parent)
        lock.take(wait_s)
    try:
        yield
    finally:
        lock.release()


MEASURES = "measures"
"""The setting whose values are functions in files or modules."""
NO_SOURCES = frozenset({OUT, "task", "name"})
"""Settings whose values are never a place."""


def items_to_run(items: Sequence[Item], folder: Path, *, retry: bool) -> list[Item]:
    """The items that are not finished, those that failed only with `retry`; finished ones whose inputs have changed."""
    outcomes = {item.name: outcome_of(folder / item.name) for item in items}
    changed = changed_inputs(items, outcomes)
    _check_overwritten(items, changed)
    skipped = (FINISHED,) if retry else (FINISHED, FAILED)
    return [item for item in items if item.name in changed or outcomes[item.name].state not in skipped]


def changed_inputs(items: Sequence[Item], outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Finished items by name whose inputs have changed, each with the settings that name those."""
    changed: dict[str, str] = {}
    hashed: dict[str, str] = {}
    for item in items:
        if outcomes[item.name].state != FINISHED:
            continue
        now, before = input_hashes(item.line(Path(OUT)), hashed), outcomes[item.name].inputs
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if names:
            changed[item.name] = " and ".join(names)
    return changed


def _check_overwritten(items: Sequence[Item], changed: Mapping[str, str]) -> None:
    """Raise RunError where an item whose inputs have changed may not be overwritten."""
    refused = [item for item in items if item.name in changed and not item.given.get("overwrite")]
    if refused:
        first, more = refused[0], f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise RunError(
            f"the item {first.name}{more} was made of something else than is there now: {changed[first.name]} has changed. To have it "
            "made again, put overwrite = true into [settings]; to keep it, choose another --out"
        )


def input_hashes(words: Sequence[str], hashed: dict[str, str] | None = None) -> dict[str, str]:
    """For a command line, every setting that names something on disk or on the hub, with a checksum of what is there now.

    `hashed` keeps checksums by value, so that a model of many items is read once.
    """
    hashed = {} if hashed is None else hashed
    usual = {key: value for key, value in Swept(words[0]).settings.items() if isinstance(value, str)}
    values: dict[str, list[str]] = {key: [value] for key, value in usual.items()}
    for key in {_key(word) for word in words[1:]}:
        values[key] = [word.partition("=")[2] for word in words[1:] if _key(word) == key]
    hashes: dict[str, str] = {}
    for key in sorted(values.keys() - NO_SOURCES):
        for value in values[key]:
            if value not in hashed:
                file = measure_file(value) if key == MEASURES else None
                hashed[value] = _source_hash(value if file is None else str(file))
        hashes[key] = "-".join(filter(None, (hashed[value] for value in values[key])))
    return {key: checksum for key, checksum in hashes.items() if checksum}


def _key(word: str) -> str:
    return word.partition("=")[0].removeprefix("--").replace("-", "_")


def _source_hash(value: str) -> str:
    """A checksum of the file, folder or model that a text names; empty where it names nothing."""
    if not value:
        return ""
    if value in ZOO:
        return ZOO[value].sha256
    own = own_model(value)
    try:
        path = own if own is not None else Path(value).expanduser()
        if path.exists():
            return content_hash(path)
    except (OSError, RuntimeError):  # too long for a name, or in the home of a user that there is not
        return ""
    name = hub_name(value)
    return cached_commit(name) if name is not None else ""


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
