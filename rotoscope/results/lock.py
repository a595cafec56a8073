"""A lock that lets one process at a time work in a folder; it ends with its process, however that ends."""

from __future__ import annotations

import json
import os
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rotoscope.errors import RunError
from rotoscope.results.files import held_by_another


class FolderLock:
    """The lock on a folder, in a file that names the process that holds it."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.folder = file, folder
        self._close: Callable[[], object] | None = None
        """Closes the file, and with it ends the lock; only where it is held."""

    def check(self) -> None:
        """Raise RunError where another process holds the lock."""
        if self._close is None and self.file.is_file() and not self.file.is_symlink():
            with self.file.open("ab") as opened:
                if not _locked(opened.fileno()):
                    raise RunError(self._holder())

    def take(self) -> None:
        """Take the lock, or raise RunError where another process holds it."""
        if self._close is not None:
            return
        opened = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o644)
        close = weakref.finalize(self, os.close, opened)
        if not _locked(opened):
            close()
            raise RunError(self._holder())
        os.truncate(opened, 0)
        os.write(opened, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode())
        self._close = close

    def release(self) -> None:
        """Let others work there."""
        if self._close is not None:
            with suppress(OSError):  # a file that nobody holds does no harm
                self.file.unlink(missing_ok=True)
            self._close()
            self._close = None

    def _holder(self) -> str:
        try:
            holder = json.loads(self.file.read_text(encoding="utf-8"))
            name = f" (process {holder['process']} on {holder['host']})"
        except (OSError, ValueError, KeyError, TypeError):
            name = ""
        return f"another rotoscope{name} is at work in {self.folder}; wait for it, or choose another --out"


def _locked(file: int) -> bool:
    """Lock an open file, unless another process has."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two processes on one folder are not noticed
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return not held_by_another(problem)
    return True
