"""Which drivers may work on a sweep at the same time: one for all items, or one for each part of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rotoscope.runs.files import disk_errors, make_folder
from rotoscope.runs.folder import FOREVER, FolderLock

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
