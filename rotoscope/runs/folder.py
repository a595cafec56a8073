"""A lock that lets one process at a time work in a folder; it ends with its process, however that ends."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rotoscope.errors import RunError
from rotoscope.runs.files import MANIFEST, SCRATCH, disk_errors, listed, make_folder, start_manifest
from rotoscope.runs.record import RUN, RunRecord, settings_hash

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


# Replace what is on disk so that one whole version of it is there at every moment.
#
# The new version is written beside the old one, the old one is moved aside, the new one is renamed into place, and the old one is
# removed last. A failing rename is undone at once; what a killed process left is put right by the next call.


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


# The folder of a run: what in it is ours, who is at work in it, and how the run in it is replaced.
#
# Whatever rotoscope writes into a run folder is listed in its manifest, so that replacing a run removes that and nothing else.
# A run that is replaced is first moved aside, within its folder, and removed when the new one is finished: until then the last
# whole run is there.


PIECES, LOG, LOCK, ASIDE = "pieces", "metrics.jsonl", ".lock", ".replaced"
SCRATCH_CHECKPOINTS = ".checkpoint-*.part"
"""Folders in which checkpoints are written before they have their name."""


class Place:
    """A folder for one run, which may be there already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._aside = folder / ASIDE
        """Where the run is that is being replaced."""
        self._lock = FolderLock(folder / LOCK, folder)

    def check(self, now: RunRecord, *, overwrite: bool) -> RunRecord | None:
        """The run with these settings that is there already; a place where nothing may be written is refused."""
        with disk_errors(self.folder):
            self._lock.check()
        if not self.is_ours():
            if os.path.lexists(self.folder) and not _is_empty(self.folder):
                raise RunError(f"{self.folder} exists and is no run folder, so nothing is written there")
            return None
        self._recover(now)
        if overwrite:
            before = self._record()
            return before if before is not None and goes_on(before, now) else None
        if not (self.folder / RUN).exists():
            return None
        before = RunRecord.read(self.folder)
        if is_same(before, now):
            return before
        if not before.complete and self.is_bare():
            return None
        difference = "of another model" if differs_in_model(before, now) else "made with other settings"
        raise RunError(
            f"{self.folder} holds a run {difference} ({differences(before, now)}); "
            "choose another --out, or --overwrite to replace it"
            + (f"; the run that it was to replace is whole in {self._aside}" if self._aside.is_dir() else "")
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
            self._lock.take()

    def leave(self) -> None:
        """Let others work here."""
        self._lock.release()

    def tidy(self) -> None:
        """Drop what a finished run no longer needs, which whoever was killed at its very end has left here."""
        for folder in (self.folder / PIECES, self._aside, *self.folder.glob(SCRATCH_CHECKPOINTS)):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (self.folder / LOCK, *self.folder.rglob(SCRATCH)):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    def replace(self, record: RunRecord) -> None:
        """Begin a run here in place of the one that is here, if any."""
        self.begin()
        with disk_errors(self.folder):
            before = self._record()
            is_whole = before is not None and before.complete
            if is_whole and self._aside.is_dir():
                shutil.rmtree(self._aside)  # left by whoever was killed at the very end of the run that is here
            try:
                if self._aside.is_dir():  # the last whole run: what is here has come to no end
                    is_whole = True
                    self._remove(self.files())
                elif self.is_ours():
                    self._move_aside()
                start_manifest(self.folder)
                record.write(self.folder)
                if not is_whole:  # otherwise it is kept until the new run is finished
                    shutil.rmtree(self._aside, ignore_errors=True)
            except BaseException as problem:
                replacing = self._aside.is_dir()
                self.restore()
                if replacing and isinstance(problem, OSError | RunError):
                    reason = getattr(problem, "strerror", None) or problem
                    raise RunError(
                        f"the run in {self.folder} was not replaced ({reason}); the old one is whole in {self.folder}"
                    ) from problem
                raise

    def _move_aside(self) -> None:
        files = self.files()
        if not _is_file(self.folder / MANIFEST):  # so that what is written from now on can be told from it
            start_manifest(self.folder, (file.relative_to(self.folder).as_posix() for file in files))
            files.append(self.folder / MANIFEST)
        move_all((file, self._aside / file.relative_to(self.folder)) for file in files)
        self._remove_empty(files)

    def restore(self) -> None:
        """Put the run back that was moved aside, in place of what was begun instead of it."""
        if not self._aside.is_dir():
            return
        with disk_errors(self.folder):
            if _is_file(self._aside / MANIFEST) and _is_file(self.folder / MANIFEST):
                self._remove(self.files())  # both manifests: all of the old run is aside
            self._remove(self._scratch_files())
            files = [file for file in self._aside.rglob("*") if file.is_file()]
            last = {MANIFEST: 1, RUN: 2}  # without these the run is not whole
            files.sort(key=lambda file: last.get(file.name, 0))
            try:
                move_all((file, self.folder / file.relative_to(self._aside)) for file in files)
            except OSError as problem:
                raise RunError(
                    f"the run in {self.folder} was not replaced, and cannot be put back ({problem.strerror or problem}): it is "
                    f"in {self._aside}, and the next command that writes to {self.folder} puts it back"
                ) from problem
            shutil.rmtree(self._aside, ignore_errors=True)

    def _recover(self, now: RunRecord) -> None:
        """Put a run back that was moved aside for another one that never came to anything."""
        if not self._aside.is_dir():
            return
        with disk_errors(self.folder):
            self._lock.take()
        record = self._record()
        nothing_made = (
            record is not None and not record.complete and self.is_bare() and not is_same(record, now)
        )
        try:
            if nothing_made or not (self.folder / RUN).exists():
                self.restore()
        finally:
            self._lock.release()

    def _remove(self, files: Iterable[Path]) -> None:
        files = list(files)
        for file in files:
            file.unlink(missing_ok=True)
        self._remove_empty(files)

    def _remove_empty(self, files: Iterable[Path]) -> None:
        """Remove the folders that hold nothing now that these files are gone."""
        for folder in {parent for file in files for parent in file.relative_to(self.folder).parents}:
            _remove_if_empty(self.folder / folder, self.folder)

    def files(self) -> list[Path]:
        """What rotoscope wrote here, the run's description first."""
        names = [RUN, *listed(self.folder), MANIFEST]
        if not _is_file(self.folder / MANIFEST) and (record := self._record()) is not None:
            names += record.files
        files = [self.folder / name for name in dict.fromkeys(names) if name != LOCK]
        return [file for file in files if _is_file(file)] + self._scratch_files()

    def _scratch_files(self) -> list[Path]:
        """What was being written here when a process was killed."""
        files = sorted(self.folder.rglob(SCRATCH))
        return [file for file in files if _is_file(file) and not file.is_relative_to(self._aside)]

    def _record(self) -> RunRecord | None:
        """What `run.json` says, where it is one of ours and whole."""
        try:
            record = RunRecord.read(self.folder)
        except RunError:
            return None
        return record if record.is_own else None


def is_same(before: RunRecord, now: RunRecord) -> bool:
    """Whether both are of one kind and have the same settings."""
    return before.kind == now.kind and settings_hash(before.settings) == settings_hash(now.settings)


def goes_on(before: RunRecord, now: RunRecord) -> bool:
    """Whether an unfinished run is what is asked for: the same settings, made by the same versions."""
    return is_same(before, now) and not before.complete and not before.cannot_go_on


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
    flattened: dict[str, Any] = {}
    for key, value in settings.items():
        flattened |= flat(value, f"{front}{key}.") if isinstance(value, dict) else {front + key: value}
    return flattened


def _is_file(path: Path) -> bool:
    """A plain file: no link, no device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_empty(folder: Path) -> bool:
    """A folder with nothing in it but what a run leaves that was killed before it began."""
    try:
        return folder.is_dir() and all(entry.name == LOCK or entry.match(SCRATCH) for entry in folder.iterdir())
    except OSError as problem:
        raise RunError(f"{folder} cannot be looked into ({problem.strerror or problem})") from problem


def _remove_if_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_relative_to(root):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
