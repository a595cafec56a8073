"""Replace what is on disk so that one whole version of it is there at every moment.

The new version is written beside the old one, the old one is moved aside, the new one is renamed into place, and the old one is
removed last. A failing rename is undone at once; what a killed process left is put right by the next call.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rotoscope.errors import RunError
from rotoscope.results.files import make_folder
from rotoscope.results.lock import FolderLock


def move_all(moves: Iterable[tuple[Path, Path]]) -> None:
    """Rename every source to its target, or none: where one fails, those before it are renamed back."""
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            make_folder(target.parent)
            os.replace(source, target)
            done.append((source, target))
    except BaseException:
        for source, target in reversed(done):
            os.replace(target, source)
        raise


def recover_folder(out: Path, is_ours: Callable[[Path], bool]) -> None:
    """Put right what a killed replacement of a folder left beside it."""
    if any(map(os.path.lexists, (_scratch(out), _aside(out)))):
        lock = _lock(out)
        lock.take()
        try:
            _recover(out, is_ours)
        finally:
            lock.release()


@contextmanager
def replaced_folder(out: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `out` when the block ends without an error.

    `is_ours` says whether a folder is of the kind that is written: nothing else that lies aside is restored or removed.
    """
    make_folder(out.parent)
    scratch, aside, lock = _scratch(out), _aside(out), _lock(out)
    lock.take()
    try:
        _recover(out, is_ours)
        scratch.mkdir()
        with _named_after(out, scratch):
            yield scratch
        _put_in_place(scratch, aside, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        lock.release()


@contextmanager
def _named_after(out: Path, scratch: Path) -> Iterator[None]:
    """Name the folder in errors, not the hidden one that nobody has heard of."""
    try:
        yield
    except RunError as problem:
        if str(scratch) not in str(problem):
            raise
        old = f"; the old one is whole in {out}" if os.path.lexists(out) else ""
        raise RunError(str(problem).replace(str(scratch), str(out)) + old) from problem


def _put_in_place(scratch: Path, aside: Path, out: Path) -> None:
    if not os.path.lexists(out):
        move_all([(scratch, out)])
        return
    try:
        move_all([(out, aside), (scratch, out)])
    except OSError as problem:
        old = out if os.path.lexists(out) else aside
        raise RunError(
            f"{out} was not replaced ({problem.strerror or problem}); the old one is whole in {old}"
        ) from problem
    _drop(aside, scratch)


def _drop(aside: Path, scratch: Path) -> None:
    """Remove an old version that is no longer needed; half of it must never lie where a whole one is looked for."""
    with suppress(OSError):  # then the next call removes it
        move_all([(aside, scratch)])
        shutil.rmtree(scratch)


def _recover(out: Path, is_ours: Callable[[Path], bool]) -> None:
    scratch, aside = _scratch(out), _aside(out)
    if scratch.is_dir():
        shutil.rmtree(scratch)
    if aside.is_dir() and (is_ours(aside) or not any(aside.iterdir())):
        if os.path.lexists(out):
            _drop(aside, scratch)
        else:
            move_all([(aside, out)])


def _scratch(out: Path) -> Path:
    return out.with_name(f".{out.name}.part")


def _aside(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")


def _lock(out: Path) -> FolderLock:
    return FolderLock(out.with_name(f".{out.name}.lock"), out)
