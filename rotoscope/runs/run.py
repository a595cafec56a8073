"""Rows that are on disk as soon as they are known: one JSON line each, for answers that cost money."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.runs.files import (
    CHECKSUM,
    checksum,
    disk_errors,
    enter_in_manifest,
    make_folder,
    plain,
    read_arrays,
    read_table,
    save_arrays,
    write_json,
    write_table,
    write_text,
)
from rotoscope.runs.folder import LOG, PIECES, Place
from rotoscope.runs.record import RunRecord, described_checksum, settings_hash
from rotoscope.runs.result import SavedRun, Tables
from rotoscope.settings import held


class Journal:
    """A growing list of rows, safe to append to from several threads; without a path it lives in memory only.

    A process that is killed while it writes leaves half a line at the end: it is cut off when the file is opened again,
    unless it is only looked at (`repair=False`).
    """

    def __init__(self, path: Path | None = None, *, repair: bool = True) -> None:
        self.path = path
        self._repair = repair
        self.rows: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        complete, newline, torn = plain(path).read_bytes().rpartition(b"\n")
        for number, line in enumerate(complete.splitlines()):
            try:
                self.rows.append(_verified(json.loads(line)))
            except (ValueError, RecursionError) as damage:
                raise RunError(
                    f"line {number + 1} of {path} is damaged ({damage}); remove it to go on"
                ) from damage
        if torn and self._repair:
            with disk_errors(path):
                os.truncate(path, len(complete) + len(newline))

    def append(self, row: dict[str, Any]) -> None:
        """Keep a row; it is on disk when this returns, whole or not at all."""
        with self._lock:
            if self.path is not None:
                self._write(self.path, line(row).encode())
            self.rows.append(row)

    def _write(self, path: Path, line: bytes) -> None:
        with disk_errors(path), path.open("ab", buffering=0) as file:
            enter_in_manifest(path)
            before = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise

    def __len__(self) -> int:
        return len(self.rows)


def line(row: dict[str, Any]) -> str:
    """A row as it stands in the file."""
    return json.dumps(row | {CHECKSUM: described_checksum(row)}) + "\n"


def _verified(row: Any) -> Any:
    """A row as it was given, if it is still what was written."""
    if isinstance(row, dict) and CHECKSUM in row:
        if row[CHECKSUM] != described_checksum(row):
            raise ValueError("it is not what was written")
        del row[CHECKSUM]
    return row


# The one way to make a run: in memory, or in a folder that may be killed at any moment and goes on where it was.
#
# A run is made of **pieces**. A piece has a key and holds tables by their final names; whoever makes a run asks for one
# piece after the other, and what an earlier try finished is read back instead of being made again. The run's tables are
# its pieces put together, also those of a run that is still going: whoever looks at one needs no other knowledge.
#
# On disk a piece is one Parquet file per table, and a marker, written last, that says which. Pieces lie under a hash of
# the settings, so that a run made with other settings is never mixed in.


DONE, STATE = ".done.json", ".safetensors"
KEY = re.compile(r"[\w-]+")
SMALL_BYTES = 100_000
"""Of a piece's table that is kept in memory while its run is looked at."""

R = TypeVar("R", bound=SavedRun)


