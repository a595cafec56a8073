"""The folder of a run: what in it is ours, who is at work in it, and how the run in it is replaced.

Whatever rotoscope writes into a run folder is listed in its manifest, so that replacing a run removes that and nothing else.
A run that is replaced is first moved aside, within its folder, and removed when the new one has begun: whoever is
killed in between finds the old run again.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rotoscope.errors import RunError
from rotoscope.results.files import (
    MANIFEST,
    SCRATCH,
    disk_errors,
    held_by_another,
    listed,
    make_folder,
    start_manifest,
)
from rotoscope.results.record import RUN, RunRecord, settings_hash

PIECES, LOG, LOCK, ASIDE = "pieces", "metrics.jsonl", ".lock", ".replaced"
SCRATCH_CHECKPOINTS = ".checkpoint-*.part"
"""Folders in which checkpoints are written before they have their name."""
OLD_CHECKPOINTS = "checkpoint*"
"""How weights are called that runs without a manifest left beside their tables."""


class Place:
    """A folder for one run, which may be there already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: Callable[[], object] | None = None
        """Lets go of the lock that is held."""

    def check(self, now: RunRecord, *, overwrite: bool) -> RunRecord | None:
        """The run with these settings that is there already; a place where nothing may be written is refused."""
        self._refuse_company()
        if not self.is_ours():
            if os.path.lexists(self.folder) and not _is_empty(self.folder):
                raise RunError(f"{self.folder} exists and is no run folder, so nothing is written there")
            return None
        self._undo_replacing()
        if overwrite:
            before = self._record()
            return before if before is not None and goes_on(before, now) else None
        if not (self.folder / RUN).exists():
            return None
        before = RunRecord.read(self.folder)
        if before.kind == now.kind and settings_hash(before.settings) == settings_hash(now.settings):
            return before
        if not before.complete and self.is_bare():
            return None
        what = "of another model" if differs_in_model(before, now) else "made with other settings"
        raise RunError(
            f"{self.folder} holds a run {what} ({differences(before, now)}); "
            "choose another --out, or --overwrite to replace it"
        )

    def is_ours(self) -> bool:
        """Whether a run of rotoscope is here, begun, finished, damaged or just being replaced."""
        marks = (MANIFEST, f"{ASIDE}/{MANIFEST}", f"{ASIDE}/{RUN}")
        return any(_is_file(self.folder / mark) for mark in marks) or self._record() is not None

    def is_bare(self) -> bool:
        """Whether the run here has come to nothing yet: nothing would be lost with it."""
        return not any(file.is_file() for file in (self.folder / PIECES).rglob("*"))

    def begin(self) -> None:
        """Make the folder and be the only one at work in it."""
        with disk_errors(self.folder):
            make_folder(self.folder)
            if self._lock is None:
                file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
                close = weakref.finalize(self, os.close, file)
                if not _taken(file):
                    close()
                    raise RunError(self._company())
                os.truncate(file, 0)
                os.write(file, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode())
                self._lock = close

    def leave(self) -> None:
        """Let others work here."""
        if self._lock is not None:
            (self.folder / LOCK).unlink(missing_ok=True)
            self._lock()
            self._lock = None

    def tidy(self) -> None:
        """Drop what a finished run no longer needs, which whoever was killed at its very end has left here."""
        for folder in (self.folder / PIECES, self.folder / ASIDE, *self.folder.glob(SCRATCH_CHECKPOINTS)):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.folder / LOCK, *self.folder.rglob(SCRATCH)):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def replace(self, record: RunRecord) -> None:
        """Begin a run here in place of the one that is here, if any."""
        self.begin()
        with disk_errors(self.folder):
            ours = self.files() if self.is_ours() else []
            for file in [one for one in ours if one.name != LOCK]:
                aside = self.folder / ASIDE / file.relative_to(self.folder)
                make_folder(aside.parent)
                file.replace(aside)
            for folder in {parent for file in ours for parent in file.relative_to(self.folder).parents}:
                _remove_if_empty(self.folder / folder, self.folder)
            start_manifest(self.folder)
            record.write(self.folder)
            shutil.rmtree(self.folder / ASIDE, ignore_errors=True)

    def _undo_replacing(self) -> None:
        """Put a run back that was moved aside for one that never began."""
        aside = self.folder / ASIDE
        if not aside.is_dir() or (self.folder / RUN).exists():
            return
        with disk_errors(self.folder):
            for file in sorted(aside.rglob("*"), key=lambda one: one.name == RUN):
                if file.is_file():
                    back = self.folder / file.relative_to(aside)
                    make_folder(back.parent)
                    file.replace(back)
            shutil.rmtree(aside, ignore_errors=True)

    def files(self) -> list[Path]:
        """What rotoscope wrote here, the run's description first."""
        names = [RUN, *listed(self.folder), MANIFEST]
        if not _is_file(self.folder / MANIFEST):
            names += self._files_of_old_runs()
        found = [self.folder / name for name in dict.fromkeys(names)]
        found += sorted(self.folder.rglob(SCRATCH))
        return [file for file in found if _is_file(file) and not file.is_relative_to(self.folder / ASIDE)]

    def _files_of_old_runs(self) -> list[str]:
        """What runs wrote before there was a manifest."""
        record = self._record() or RunRecord()
        kept = [*(self.folder / PIECES).rglob("*")]
        for checkpoint in self.folder.glob(OLD_CHECKPOINTS):
            kept += [checkpoint, *checkpoint.rglob("*")]
        tables = [f"{name}.parquet" for name in record.tables]
        return [LOG, *tables, *(file.relative_to(self.folder).as_posix() for file in kept)]

    def _record(self) -> RunRecord | None:
        """What `run.json` says, where it is one of ours and whole."""
        try:
            record = RunRecord.read(self.folder)
        except RunError:
            return None
        return record if record.is_own else None

    def _refuse_company(self) -> None:
        if self._lock is None and _is_file(self.folder / LOCK):
            with disk_errors(self.folder), (self.folder / LOCK).open("ab") as lock:
                if not _taken(lock.fileno()):
                    raise RunError(self._company())

    def _company(self) -> str:
        try:
            other = json.loads((self.folder / LOCK).read_text(encoding="utf-8"))
            name = f" (process {other['process']} on {other['host']})"
        except (OSError, ValueError, KeyError, TypeError):
            name = ""
        return f"another rotoscope{name} is at work in {self.folder}; wait for it, or choose another --out"


