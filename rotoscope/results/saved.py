"""What every kind of run has in common: a description, tables, and a folder they come back from."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.results.folder import RunFolder, read_run, read_table

__all__ = ["SavedRun"]


class SavedRun:
    """A finished run: `run` is the content of `run.json`, `tables` its Parquet tables by name."""

    kind: ClassVar[str]
    derived: ClassVar[frozenset[str]] = frozenset()
    """Tables that are written for other tools and made again from the rest when needed."""

    def __init__(self, run: dict[str, Any], tables: dict[str, pd.DataFrame]) -> None:
        self.run = run
        self.tables = tables

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a run folder of this kind back."""
        folder = Path(path)
        run = read_run(folder)
        if run.get("kind") != cls.kind:
            raise RunError(f"{folder} holds a run of kind '{run.get('kind')}', not '{cls.kind}'")
        if not run.get("complete"):
            raise RunError(f"{folder} is not finished; run the same command again and it goes on where it was")
        names = [name for name in run["tables"] if name not in cls.derived]
        return cls(run, {name: read_table(folder / f"{name}.parquet") for name in names})

    def stored_tables(self) -> dict[str, pd.DataFrame]:
        """What a run folder holds."""
        return self.tables

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the run as a folder; `rs.open` reads it back."""
        folder = RunFolder(path, self.kind, self.run["settings"], overwrite=overwrite)
        folder.begin()
        own = ("schema", "kind", "complete", "written", "settings", "settings_hash", "versions", "tables")
        folder.finish(self.stored_tables(), **{key: value for key, value in self.run.items() if key not in own})
        return folder.path

    def report(self, path: str | Path) -> Path:
        """Write the run as one HTML page to look at, to send and to keep; it works offline."""
        write_report = import_module("rotoscope.report").write_report
        return Path(write_report(path, self))
