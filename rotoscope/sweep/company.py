"""Who is at work in a sweep's folder: one driver, or one for each part of it.

The lock is an open file, which the driver's processes hold, too: a new driver waits until the last process of a killed one is
gone, and never meets it in an item's folder.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rotoscope.errors import RunError
from rotoscope.results.files import disk_errors, held_by_another, make_folder

LOCK, TABLES = ".sweep.lock", ".tables.lock"
WAIT_S, SHARE_S, LOOK_S = 60.0, 2.0, 0.05
"""How long the processes of a driver that is gone are waited for, how long drivers of parts that begin at the same moment wait for
each other, and how often all of them look."""


@contextmanager
def only_driver(folder: Path, part: tuple[int, int]) -> Iterator[tuple[int, ...]]:
    """Be the only driver of a sweep, or of a part of it; gives the open files that its processes hold with it.

    A driver of all items is alone. Drivers of parts may meet those of other parts, if they have cut the sweep into as many.
    """
    first, parts = part
    with disk_errors(folder):
        make_folder(folder)
    whole = _Lock(folder / LOCK)
    locks = [whole]
    try:
        if parts == 1:
            whole.take(folder, parts)
        else:
            locks.append(_Lock(folder / f"{LOCK}-{first}-of-{parts}"))
            whole.take(folder, parts, shared=True)
            locks[-1].take(folder, parts)
        yield tuple(lock.file for lock in locks)
    finally:
        for lock in locks[::-1]:
            lock.close()


@contextmanager
def writing_tables(folder: Path) -> Iterator[None]:
    """Only one driver at a time writes the tables of the whole sweep; the others wait for it."""
    lock = _Lock(folder / TABLES)
    try:
        lock.wait()
        yield
    finally:
        lock.close()


class _Lock:
    def __init__(self, path: Path) -> None:
        with disk_errors(path):
            self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def take(self, folder: Path, parts: int, *, shared: bool = False) -> None:
        """Take the lock; where somebody has it who lives, refuse."""
        began = time.monotonic()
        while not self._try(parts, shared):
            other, waited = self._other(), time.monotonic() - began
            going = other and not _lives(other)  # its processes are just going, too
            if waited > (WAIT_S if going else SHARE_S if shared else 0.0):
                raise RunError(_company(folder, other))
            time.sleep(LOOK_S)
        if shared:
            other = self._other()
            if other.get("parts") != parts:
                raise RunError(
                    f"{_company(folder, other)}; it has cut the sweep into {other.get('parts')} parts, not into {parts}"
                )

    def _try(self, parts: int, shared: bool) -> bool:
        """Alone if possible: then say who we are; else, with others, if that will do."""
        if _locked(self.file, alone=True):
            said = {"process": os.getpid(), "host": socket.gethostname(), "parts": parts}
            os.truncate(self.file, 0)
            os.pwrite(self.file, json.dumps(said).encode(), 0)
            return not shared or _locked(self.file, alone=False)
        return shared and _locked(self.file, alone=False)

    def wait(self) -> None:
        while not _locked(self.file, alone=True):
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Let go. The file stays: whoever is just opening it must find the same one."""
        os.close(self.file)

    def _other(self) -> dict[str, Any]:
        try:
            found = json.loads(os.pread(self.file, 1000, 0))
            return found if isinstance(found, dict) else {}
        except ValueError:
            return {}


def _company(folder: Path, other: dict[str, Any]) -> str:
    name = f" (process {other['process']} on {other['host']})" if {"process", "host"} <= other.keys() else ""
    return f"another sweep{name} is at work in {folder}; wait for it, or choose another --out"


def _lives(other: dict[str, Any]) -> bool:
    """Whether whoever said so is there, as far as that can be told: on another machine it is taken to be."""
    if other.get("host") != socket.gethostname():
        return True
    try:
        return is_alive(int(other["process"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return True


def is_alive(process: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """Killed, and not yet waited for by whoever started it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _locked(file: int, *, alone: bool) -> bool:
    """Lock an open file, with whoever it is handed on to; locks end with the last process that holds it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two drivers on one folder are not noticed
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as problem:
        return not held_by_another(problem)
    return True