def goes_on(before: RunRecord, now: RunRecord) -> bool:
    """Whether an unfinished run is what is asked for: the same settings, made by the same versions."""
    same = before.kind == now.kind and settings_hash(before.settings) == settings_hash(now.settings)
    return same and not before.complete and not before.cannot_go_on


def differs_in_model(before: RunRecord, now: RunRecord) -> bool:
    """Whether two runs have the same name of a model, and not the same model."""
    same_name = before.settings.get("model") == now.settings.get("model")
    return same_name and before.settings.get("fingerprint") != now.settings.get("fingerprint")


def differences(before: RunRecord, now: RunRecord) -> str:
    """The first settings that are not the same, hashes last."""
    old = flat({**before.settings, "kind": before.kind})
    new = flat({**now.settings, "kind": now.kind})
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    changed.sort(key=lambda key: (key.endswith("_hash"), key))
    return "; ".join(f"{key}: {old.get(key)} there, {new.get(key)} now" for key in changed[:3])


def flat(settings: dict[str, Any], front: str = "") -> dict[str, Any]:
    """Settings within settings by their whole name, as `task_settings.seed`."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{front}{key}.") if isinstance(value, dict) else {front + key: value}
    return found


def _is_file(path: Path) -> bool:
    """A plain file: no link, no device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_empty(folder: Path) -> bool:
    """A folder with nothing in it but what a run leaves that was killed before it began."""
    try:
        return folder.is_dir() and all(one.name == LOCK or one.match(SCRATCH) for one in folder.iterdir())
    except OSError as problem:
        raise RunError(f"{folder} cannot be looked into ({problem.strerror or problem})") from problem


def _remove_if_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_relative_to(root):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _taken(file: int) -> bool:
    """Take the lock of an open file; it ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: two processes on one folder are not noticed
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return not held_by_another(problem)
    return True
