"""Run folders on their way: packed as bytes, or written to storage that all nodes see, a path or a URL that fsspec knows."""

from __future__ import annotations

import glob
import io
import os
import re
import shutil
import socket
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.results.files import disk_errors, make_folder
from rotoscope.results.items import ITEM, LOG_END
from rotoscope.results.record import RUN
from rotoscope.settings import SweepSettings
from rotoscope.sweep.company import is_alive


def packed(folder: Path) -> bytes:
    """A folder as bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, arcname=".")
    return made.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """The folder again, whole or not at all; what is there of an earlier try makes room."""
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    with disk_errors(folder):
        make_folder(folder.parent)
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
                archive.extractall(scratch, filter="data")  # nothing outside, no links to elsewhere, no devices
            if folder.exists():
                shutil.rmtree(folder)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        folder.with_name(folder.name + LOG_END).unlink(missing_ok=True)


class Storage:
    """A place for run folders that is no folder of this machine, or one that all machines see."""

    def __init__(self, address: str) -> None:
        self.address = address if "://" in address else str(Path(address).expanduser().absolute())
        try:
            from fsspec.core import url_to_fs

            self.system: Any
            self.system, self.root = url_to_fs(self.address)
        except (ImportError, ValueError, OSError) as problem:
            raise RotoscopeError(
                f"storage '{address}' cannot be used ({problem}); give a folder, or a URL that fsspec knows"
            ) from problem

    def check(self) -> None:
        """Refuse a place that cannot be written to, before anything long starts."""
        try:
            self.system.makedirs(self.root, exist_ok=True)
        except Exception as problem:  # whatever its library raises
            raise RotoscopeError(f"storage '{self.address}' cannot be used ({problem})") from problem

    def put(self, folder: Path) -> None:
        """Write a folder there, its note last: without it, it is not finished."""
        target = f"{self.root}/{folder.name}"
        if self.system.exists(f"{target}/{ITEM}"):
            self.system.rm(f"{target}/{ITEM}")
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.name != ITEM]
        for file in files:
            where = f"{target}/{file.relative_to(folder).as_posix()}"
            self.system.makedirs(where.rpartition("/")[0], exist_ok=True)
            self.system.put_file(str(file), where)
        self.system.put_file(str(folder / ITEM), f"{target}/{ITEM}")

    def get(self, name: str, folder: Path, *, only: tuple[str, ...] = ()) -> None:
        """Bring a folder here, or only the files of it that have such ends; nothing where there is none."""
        target = f"{self.root}/{name}"
        found = self.system.find(target) if self.system.exists(target) else []
        begin = self.system._strip_protocol(target).rstrip("/") + "/"
        for where in found:
            relative = str(where).removeprefix(begin)
            file = folder / relative
            if (not only or relative.endswith(only)) and file.resolve().is_relative_to(folder.resolve()):
                file.parent.mkdir(parents=True, exist_ok=True)
                self.system.get_file(where, str(file))


@dataclass(frozen=True)
class Kept:
    """Where the items of a sweep are: in its folder, or in storage, of which some files are brought to a folder of ours."""

    folder: Path
    storage: Storage | None = None

    def place(self, name: str) -> Path:
        """The folder of an item, or what of it was brought."""
        return self.folder / name

    def bring(self, names: Iterable[str], only: tuple[str, ...]) -> None:
        """Bring the files of some items that have such ends."""
        if self.storage is not None:
            for name in names:
                self.storage.get(name, self.place(name), only=only)


@contextmanager
def where_items_are(folder: Path, names: Sequence[str], wanted: SweepSettings) -> Iterator[Kept]:
    """Where the items of a sweep are, with the notes of some of them; what is brought from storage is gone afterwards."""
    if wanted.storage is None:
        yield Kept(folder)
        return
    storage = Storage(wanted.storage)
    if not wanted.dry_run:
        storage.check()
    with tempfile.TemporaryDirectory(prefix="rotoscope-sweep-") as copies:
        kept = Kept(Path(copies), storage)
        kept.bring(names, (ITEM, RUN))
        yield kept


def public_address(address: str) -> str:
    """An address of storage without the name and the password that it may hold."""
    return re.sub(r"//[^/@]*@", "//", address)


@contextmanager
def scratch_for(name: str) -> Iterator[Path]:
    """A folder to make an item in, gone afterwards; those of processes of this machine that were killed are gone, too."""
    work, front = Path(tempfile.gettempdir()), f"rotoscope-item-{socket.gethostname()}-"
    for old in work.glob(f"{glob.escape(front)}*"):
        if old.name.removeprefix(front).isdigit() and not is_alive(int(old.name.removeprefix(front))):
            shutil.rmtree(old, ignore_errors=True)
    place = work / f"{front}{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield place / name
    finally:
        shutil.rmtree(place, ignore_errors=True)