class Run(Generic[R]):
    """A run being made. Nothing on disk is touched before `begin`, which the first piece calls by itself."""

    def __init__(
        self,
        kind: type[R],
        settings: dict[str, Any],
        out: str | Path | None = None,
        *,
        overwrite: bool = False,
        device: str = "",
    ) -> None:
        self.kind = kind
        self.record = RunRecord(kind.kind, json.loads(json.dumps(settings, default=str)), device=device)
        self.folder = held("out", Path | None, out)
        self.finished: R | None = None
        """The run itself where it was finished before, with these settings."""
        self.begun_details: dict[str, Any] = {}
        """What an earlier try noted in its record, where this one goes on with it."""
        self._begun = False
        self._fresh = False
        """Whether nothing of an earlier try is to be read."""
        self._pieces: dict[str, Tables] = {}
        self._devices: set[str] = {device} - {""}
        """What the pieces were computed on, those of earlier tries among them."""
        self._result: R | None = None
        self._log: Journal | None = None
        self._began = time.perf_counter()
        if self.folder is not None:
            self._look(self.folder, overwrite)

    def _look(self, folder: Path, overwrite: bool) -> None:
        """Whether the folder may be written to, and whether the run is there already."""
        self._home = Place(folder)
        before = self._home.check(self.record, overwrite=overwrite)
        self._fresh = before is None
        if before is None:
            return
        self.begun_details = before.details
        if before.complete:
            self.finished = self.kind.open(folder)
            self.finished.run.note_versions()
            self._home.tidy()
        elif difference := before.cannot_go_on:
            raise RunError(f"the run in {folder} was {difference}")

    def begin(self) -> None:
        """Make the folder, or take it over from the run that is to be replaced."""
        if self.folder is None or self._begun:
            return
        if self._fresh:
            self._home.replace(self.record)
        else:
            self._home.begin()
        with disk_errors(self.folder):
            make_folder(self._place)
        self._begun, self._fresh = True, False

    @property
    def _place(self) -> Path:
        assert self.folder is not None
        return self.folder / PIECES / settings_hash(self.record.settings)

    def piece(self, key: str, make: Callable[[], Mapping[str, pd.DataFrame]]) -> Tables:
        """The tables of a piece: read back where an earlier try finished it, otherwise made and kept."""
        if not self.done(key):
            self.add(key, make())
        return self._pieces[key]

    def done(self, key: str) -> bool:
        """Whether there is such a piece; if so, it belongs to the run from now on."""
        if key not in self._pieces and self.folder is not None and not self._fresh:
            tables = read_piece(self._place, key)
            if tables is not None:
                self._devices |= _device_of(self._place, key)
                self._take(key, tables)
        return key in self._pieces

    def _take(self, key: str, tables: Tables) -> None:
        """Into the run; a result that is there already gets new tables, and is made again where one of its own grows."""
        self._pieces[key] = tables
        if self._result is not None and not tables.keys() & self._result.tables.keys():
            self._result.tables |= tables
        else:
            self._result = None

    def add(self, key: str, tables: Mapping[str, pd.DataFrame]) -> None:
        """Keep a piece; it is on disk, whole, when this returns."""
        if not KEY.fullmatch(key):
            raise ValueError(f"'{key}' cannot be the key of a piece")
        self._take(key, dict(tables))
        if self.folder is None:
            return
        self.begin()
        write_piece(self._place, key, tables, self.record.device)

    def drop_other_devices(self, stem: str) -> None:
        """Forget pieces of an earlier try that another device has made, of those whose keys begin with `stem`."""
        for key in self.earlier():
            if key.startswith(stem) and _device_of(self._place, key) - {self.record.device}:
                (self._place / f"{key}{DONE}").unlink()

    def keep_only(self, keys: Iterable[str]) -> None:
        """Take these pieces of an earlier try into the run, in this order, and forget all others."""
        missing = list(keys)
        if self.folder is not None and not self._fresh:
            for marker in self._place.glob(f"*{DONE}"):
                if marker.name.removesuffix(DONE) not in missing:
                    marker.unlink()
        self._pieces = {key: tables for key, tables in self._pieces.items() if key in missing}
        self._result = None
        for key in missing:
            if not self.done(key):
                raise RunError(f"the run in {self.folder} is damaged: its piece {key} is missing")
        self._pieces = {key: self._pieces[key] for key in missing}

    def arrange(self) -> None:
        """Put the pieces into the order of their keys, numbers as numbers: however they were cut, the tables are the same."""
        self._pieces = dict(sorted(self._pieces.items(), key=lambda piece: natural_order(piece[0])))
        self._result = None

    def piece_keys(self) -> list[str]:
        """The keys of all pieces there are, of this try or an earlier one, sorted."""
        return sorted({*self.earlier(), *self._pieces})

    def earlier(self) -> list[str]:
        """The keys of the pieces that an earlier try finished, sorted."""
        if self.folder is None or self._fresh:
            return []
        return sorted(marker.name.removesuffix(DONE) for marker in self._place.glob(f"*{DONE}"))

    def journal(self, name: str, *, look: bool = False) -> Journal:
        """Rows that are on disk one by one, for answers that cost money or time; `look` only reads those there are."""
        if self.folder is None or (look and self._fresh):
            return Journal()
        if not look:
            self.begin()
        return Journal(self._place / f"{name}.jsonl", repair=not look)

    def log(self, row: dict[str, Any]) -> None:
        """One line about how far the run is, for people and tools that watch it; kept when it is finished."""
        if self.folder is not None:
            self.begin()
            if self._log is None:
                self._log = Journal(self.folder / LOG)
            self._log.append(row)

    def _device_warning(self) -> list[str]:
        if len(self._devices) < 2:
            return []
        self.record.device = ", ".join(sorted(self._devices))
        devices = self.record.device
        return [f"parts of this run were computed on different devices ({devices}), whose last digits differ"]

    def trim_log(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Cut off the lines of an earlier try from the first that is to be dropped on."""
        if self.folder is not None and (self.folder / LOG).exists() and not self._fresh:
            rows = itertools.takewhile(keep, Journal(self.folder / LOG).rows)
            write_text(self.folder / LOG, "".join(line(row) for row in rows))

    def beside(self, name: str, write: Callable[[Path], object]) -> None:
        """Let something be written beside the tables, a checkpoint or a log; in memory there is no such place."""
        if self.folder is not None:
            self.begin()
            write(self.folder / name)
            enter_in_manifest(self.folder / name)

    def load_arrays(self, name: str) -> dict[str, Any]:
        """Tensors that were written beside the tables."""
        assert self.folder is not None
        return read_arrays(self.folder / name)

    def save_state(self, key: str, state: dict[str, Any]) -> None:
        """Keep tensors to go on from, until the run is finished."""
        if self.folder is not None:
            self.begin()
            save_arrays(self._place / f"{key}{STATE}", state)

    def states(self) -> list[str]:
        """The keys of the states that are there, sorted."""
        if self.folder is None or self._fresh:
            return []
        return sorted(file.name.removesuffix(STATE) for file in self._place.glob(f"*{STATE}"))

    def load_state(self, key: str) -> dict[str, Any]:
        """The tensors of a state."""
        return read_arrays(self._place / f"{key}{STATE}")

    def drop_state(self, key: str) -> None:
        """A state that is damaged or no longer needed."""
        (self._place / f"{key}{STATE}").unlink(missing_ok=True)

    @property
    def seconds(self) -> float:
        """How long this try has taken so far."""
        return time.perf_counter() - self._began

    @property
    def result(self) -> R:
        """The run as far as it is made, as the type it will have; pieces that are added later join it."""
        if self._result is None:
            self._result = self.kind(self.record, put_together(self._pieces.values()))
        return self._result

    def finish(self, *, timings: Mapping[str, float] | None = None, **record: Any) -> R:
        """Write the whole tables and the final record, drop the pieces, and return the run.

        `record` are fields of the run's record; what it does not know goes to its details. The result's own caveats are
        added to the warnings.
        """
        result, about = self.result, self.record
        about.timings = {"total_s": self.seconds, **(timings or {})}
        for key, value in record.items():
            if hasattr(about, key):
                setattr(about, key, value)
            else:
                about.details[key] = value
        about.warnings = [*about.warnings, *self._device_warning(), *result.caveats()]
        about.complete = True
        if self.folder is not None:
            self.begin()
            result.store(self.folder)
            self._home.leave()
            self._home.tidy()
        return result


def natural_order(key: str) -> list[tuple[int, str]]:
    """Sorts "draw-2" before "draw-10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", key)]


