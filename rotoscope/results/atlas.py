"""An atlas: the heads of many models as one data set, to be published, opened, and joined with others.

    DIR/README.md                                       the card, with the front matter that data sets have
    DIR/heads.parquet profiles.parquet statistics.parquet   one row per head, per profile, and per profile and statistic
    DIR/atlas.json                                      schema version and checksums

It is no run: nothing in it says on whose machine, in which folder or on which texts anything was measured. Readers ignore
columns they do not know and refuse a newer major version of the schema.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pandas as pd

from rotoscope import __version__
from rotoscope.errors import RotoscopeError, RunError
from rotoscope.results.atlas_card import card
from rotoscope.results.atlas_columns import KEY, NEEDED, SCHEMA, TABLES
from rotoscope.results.atlas_models import count_models
from rotoscope.results.atlas_place import Placement, place
from rotoscope.results.atlas_types import arrow, stacked, typed
from rotoscope.results.files import (
    CHECKSUM,
    disk_errors,
    plain,
    read_table,
    write_json,
    write_table,
    write_text,
)
from rotoscope.results.record import UPGRADE, described_checksum
from rotoscope.results.replacement import recover_folder, replaced_folder
from rotoscope.results.saved import SavedRun

ATLAS, CARD = "atlas.json", "README.md"
OURS = {ATLAS, CARD, *(f"{name}.parquet" for name in TABLES)}
USUAL_NAME = "An atlas of attention heads"
DESCRIBED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": ("text", lambda value: isinstance(value, str)),
    "license": ("text", lambda value: isinstance(value, str)),
    "left_out": (
        "dictionary of counts",
        lambda value: isinstance(value, dict) and all(type(count) is int for count in value.values()),
    ),
}
"""What `atlas.json` says that is used again, and what it must be."""


class Atlas:
    """The heads of many models on tasks of the same settings, or of several."""

    def __init__(
        self,
        tables: Mapping[str, pd.DataFrame],
        about: Mapping[str, Any] | None = None,
        left_out: Iterable[str] = (),
    ) -> None:
        self.tables = dict(tables)
        self.about = {"name": USUAL_NAME, "license": "unknown", "left_out": {}, **(about or {})}
        """What `atlas.json` says."""
        self.left_out = list(left_out)
        """Sentences about runs that were found and are not in it; only of one that was just made."""

    @property
    def heads(self) -> pd.DataFrame:
        """One row per (profile, layer, head), with model, task and tau in front."""
        return self.tables["heads"]

    @property
    def profiles(self) -> pd.DataFrame:
        """One row per profile: a model on some prompts at one tau."""
        return self.tables["profiles"]

    @property
    def statistics(self) -> pd.DataFrame:
        """One row per profile and statistic, with what the null gives."""
        return self.tables["statistics"]

    @property
    def models(self) -> pd.DataFrame:
        """One row per model, precision and task, with how many profiles there are."""
        by = ["model", "fingerprint", "architecture", "dtype", "task"]
        return self.profiles.groupby(by, sort=True).size().rename("profiles").reset_index()

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read an atlas back; one that is damaged, or written by a newer rotoscope, is refused in a sentence."""
        folder = Path(path)
        about = _description(folder)
        tables = {}
        for name, needed in NEEDED.items():
            file = folder / f"{name}.parquet"
            _check(file, str(about["files"].get(file.name)))
            tables[name] = read_table(file)
            missing = [column for column in needed if column not in tables[name]]
            if missing:
                raise RunError(
                    f"{file} is damaged (it has no column '{missing[0]}'); fetch or make the atlas again"
                )
            try:
                tables[name] = typed(name, tables[name])
            except RunError as problem:
                raise RunError(f"{file} is damaged ({problem}); fetch or make the atlas again") from problem
        return cls(tables, about)

    def save(
        self, path: str | Path, *, name: str | None = None, license: str | None = None, overwrite: bool = False
    ) -> Path:
        """Write the atlas as a folder, whole or not at all; `license` is what others may do with it, as data sets say it."""
        out = Path(path)
        check_place(out, overwrite=overwrite)
        tables = {table: typed(table, rows) for table, rows in self.tables.items()}
        about = {
            "schema": SCHEMA,
            "name": name or self.about["name"],
            "license": license or self.about["license"],
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "rotoscope": __version__,
            "left_out": self.about["left_out"],
        }
        real = Path(os.path.abspath(out))
        with disk_errors(out), replaced_folder(real, _is_atlas) as scratch:
            for table, rows in tables.items():
                write_table(scratch / f"{table}.parquet", arrow(table, rows))
            about["files"] = {file.name: sha256(file) for file in sorted(scratch.iterdir())}
            write_text(scratch / CARD, card(tables, about))
            write_json(scratch / ATLAS, about | {CHECKSUM: described_checksum(about)})
            _refuse_place(out, overwrite=overwrite)  # it took a while
        return out

    def join(self, *others: Atlas) -> Atlas:
        """This atlas and others as one: what is in several is taken from the first that has it, and `left_out` says so."""
        parts = {name: [table] for name, table in self.tables.items()}
        known, left_out = set(self.profiles[KEY]), list[str]()
        for other in others:
            again = other.profiles[KEY].isin(known)
            for row in other.profiles[again].itertuples():
                left_out.append(f"{row.model} on {row.task} (seed {row.seed}) is in both; the first is kept")
            new = set(other.profiles[KEY]) - known
            known |= new
            for name, table in other.tables.items():
                parts.setdefault(name, []).append(table[table[KEY].isin(new)])
        tables = {name: stacked(name, tables) for name, tables in parts.items()}
        counts = _sum(self.about["left_out"], {"the same twice": len(left_out)} if left_out else {})
        for other in others:
            counts = _sum(counts, other.about["left_out"])
        licenses = {self.about["license"], *(other.about["license"] for other in others)}
        both = self.about["license"] if len(licenses) == 1 else "unknown"
        return Atlas(tables, {"name": self.about["name"], "license": both, "left_out": counts}, left_out)

    def place(self, profile: SavedRun, tau: float | None = None) -> Placement:
        """Where every statistic of a profile lies among the other models of the atlas on the same task with the same settings."""
        return place(self.profiles, self.statistics, profile, tau)

    def __repr__(self) -> str:
        found = self.profiles
        return (
            f"Atlas({self.about['name']!r}: {count_models(found)} models, {len(found)} profiles, {len(self.heads)} "
            f"heads, tasks {', '.join(sorted(found['task'].unique()))})"
        )


