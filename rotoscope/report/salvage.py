"""Opening a run folder whatever has become of it: what can be read, and sentences about what cannot."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rotoscope.errors import RunError
from rotoscope.report.running import is_recent, so_far
from rotoscope.report.sweeps import items_so_far
from rotoscope.results import KINDS
from rotoscope.results.files import plain, read_table
from rotoscope.results.record import RUN, RunRecord
from rotoscope.results.run import unfinished_tables
from rotoscope.results.saved import SavedRun, Tables
from rotoscope.results.sweep import Sweep


@dataclass
class Salvaged:
    """What is left of a run."""

    name: str
    run: RunRecord = field(default_factory=RunRecord)
    tables: Tables = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    """How far a run is that is going on; empty where it is not."""

    @property
    def kind(self) -> str:
        return self.run.kind

    @property
    def complete(self) -> bool:
        return self.run.complete

    def attempt(self, what: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, or nothing and a sentence why. Damage has no end of forms, so every error counts."""
        try:
            return make()
        except Exception as problem:
            lines = str(problem).strip().splitlines()
            self.problems.append(
                f"{what} cannot be shown ({type(problem).__name__}: {lines[0] if lines else ''})"
            )
            return None

    def opened(self) -> SavedRun | None:
        """The run as its own class, where this version knows it."""
        kind = KINDS.get(self.kind)
        return None if kind is None else kind(self.run, self.tables)


def salvage(source: str | Path | SavedRun) -> Salvaged:
    """Read a run folder, or take a run that is in memory."""
    if isinstance(source, SavedRun):
        record = dataclasses.replace(source.run, kind=source.kind, complete=True)
        return Salvaged(record.name, record, dict(source.tables))
    folder = Path(source)
    if not folder.is_dir():
        return Salvaged(str(folder), problems=[f"no such run folder: {folder}"])
    found = Salvaged(folder.resolve().name or str(folder))
    _describe(found, folder)
    _read_tables(found, folder)
    if not found.complete:
        made = found.attempt("what is finished", lambda: unfinished_tables(folder, found.run)) or {}
        found.tables = made | found.tables
        if found.kind == Sweep.kind:
            _read_items(found, folder)
        if _finished_meanwhile(folder):
            return salvage(source)
    return found


def _read_items(found: Salvaged, folder: Path) -> None:
    """A sweep's items as they are now; tables of its own it has at its end only, or from before it was given more items."""
    tables, warnings = found.attempt("the items", lambda: items_so_far(folder, found.run)) or ({}, [])
    found.tables.pop("heads", None)
    found.tables |= tables
    found.run.warnings = warnings


def _finished_meanwhile(folder: Path) -> bool:
    """Whether the run was finished while it was looked at: its pieces are then gone, and its tables there."""
    try:
        return RunRecord.read(folder).complete
    except (RunError, OSError, RecursionError):
        return False


def _describe(found: Salvaged, folder: Path) -> None:
    """Take `run.json` as far as it can be believed."""
    try:
        content = json.loads(plain(folder / RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        found.problems.append(f"{folder.name} has no {RUN}, so nothing says what was run")
        return
    except (OSError, ValueError, RecursionError) as damage:
        found.problems.append(f"{RUN} is damaged ({damage}), so nothing says what was run")
        return
    found.run, problems = RunRecord.parse(content)
    found.problems += problems
    if found.run.begun_by_another_version:
        found.problems.append(f"the run was {found.run.begun_by_another_version}")
    elif not found.complete and is_recent(folder):
        found.running.append(so_far(folder, found.run.settings))
    elif not found.complete:
        reached = so_far(folder, found.run.settings)
        found.problems.append(f"the run is not finished; this is what there is so far: {reached}")
    if found.kind not in KINDS:
        found.problems.append(
            f"this version does not know runs of kind '{found.kind}'; their tables are shown as they are"
        )


def _read_tables(found: Salvaged, folder: Path) -> None:
    files = {file.stem for file in folder.glob("*.parquet")}
    listed = {str(name) for name in found.run.tables}
    for name in sorted(listed | files):
        try:
            file = f"{Path(name).name}.parquet"
            found.tables[name] = read_table(folder / file, found.run.files.get(file))
        except RunError as problem:
            found.problems.append(str(problem).replace(f"{folder}/", "").replace(str(folder), folder.name))
        except Exception as problem:  # a file made by a stranger
            found.problems.append(f"{name}.parquet cannot be read ({problem})")
    if not files and not listed and found.complete:
        found.problems.append("the run has no tables")
