"""A run as its page takes it: finished, being written, or in memory. A damaged one is refused with a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rotoscope.errors import RunError
from rotoscope.experiments.registry import result_class
from rotoscope.report.run_index import is_recent, so_far
from rotoscope.report.sweeps import items_so_far
from rotoscope.runs.files import read_table
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun, Tables
from rotoscope.runs.run import unfinished_tables
from rotoscope.sweeps.result import Sweep


@dataclass
class ReportedRun:
    """A run's description and its tables; of one that is not finished, the tables so far."""

    name: str
    run: RunRecord
    tables: Tables = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    """How far a run is that is being written; empty otherwise."""

    @property
    def kind(self) -> str:
        return self.run.kind

    @property
    def complete(self) -> bool:
        return self.run.complete

    def attempt(self, what: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, or None and a sentence why: a run being written may lack the tables for it."""
        try:
            return make()
        except Exception as problem:  # a description that fits its checksum may still be a stranger's
            lines = str(problem).strip().splitlines()
            self.problems.append(
                f"{what} cannot be shown ({type(problem).__name__}: {lines[0] if lines else ''})"
            )
            return None

    def opened(self) -> SavedRun:
        """The run as its own class."""
        kind = result_class(self.kind)
        assert kind is not None, "asked when it was opened"
        return kind(self.run, self.tables)


def reported_run(source: str | Path | SavedRun) -> ReportedRun:
    """Read a run folder, or take a run that is in memory."""
    if isinstance(source, SavedRun):
        record = dataclasses.replace(source.run, kind=source.kind, complete=True)
        return ReportedRun(record.name, record, dict(source.tables))
    folder = Path(source)
    record = RunRecord.read(folder)
    if result_class(record.kind) is None:
        raise RunError(
            f"{folder} holds a run of kind '{record.kind}', which this version of rotoscope does not know"
        )
    reported = ReportedRun(folder.resolve().name or str(folder), record)
    if record.complete:
        for name in record.tables:
            file = f"{Path(name).name}.parquet"
            reported.tables[name] = read_table(folder / file, record.files.get(file))
        return reported
    _read_so_far(reported, folder)
    return reported_run(source) if RunRecord.read(folder).complete else reported  # finished meanwhile


def _read_so_far(reported: ReportedRun, folder: Path) -> None:
    """The finished pieces of a run, or the items of a sweep as they are now, and how far it is."""
    reached = so_far(folder, reported.run.settings)
    if is_recent(folder):
        reported.running.append(reached)
    else:
        reported.problems.append(f"the run is not finished; this is what there is so far: {reached}")
    reported.tables = (
        reported.attempt("what is finished", lambda: unfinished_tables(folder, reported.run)) or {}
    )
    if reported.kind == Sweep.kind:
        items = reported.attempt("the items", lambda: items_so_far(folder, reported.run))
        tables, reported.run.warnings = items or ({}, [])
        reported.tables |= tables
