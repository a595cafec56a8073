"""The items of a sweep as they lie on disk: ordinary run folders, each with a note of how its command ended.

    SWEEP/run.json items.parquet heads.parquet     the sweep itself: its grid, and the tables over all of it
    SWEEP/NAME/                                    an item: its run, item.json (how it ended) and item.log (what it printed)
    SWEEP/NAME.log                                 the same of one that is running, or was when it was killed

There is no other state: whatever is not noted as finished is run again, and its run goes on where it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rotoscope.errors import RunError
from rotoscope.results.files import disk_errors, make_folder, plain
from rotoscope.results.record import RUN, RunRecord

ITEM, ITEM_LOG, LOG_END = "item.json", "item.log", ".log"
FINISHED, FAILED, UNFINISHED, WAITING = "finished", "failed", "unfinished", "waiting"


@dataclass(frozen=True)
class Outcome:
    """How an item ended, or that it has not."""

    state: str = WAITING
    """finished, failed, unfinished (begun, and running or killed) or waiting."""
    seconds: float | None = None
    """That its last try took."""
    error: str = ""
    """Why it failed, in a sentence."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Checksums of what its settings name on disk, by setting: what it was made of."""


def runs_in(folder: Path) -> list[Path]:
    """The run of an item, or its runs where its command makes several, each in a folder of its own."""
    if (folder / RUN).is_file():
        return [folder]
    try:
        return sorted(inner for inner in folder.iterdir() if (inner / RUN).is_file())
    except OSError:
        return []


def outcome_of(folder: Path) -> Outcome:
    """What has become of an item; finished is only what has a note and a whole run."""
    noted = _noted(folder / ITEM)
    if noted is not None and (noted.state == FAILED or _whole(folder)):
        return noted
    begun = folder.exists() or folder.with_name(folder.name + LOG_END).exists()
    return Outcome(UNFINISHED if begun else WAITING)


def note(folder: Path, outcome: Outcome) -> None:
    """Say how an item ended; the note is there whole or not at all. It is no part of the run, so no manifest lists it."""
    with disk_errors(folder):
        make_folder(folder)
        scratch = folder / f".{ITEM}.{os.getpid()}.part"
        scratch.write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="utf-8")
        scratch.replace(folder / ITEM)


def open_again(folder: Path) -> Path:
    """Take the note and the log of an earlier try out of a folder, so that its run can begin or go on; where the log is then."""
    log = folder.with_name(folder.name + LOG_END)
    with disk_errors(folder):
        make_folder(folder.parent)
        (folder / ITEM).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            before = (folder / ITEM_LOG).read_bytes()
            with log.open("ab") as kept:
                kept.write(before)
            (folder / ITEM_LOG).unlink()
        with suppress(OSError):  # something of a run is in it
            folder.rmdir()
    return log


def close(folder: Path, outcome: Outcome) -> None:
    """Put the log into the folder, and the note last."""
    with disk_errors(folder):
        make_folder(folder)
        with suppress(FileNotFoundError):
            folder.with_name(folder.name + LOG_END).replace(folder / ITEM_LOG)
    note(folder, outcome)


def _noted(file: Path) -> Outcome | None:
    try:
        said = json.loads(plain(file).read_text(encoding="utf-8"))
        seconds = said["seconds"]
        if said["state"] in (FINISHED, FAILED):
            inputs = {str(key): str(mark) for key, mark in dict(said["inputs"]).items()}
            return Outcome(
                said["state"], None if seconds is None else float(seconds), str(said["error"]), inputs
            )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _whole(folder: Path) -> bool:
    """Whether there is a run, and every one is finished."""
    found = list(_complete(folder))
    return bool(found) and all(found)


def _complete(folder: Path) -> Iterator[bool]:
    for place in runs_in(folder):
        try:
            yield RunRecord.read(place).complete
        except RunError:
            yield False
