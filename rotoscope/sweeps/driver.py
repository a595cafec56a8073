"""A sweep from its file to its table: finished items are skipped, the others are run, and those that failed are listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.progress import progress_bar
from rotoscope.runs.files import MANIFEST, disk_errors, start_manifest
from rotoscope.runs.folder import Place
from rotoscope.runs.record import RUN, RunRecord
from rotoscope.sweeps.items import Item, SweepFile, items_of, part_of, read_file
from rotoscope.sweeps.local_pool import environments, pool
from rotoscope.sweeps.result import (
    FAILED,
    FINISHED,
    ITEM_COLUMN,
    WAITING,
    Outcome,
    Sweep,
    grid_columns,
    outcome_of,
)
from rotoscope.sweeps.run_item import changed_inputs, items_to_run, only_driver, writing_tables
from rotoscope.sweeps.settings import SweepSettings
from rotoscope.sweeps.table import check_table_file

NAMED = 2
"""Items that a progress bar names."""


def run_sweep(
    file: str | Path,
    settings: SweepSettings | None = None,
    *,
    show_progress: bool | None = None,
    **changes: Any,
) -> Sweep:
    """Run the items of a sweep's file that are not finished yet, and give all of them as one result.

    `settings`, or fields of `SweepSettings` as keywords, say where (`on="here"` or `"ray"`) and which of them. An item that fails
    does not stop the others: it is in `.failed`, with its error, and run again with `retry_failed=True`. With `dry_run=True`
    nothing is run or written, and `.items` says what state each item is in.
    """
    settings = SweepSettings.make(settings, **changes)
    content = read_file(file)
    items = items_of(content)
    folder = settings.out or content.out
    record = _record(content, items, folder)
    part = part_of(items, settings.part)
    if settings.dry_run:
        return _states(part, record, folder)
    if settings.table is not None:
        check_table_file(settings.table)
    if settings.on == "ray":
        from rotoscope.sweeps.on_ray import check_cluster, run_on_ray

        check_cluster(settings.address)
    with only_driver(folder, settings.part):
        left = items_to_run(part, folder, retry=settings.retry_failed)
        _begin(folder, record, whole=not left)
        outcomes: dict[str, Outcome] = {}
        if left and settings.on == "ray":
            outcomes = run_on_ray(left, folder, settings.address, show_progress)
        elif left:
            outcomes = _run_here(left, folder, settings.workers, show_progress)
        sweep = _finish(folder, record, outcomes)
    if settings.table is not None and "heads" in sweep.tables:
        sweep.table(settings.table)
    return sweep


def _run_here(
    items: Sequence[Item], folder: Path, workers: int | None, show_progress: bool | None
) -> dict[str, Outcome]:
    """The outcome of every item by its name."""
    outcomes = dict[str, Outcome]()
    with (
        pool(environments(workers, items)) as processes,
        progress_bar("sweep", len(items), show_progress) as bar,
    ):

        def ended(item: Item, outcome: Outcome) -> None:
            outcomes[item.name] = outcome
            bar.advance()

        processes.run(items, folder, ended, lambda names: bar.doing(running(names)))
    return outcomes


def running(names: Sequence[str]) -> str:
    """What is being run, in a few words."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _record(file: SweepFile, items: Sequence[Item], folder: Path) -> RunRecord:
    """What the sweep's own `run.json` says; raises RunError where something else is in its folder."""
    settings = {
        "command": file.command.name,
        "grid": dict(file.grid),
        "settings": dict(file.settings),
        "items": {item.name: item.place for item in items},
    }
    if (folder / RUN).exists():
        try:
            before = RunRecord.read(folder)
        except RunError as problem:
            raise RunError(f"{problem}; move it away to have it made again from the sweep's file") from problem
        if before.kind != Sweep.kind:
            raise RunError(f"{folder} holds a run of kind '{before.kind}', not a sweep; choose another --out")
    elif folder.exists() and not Place(folder).is_ours() and _has_other_files(folder):
        raise RunError(f"{folder} exists and is no sweep, so nothing is written there; choose another --out")
    return RunRecord(Sweep.kind, settings)


def _has_other_files(folder: Path) -> bool:
    """Whether there is anything in a folder but locks."""
    with disk_errors(folder):
        return not folder.is_dir() or any(not file.name.startswith(".") for file in folder.iterdir())


def _begin(folder: Path, record: RunRecord, *, whole: bool) -> None:
    """Write what is swept here, and whether no item is left to run; items of an earlier grid stay where they are, and are no
    part of the sweep any more."""
    with disk_errors(folder):
        if not (folder / MANIFEST).is_file():
            start_manifest(folder)
    if (folder / RUN).exists():
        before = RunRecord.read(folder)
        if before.settings == record.settings and (whole or not before.complete):
            return
    record.write(folder)


def _finish(folder: Path, record: RunRecord, outcomes: Mapping[str, Outcome]) -> Sweep:
    """Write the tables over all items as they are now; the sweep is whole when every item has finished or failed."""
    with writing_tables(folder):
        sweep = Sweep.gathered(folder, record, outcomes=outcomes)
        if "heads" not in sweep.tables:
            (folder / "heads.parquet").unlink(missing_ok=True)  # of an earlier grid
        states = sweep.items["state"]
        sweep.run.complete = bool(states.isin([FINISHED, FAILED]).all())
        sweep.run.timings = {"total_s": float(sweep.items["seconds"].sum())}
        sweep.store(folder)
    return sweep


def _states(items: Sequence[Item], record: RunRecord, folder: Path) -> Sweep:
    """A sweep of which nothing is run: every item with its state."""
    outcomes = {item.name: outcome_of(folder / item.name) for item in items}
    for name, settings in changed_inputs(items, outcomes).items():
        outcomes[name] = Outcome(WAITING, outcomes[name].seconds, f"{settings} has changed since it was made")
    rows = []
    for item in items:
        outcome = outcomes[item.name]
        about = {"state": outcome.state, "seconds": outcome.seconds, "error": outcome.error}
        rows.append({ITEM_COLUMN: item.name, **grid_columns(item.place), **about, "folder": item.name})
    sweep = Sweep(record, {"items": pd.DataFrame(rows)})
    sweep.folder = folder
    return sweep
