"""Rows that are on disk as soon as they are known: one JSON line each, for answers that cost money."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

from rotoscope.errors import RunError
from rotoscope.results.files import CHECKSUM, disk_errors, enter_in_manifest, plain
from rotoscope.results.record import described_checksum


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
        whole, newline, torn = plain(path).read_bytes().rpartition(b"\n")
        for number, line in enumerate(whole.splitlines()):
            try:
                self.rows.append(_whole(json.loads(line)))
            except (ValueError, RecursionError) as damage:
                raise RunError(
                    f"line {number + 1} of {path} is damaged ({damage}); remove it to go on"
                ) from damage
        if torn and self._repair:
            with disk_errors(path):
                os.truncate(path, len(whole) + len(newline))

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


def _whole(row: Any) -> Any:
    """A row as it was given, if it is still what was written."""
    if isinstance(row, dict) and CHECKSUM in row:
        if row[CHECKSUM] != described_checksum(row):
            raise ValueError("it is not what was written")
        del row[CHECKSUM]
    return row
