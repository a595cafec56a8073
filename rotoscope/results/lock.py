"""A lock that lets one process at a time work in a folder; it ends with its process, however that ends."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from rotoscope.errors import RunError

NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without locks, where two processes on one folder are not noticed."""
FOREVER = -1.0


class FolderLock:
    """The lock on a folder, in a file that is removed when the lock is released."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.folder = file, folder
        self._lock = FileLock(file.absolute(), thread_local=False, is_singleton=True, fallback_to_soft=False)

    def check(self, timeout: float = 0.0) -> None:
        """Raise RunError where another process still holds the lock after so many seconds."""
        if self.file.is_file() and not self.file.is_symlink() and not self._lock.is_locked:
            self.take(timeout)
            self._lock.release(force=True)

    def take(self, timeout: float = 0.0) -> None:
        """Take the lock, or raise RunError where another process still holds it after so many seconds."""
        if self._lock.is_locked:
            return
        try:
            self._lock.acquire(timeout)
        except Timeout as busy:
            raise RunError(
                f"another rotoscope is at work in {self.folder}; wait for it, or choose another --out"
            ) from busy
        except OSError as problem:
            if problem.errno not in NO_LOCKS:
                raise

    def release(self) -> None:
        """Let other processes work there."""
        if self._lock.is_locked:
            with suppress(OSError):  # a file without a lock does no harm
                self.file.unlink(missing_ok=True)
            self._lock.release(force=True)
