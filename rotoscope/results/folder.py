"""A run is a folder: `run.json`, Parquet tables, and pieces while it is going.

Every file is written under a temporary name and renamed, so a reader never meets half a file. Pieces are keyed
by a hash of the settings: a run that was killed goes on where it was, and one made with other settings is
never mixed in.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rotoscope import __version__
from rotoscope.errors import RunError

__all__ = ["RunFolder", "read_run", "read_table", "settings_hash", "versions", "write_json", "write_table"]

SCHEMA = "1.0"
RUN, PIECES = "run.json", "pieces"


def settings_hash(settings: dict[str, Any]) -> str:
    """The same settings, or not the same."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """What computed a result."""
    packages = ("torch", "transformers", "numpy", "pandas", "pyarrow")
    found = {"python": platform.python_version(), "rotoscope": __version__}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    def write(file: Path) -> None:
        file.write_text(json.dumps(content, indent=2, default=str, allow_nan=False) + "\n", encoding="utf-8")

    replace_file(path, write)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Parquet with zstd: dictionaries on index columns, byte-stream-split on numbers."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    floats = [f.name for f in arrow.schema if pa.types.is_floating(f.type)]
    others = [name for name in arrow.column_names if name not in floats]

    def write(file: Path) -> None:
        pq.write_table(
            arrow, file, compression="zstd", use_dictionary=others, use_byte_stream_split=floats or False
        )

    replace_file(path, write)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, then put it in place at once."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    with saying_why(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(scratch)
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def saying_why(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal into a sentence."""
    try:
        yield
    except OSError as problem:
        if problem.errno == errno.ENOSPC or "No space left" in str(problem):
            raise RunError(
                f"the disk is full: {path} was not written; what was finished before is kept, and the same "
                "command goes on from there once there is room"
            ) from problem
        raise RunError(f"{path} cannot be written ({problem.strerror or problem})") from problem


def read_table(path: Path) -> pd.DataFrame:
    try:
        return pq.read_table(path).to_pandas()
    except FileNotFoundError as missing:
        raise RunError(f"the run is incomplete: {path.name} is missing in {path.parent}") from missing
    except (pa.ArrowInvalid, OSError) as damage:
        raise RunError(f"{path} is damaged ({damage}); make the run again") from damage


def read_run(folder: Path) -> dict[str, Any]:
    """The description of a finished or unfinished run."""
    if not folder.is_dir():
        raise RunError(f"no such run folder: {folder}")
    file = folder / RUN
    try:
        run: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        major = int(str(run["schema"]).split(".")[0])
    except FileNotFoundError as missing:
        raise RunError(f"{folder} is no run folder: it has no {RUN}") from missing
    except (ValueError, KeyError, TypeError, RecursionError) as damage:
        raise RunError(f"{file} is damaged ({damage})") from damage
    if major > int(SCHEMA.split(".")[0]):
        raise RunError(
            f"{folder} was written by a newer rotoscope (schema {run['schema']}, this one reads {SCHEMA}); "
            "upgrade with: pip install -U rotoscope"
        )
    return run


def _flat(settings: dict[str, Any], front: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{front}{key}.") if isinstance(value, dict) else {front + key: value}
    return flat


class RunFolder:
    """A run being written."""

    def __init__(
        self, path: str | Path, kind: str, settings: dict[str, Any], *, overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        self.kind = kind
        self.settings = settings
        self.hash = settings_hash(settings)
        self.overwrite = overwrite
        self.pieces = self.path / PIECES / self.hash
        there = (self.path / RUN).exists()
        if not there and self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise RunError(f"{self.path} exists and is no run folder, so nothing is written there")
        if there and not overwrite:
            self._check(read_run(self.path))

    def begin(self) -> None:
        """Make the folder, or clear the run that is to be replaced; nothing is touched before this."""
        if self.overwrite:
            shutil.rmtree(self.path, ignore_errors=True)
        with saying_why(self.path):
            self.pieces.mkdir(parents=True, exist_ok=True)
        if not (self.path / RUN).exists():
            self.describe(complete=False)

    def _check(self, run: dict[str, Any]) -> None:
        if run.get("kind") != self.kind or run.get("settings_hash") != self.hash:
            before = _flat({**run.get("settings", {}), "kind": run.get("kind")})
            now = _flat({**self.settings, "kind": self.kind})
            changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
            changed.sort(key=lambda key: (key.endswith("_hash"), key))
            said = "; ".join(f"{key}: {before.get(key)} there, {now.get(key)} now" for key in changed[:3])
            raise RunError(
                f"{self.path} holds a run made with other settings ({said}); "
                "choose another --out, or --overwrite to replace it"
            )

    @property
    def complete(self) -> bool:
        """Whether there is a finished run with these settings that is to be kept."""
        if self.overwrite or not (self.path / RUN).exists():
            return False
        return bool(read_run(self.path).get("complete"))

    def describe(self, complete: bool, **more: Any) -> dict[str, Any]:
        """Write `run.json`: what was run with every setting, on what, with which versions."""
        run = {
            "schema": SCHEMA,
            "kind": self.kind,
            "complete": complete,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": self.settings,
            "settings_hash": self.hash,
            "versions": versions(),
            **more,
        }
        write_json(self.path / RUN, run)
        return run

    def piece(self, name: str) -> Path:
        return self.pieces / name

    def finish(self, tables: dict[str, pd.DataFrame], **more: Any) -> dict[str, Any]:
        """Write the whole tables and the final description, then drop the pieces."""
        for name, table in tables.items():
            write_table(self.path / f"{name}.parquet", table)
        run = self.describe(complete=True, tables=sorted(tables), **more)
        shutil.rmtree(self.path / PIECES, ignore_errors=True)
        return run