def put_together(pieces: Iterable[Tables]) -> Tables:
    """The tables of a run from those of its pieces; tables without rows count only where there is nothing else."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for piece in pieces:
        for name, table in piece.items():
            parts.setdefault(name, []).append(table)
    return {
        name: pd.concat([t for t in tables if len(t)] or tables[:1], ignore_index=True)
        for name, tables in parts.items()
    }


def unfinished_tables(folder: Path, record: RunRecord) -> Tables:
    """What a run that is still going, or was killed, has finished; what is just being written is left for later."""
    place = folder / PIECES / settings_hash(record.settings)
    pieces: list[Tables] = []
    for marker in sorted(place.glob(f"*{DONE}")):
        try:
            piece = read_piece(place, marker.name.removesuffix(DONE), _looked_at)
        except (RunError, OSError):
            continue
        pieces += [piece] if piece is not None else []
    for file in sorted(place.glob("*.jsonl")):
        rows = pd.DataFrame(Journal(file, repair=False).rows)
        pieces += [{file.stem: rows}] if len(rows) else []
    return put_together(pieces)


def write_piece(place: Path, key: str, tables: Mapping[str, pd.DataFrame], device: str = "") -> None:
    """The tables of a piece in a folder of pieces, and last the marker that says it is whole."""
    for name, table in tables.items():
        write_table(place / f"{key}.{name}.parquet", table)
    files = {name: checksum(place / f"{key}.{name}.parquet") for name in tables}
    write_json(place / f"{key}{DONE}", {"tables": files, "device": device})


def read_piece(place: Path, key: str, read: Callable[[Path, str], pd.DataFrame] = read_table) -> Tables | None:
    """The tables of a piece; None where there is none, or it was not finished."""
    try:
        files = dict(json.loads(plain(place / f"{key}{DONE}").read_text(encoding="utf-8"))["tables"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as damage:
        raise RunError(
            f"{place / key}{DONE} is damaged ({damage}); remove it to make that piece again"
        ) from damage
    return {name: read(place / f"{key}.{name}.parquet", state) for name, state in files.items()}


def _device_of(place: Path, key: str) -> set[str]:
    """What a finished piece was computed on, where it says."""
    return {str(json.loads((place / f"{key}{DONE}").read_text(encoding="utf-8")).get("device", ""))} - {""}


def _looked_at(file: Path, state: str) -> pd.DataFrame:
    """A table of a piece, for whoever looks at a growing run again and again: a small one is read once."""
    about = file.stat()
    small = about.st_size <= SMALL_BYTES
    return _kept(file, state, about.st_mtime_ns, about.st_size) if small else read_table(file, state)


@lru_cache(maxsize=4096)
def _kept(file: Path, state: str, changed: int, size: int) -> pd.DataFrame:
    return read_table(file, state)