def sha256(file: Path) -> str:
    """Of a file's bytes, as `sha256sum` prints it."""
    found = hashlib.sha256()
    with plain(file).open("rb") as content:
        while part := content.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def check_place(out: Path, *, overwrite: bool) -> None:
    """Refuse to write where something else is, or where nobody said that an atlas may be replaced."""
    with disk_errors(out):
        recover_folder(Path(os.path.abspath(out)), _is_atlas)
    _refuse_place(out, overwrite=overwrite)


def _refuse_place(out: Path, *, overwrite: bool) -> None:
    if not os.path.lexists(out):
        return
    if out.is_dir() and not out.is_symlink() and not any(out.iterdir()):
        return
    if not _is_atlas(out):
        raise RunError(f"{out} exists and is no atlas, or holds something else, so nothing is written there")
    if not overwrite:
        raise RotoscopeError(
            f"{out} holds an atlas already; choose another --out, or --overwrite to replace it"
        )


def _is_atlas(folder: Path) -> bool:
    """Whether a folder holds an atlas and nothing else."""
    names = {file.name for file in folder.iterdir()} if folder.is_dir() and not folder.is_symlink() else set()
    return ATLAS in names and names <= OURS


def _description(folder: Path) -> dict[str, Any]:
    """`atlas.json`, checked."""
    again = "fetch or make the atlas again"
    try:
        about = json.loads(plain(folder / ATLAS).read_text(encoding="utf-8"))
        schema, files = str(about["schema"]), about["files"]
        major = re.match(r"\d+", schema)
    except FileNotFoundError as missing:
        raise RunError(f"{folder} is no atlas: it has no {ATLAS}") from missing
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as damage:
        raise RunError(f"{folder / ATLAS} is damaged ({damage}); {again}") from damage
    if major is not None and int(major.group()) > int(SCHEMA.split(".")[0]):
        raise RunError(
            f"{folder} was written by a newer rotoscope (schema {schema}, this one reads {SCHEMA}); {UPGRADE}"
        )
    if major is None or not isinstance(files, dict) or about.get(CHECKSUM) != described_checksum(about):
        raise RunError(f"{folder / ATLAS} is damaged (it is not what was written); {again}")
    for name, (kind, right) in DESCRIBED.items():
        if name in about and not right(about[name]):
            raise RunError(f"{folder / ATLAS} is damaged (its '{name}' is no {kind}); {again}")
    return {key: value for key, value in about.items() if key != CHECKSUM}


def _check(file: Path, expected: str) -> None:
    """Refuse a table that is not what was written."""
    again = "fetch or make the atlas again"
    try:
        found = sha256(file)
    except OSError as problem:
        raise RunError(f"{file} cannot be read ({problem.strerror or problem}); {again}") from problem
    if found != expected:
        raise RunError(f"{file} is damaged (it is not what was written); {again}")


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in {**first, **second}}
