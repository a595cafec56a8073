"""Folders to work in, of which a killed process leaves nothing for long.

Whoever works in one holds a lock on it, and a lock ends with its process, however that ends. So the next to come can tell
what was left behind from what is still at work.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: folders that nobody has touched for a day were left behind
    fcntl = None  # type: ignore[assignment]

SCRATCH = ".converting-"
DAY = 86400.0


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A folder to work in, held as long as that lasts; those that killed processes left are removed first."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as holding:
        with _held(folder, wait=True):  # so that nobody finds the new folder before it is held
            _remove_leftovers(folder)
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
            holding.callback(shutil.rmtree, scratch, ignore_errors=True)
            holding.enter_context(_held(scratch))
        yield scratch


def _remove_leftovers(folder: Path) -> None:
    for left in folder.glob(f"{SCRATCH}*"):
        with suppress(OSError), _held(left) as free:
            if free and (fcntl is not None or time.time() - left.stat().st_mtime > DAY):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _held(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a folder for as long as this lasts; False where another process does and we do not wait for it."""
    if fcntl is None:
        yield True
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except OSError:
            held = False
        yield held
    finally:
        os.close(place)
