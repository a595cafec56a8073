"""A sweep from its file to its table: what is done is skipped, the rest is run, and what failed is listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.progress import progress_bar
from rotoscope.results.files import MANIFEST, disk_errors, start_manifest
from rotoscope.results.items import FAILED, FINISHED, Outcome, outcome_of
from rotoscope.results.place import Place
from rotoscope.results.record import RUN, RunRecord
from rotoscope.results.sweep import ITEM_COLUMN, STORAGE, Sweep, grid_columns
from rotoscope.settings import SweepSettings
from rotoscope.sweep.before import waiting
from rotoscope.sweep.carrying import Kept, public_address, where_items_are
from rotoscope.sweep.company import only_driver, writing_tables
from rotoscope.sweep.file import SweepFile, read_file
from rotoscope.sweep.here import environments, pool
from rotoscope.sweep.items import Item, items_of, part_of

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

    `settings`, or fields of `SweepSettings` given as keywords, say where (`on="here"` or `"ray"`) and which of them. An item that fails
    does not stop the others: it is in `.failed`, with its error, and run again with `retry_failed=True`. With `dry_run=True`
    nothing is run or written, and `.items` lists them with their state.
    """
    wanted = SweepSettings.make(settings, **changes)
    found = read_file(file)
    items = items_of(found)
    folder = wanted.out or found.out
    record = _record(found, items, folder, wanted.storage)
    mine = part_of(items, wanted.part)
    with where_items_are(folder, [item.name for item in mine], wanted) as kept:
        if wanted.dry_run:
            return _listed(mine, kept, record, folder)
        if wanted.on == "ray":
            from rotoscope.sweep.on_ray import check_cluster, run_on_ray

            check_cluster(wanted.address)
        with only_driver(folder, wanted.part) as held:
            left = waiting(mine, kept.place, retry=wanted.retry_failed)
            _begin(folder, record, whole=not left)
            told: Mapping[str, Outcome] = {}
            if left and wanted.on == "ray":
                run_on_ray(left, folder, kept.storage, wanted, show_progress)
            elif left:
                told = _run_here(left, folder, wanted, held, show_progress)
            return _finish(folder, record, kept, told)


def _run_here(
    items: list[Item], folder: Path, wanted: SweepSettings, held: tuple[int, ...], show_progress: bool | None
) -> dict[str, Outcome]:
    """How every item ended."""
    places, told = environments(wanted.workers, items), dict[str, Outcome]()
    # Processes read their libraries from here on.
    with pool(places, held) as processes, progress_bar("sweep", len(items), show_progress) as bar:

        def ended(item: Item, outcome: Outcome) -> None:
            told[item.name] = outcome
            bar.advance()

        processes.run(items, folder, ended, lambda names: bar.doing(running(names)))
    return told


def running(names: Sequence[str]) -> str:
    """What is being run, in a few words."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _record(file: SweepFile, items: Sequence[Item], folder: Path, storage: str | None) -> RunRecord:
    """What the sweep's own `run.json` says; a place where something else is is refused."""
    described = {
        "command": file.command.name,
        "grid": dict(file.grid),
        "settings": dict(file.settings),
        "items": {item.name: item.place for item in items},
    }
    if storage is not None:
        described[STORAGE] = public_address(storage)
    now = RunRecord(Sweep.kind, described)
    if (folder / RUN).exists():
        try:
            before = RunRecord.read(folder)
        except RunError as problem:
            raise RunError(f"{problem}; move it away to have it made again from the sweep's file") from problem
        if before.kind != Sweep.kind:
            raise RunError(f"{folder} holds a run of kind '{before.kind}', not a sweep; choose another --out")
    elif folder.exists() and not Place(folder).is_ours() and _strange(folder):
        raise RunError(f"{folder} exists and is no sweep, so nothing is written there; choose another --out")
    return now


def _strange(folder: Path) -> bool:
    """Whether there is anything in a folder but our locks."""
    with disk_errors(folder):
        return not folder.is_dir() or any(not one.name.startswith(".") for one in folder.iterdir())


def _begin(folder: Path, record: RunRecord, *, whole: bool) -> None:
    """Say what is swept here, and whether nothing is left to be run; items of an earlier grid stay where they are, and are not
    part of it any more."""
    with disk_errors(folder):
        if not (folder / MANIFEST).is_file():
            start_manifest(folder)
    if (folder / RUN).exists():
        before = RunRecord.read(folder)
        if before.settings == record.settings and (whole or not before.complete):
            return
    record.write(folder)


def _finish(folder: Path, record: RunRecord, items: Kept, told: Mapping[str, Outcome]) -> Sweep:
    """The tables over all items as they are now; whole when every item has ended, those that failed with a warning each."""
    items.bring(record.settings["items"], (".json", ".parquet"))
    with writing_tables(folder):
        found = Sweep.gathered(folder, record, items.place, told)
        for name in {"heads"} - found.tables.keys():
            (folder / f"{name}.parquet").unlink(missing_ok=True)  # of an earlier grid
        states = found.items["state"]
        found.run.complete = bool(states.isin([FINISHED, FAILED]).all())
        found.run.timings = {"total_s": float(found.items["seconds"].sum())}
        found.store(folder)
    return found


def _listed(items: Sequence[Item], kept: Kept, record: RunRecord, folder: Path) -> Sweep:
    """A sweep of which nothing is run: every item with its state."""
    rows = []
    for item in items:
        outcome = outcome_of(kept.place(item.name))
        about = {
            "state": outcome.state,
            "error": outcome.error,
            "seconds": outcome.seconds,
            "folder": item.name,
        }
        rows.append({ITEM_COLUMN: item.name, **grid_columns(item.place), **about})
    found = Sweep(record, {"items": pd.DataFrame(rows)})
    found.folder = folder
    return found
