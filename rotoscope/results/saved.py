"""What every kind of run has in common: a record, tables, and a folder they come back from."""

from __future__ import annotations

import copy
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Self

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.results.files import checksum, listed, read_table, write_table
from rotoscope.results.place import ASIDE, PIECES, Place
from rotoscope.results.record import RUN, RunRecord

Tables = dict[str, pd.DataFrame]


class SavedRun:
    """A run: `run` is the content of `run.json`, `tables` its Parquet tables by name."""

    kind: ClassVar[str]
    derived: ClassVar[frozenset[str]] = frozenset()
    """Tables that are written for other tools and made again from the rest when needed."""

    def __init__(self, run: RunRecord, tables: Tables) -> None:
        self.run = run
        self.tables = tables

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a run folder of this kind back."""
        folder = Path(path)
        run = RunRecord.read(folder)
        if run.kind != cls.kind:
            raise RunError(f"{folder} holds a run of kind '{run.kind}', not '{cls.kind}'")
        if not run.complete:
            replaced = folder / ASIDE
            raise RunError(
                f"{folder} is not finished; run the same command again and it goes on where it was "
                f"(what there is so far: rotoscope report {folder})"
                + (f"; the run that it replaces is in {replaced} until then" if replaced.is_dir() else "")
            )
        return cls.with_tables(folder, run)

    @classmethod
    def with_tables(cls, folder: Path, run: RunRecord) -> Self:
        """A run of which the record is known, with its tables."""
        names = [name for name in run.tables if name not in cls.derived]
        files = {name: f"{name}.parquet" for name in names}
        return cls(run, {name: read_table(folder / file, run.files.get(file)) for name, file in files.items()})

    @property
    def name(self) -> str:
        """What the run is about: its model, else its task, else its kind."""
        return self.run.name

    def stored_tables(self) -> Tables:
        """What a run folder holds."""
        return self.tables

    def caveats(self) -> list[str]:
        """What a reader must know before trusting the numbers, as far as the tables tell."""
        return []

    def store(self, folder: Path) -> None:
        """Write all tables, then the record, into a folder."""
        stored = self.stored_tables()
        for name, table in stored.items():
            write_table(folder / f"{name}.parquet", table)
        self.run.tables = sorted(stored)
        made = {file for file in listed(folder) if not file.startswith(f"{PIECES}/")} - {RUN}
        self.run.files = {file: checksum(folder / file) for file in sorted(made) if (folder / file).is_file()}
        self.run.write(folder)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the run as a folder; `rs.open` reads it back."""
        folder = Path(path)
        kept = copy.copy(self)
        kept.run = copy.copy(self.run)
        kept.run.kind, kept.run.complete = self.kind, False
        place = Place(folder)
        place.check(kept.run, overwrite=overwrite)
        place.replace(kept.run)
        kept.run.complete = True
        try:
            kept.store(folder)
        except BaseException:
            place.restore()
            place.leave()
            raise
        place.leave()
        place.tidy()
        return folder

    def report(self, path: str | Path) -> Path:
        """Write the run as one HTML page to look at, to send and to keep; it works offline."""
        write_report = import_module("rotoscope.report").write_report
        return Path(write_report(path, self))
