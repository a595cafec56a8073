"""The items of a sweep as they lie on disk: ordinary run folders, each with a note of how its command ended.

    SWEEP/run.json items.parquet heads.parquet     the sweep itself: its grid, and the tables over all of it
    SWEEP/NAME/                                    an item: its run, item.json (how it ended) and item.log (what it printed)
    SWEEP/NAME.log                                 the same of one that is running, or was when it was killed

There is no other state: whatever is not noted as finished is run again, and its run goes on where it was.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pandas as pd

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.registry import open as open_run
from rotoscope.runs.files import disk_errors, make_folder, plain
from rotoscope.runs.record import RUN, RunRecord
from rotoscope.runs.result import SavedRun, Table, Tables
from rotoscope.sweeps.table import write_heads

ITEM, ITEM_LOG, LOG_END = "item.json", "item.log", ".log"
FINISHED, FAILED, UNFINISHED, WAITING = "finished", "failed", "unfinished", "waiting"


@dataclass(frozen=True)
class Outcome:
    """How an item ended, or that it has not."""

    state: str = WAITING
    """finished, failed, unfinished (begun, and running or killed) or waiting."""
    seconds: float | None = None
    """That its last try took."""
    error: str = ""
    """Why it failed, in a sentence."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Checksums of what its settings name on disk, by setting: what it was made of."""


def runs_in(folder: Path) -> list[Path]:
    """The run of an item, or its runs where its command makes several, each in a folder of its own."""
    if (folder / RUN).is_file():
        return [folder]
    try:
        return sorted(inner for inner in folder.iterdir() if (inner / RUN).is_file())
    except OSError:
        return []


def outcome_of(folder: Path) -> Outcome:
    """What has become of an item; finished is only what has a note and a whole run."""
    noted = _noted(folder / ITEM)
    if noted is not None and (noted.state == FAILED or _whole(folder)):
        return noted
    begun = folder.exists() or folder.with_name(folder.name + LOG_END).exists()
    return Outcome(UNFINISHED if begun else WAITING)


def note(folder: Path, outcome: Outcome) -> None:
    """Say how an item ended; the note is there whole or not at all. It is no part of the run, so no manifest lists it."""
    with disk_errors(folder):
        make_folder(folder)
        scratch = folder / f".{ITEM}.{os.getpid()}.part"
        scratch.write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="utf-8")
        scratch.replace(folder / ITEM)


def open_again(folder: Path) -> Path:
    """Take the note and the log of an earlier try out of a folder, so that its run can begin or go on; where the log is then."""
    log = folder.with_name(folder.name + LOG_END)
    with disk_errors(folder):
        make_folder(folder.parent)
        (folder / ITEM).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            before = (folder / ITEM_LOG).read_bytes()
            with log.open("ab") as kept:
                kept.write(before)
            (folder / ITEM_LOG).unlink()
        with suppress(OSError):  # something of a run is in it
            folder.rmdir()
    return log


def close(folder: Path, outcome: Outcome) -> None:
    """Put the log into the folder, and the note last."""
    with disk_errors(folder):
        make_folder(folder)
        with suppress(FileNotFoundError):
            folder.with_name(folder.name + LOG_END).replace(folder / ITEM_LOG)
    note(folder, outcome)


def _noted(file: Path) -> Outcome | None:
    try:
        noted = json.loads(plain(file).read_text(encoding="utf-8"))
        seconds = noted["seconds"]
        if noted["state"] in (FINISHED, FAILED):
            inputs = {str(key): str(mark) for key, mark in dict(noted["inputs"]).items()}
            return Outcome(
                noted["state"], None if seconds is None else float(seconds), str(noted["error"]), inputs
            )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _whole(folder: Path) -> bool:
    """Whether there is a run, and every one is finished."""
    tables = list(_complete(folder))
    return bool(tables) and all(tables)


def _complete(folder: Path) -> Iterator[bool]:
    for place in runs_in(folder):
        try:
            yield RunRecord.read(place).complete
        except RunError:
            yield False


# Many runs as one: the items of a sweep, and their heads in one table with the grid's columns in front.


MODEL_COLUMN, FINGERPRINT = "model", "fingerprint"
"""Which model a head is of; the fingerprint tells models of one name apart."""
ITEM_COLUMN, RUN_COLUMN = "item", "run"
"""Where a row comes from: the item, and, of an item with several runs, which of them."""
LEFT_OUT = "{what} of an item are left out: {problem}; delete its folder to have it made again"


class Sweep(SavedRun):
    """The runs of a grid. `rs.open` gives what there is of one that is not finished, too."""

    kind = "sweep"

    items = Table(
        "One row per item: its place in the grid, `state` (finished, failed, unfinished, waiting), `seconds` of its last try, "
        "`error`, `folder` within the sweep's, and `fingerprint` of the model where its run says."
    )
    heads = Table(
        "The heads of all finished items, the item, its place in the grid and the model in front; of trainings at their last step.",
        optional=True,
    )
    folder: Path | None = None
    """Where the sweep is."""

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a sweep's folder back, as far as it is; one that is whole has its tables beside its items."""
        folder = Path(path)
        record = RunRecord.read(folder)
        if record.kind != cls.kind:
            raise RunError(f"{folder} holds a run of kind '{record.kind}', not '{cls.kind}'")
        sweep = super().open(folder) if record.complete else cls.gathered(folder, record)
        sweep.folder = folder
        return sweep

    @classmethod
    def gathered(
        cls,
        folder: Path,
        record: RunRecord,
        item_folder: Callable[[str], Path] | None = None,
        outcomes: Mapping[str, Outcome] = MappingProxyType({}),
    ) -> Self:
        """The sweep from the folders of its items as they are now; `item_folder` says where an item's is, if not in the sweep's,
        and `outcomes` how items ended that could not note it themselves."""
        places = _places(record)
        rows, problems = [], list[str]()
        heads = _Joined(places)
        for name, place in places.items():
            item = folder / name if item_folder is None else item_folder(name)
            outcome = outcome_of(item)
            if outcome.state not in (FINISHED, FAILED):
                outcome = outcomes.get(name, outcome)
            rows.append({**grid_columns(place), **vars(outcome), "folder": name})
            rows[-1].pop("inputs")
            if outcome.state == FINISHED:
                rows[-1][FINGERPRINT] = _fingerprints(item)
                problems += heads.add_item(name, item, lambda place: open_run(place).head_rows())
        items = pd.DataFrame(rows).astype({"seconds": float})
        items.insert(0, ITEM_COLUMN, items["folder"])
        tables: Tables = {"items": _plain(items)}
        if len(joined := heads.table()):
            tables["heads"] = joined
        sweep = cls(record, tables)
        sweep.run.warnings = [
            *sweep._failures(),
            *(LEFT_OUT.format(what="heads", problem=problem) for problem in problems),
        ]
        sweep.folder = folder
        return sweep

    def joined(self, name: str) -> pd.DataFrame:
        """A table of every finished item that has it, put together with the item's name, its place in the grid and its model
        in front.

        `name` is a table's, as `summary` of gates, `test` of trainings or `prompts` of profiles.
        """
        if self.folder is None:
            raise RotoscopeError("this sweep is not in a folder, so the tables of its items cannot be read")
        joined, known = _Joined(_places(self.run)), set[str]()

        def table_of(place: Path) -> pd.DataFrame | None:
            run: SavedRun = open_run(place)
            known.update(run.tables)
            table = run.tables.get(name, getattr(run, name, None) if hasattr(type(run), name) else None)
            return table if isinstance(table, pd.DataFrame) else None

        for item in self.items.loc[self.items["state"] == FINISHED, "folder"]:
            for problem in joined.add_item(item, self.folder / item, table_of):
                warnings.warn(LEFT_OUT.format(what=name, problem=problem), stacklevel=2)
        table = joined.table()
        if not len(table):
            have = ", ".join(sorted(known)) or "none: nothing is finished"
            raise RunError(f"no item of this sweep has a table '{name}' (there are {have})")
        return table

    def table(self, file: str | Path | None = None) -> pd.DataFrame:
        """The heads of all finished items, written to a Parquet file with a card beside it (.json) where one is named."""
        if "heads" not in self.tables:
            raise RunError("no item of this sweep is finished and has heads")
        if file is not None:
            folder = self.folder
            if folder is None:
                raise RotoscopeError(
                    "this sweep is not in a folder, so the runs of its items cannot be described"
                )
            names = self.heads[ITEM_COLUMN].unique()
            records = {name: [RunRecord.read(run) for run in runs_in(folder / name)] for name in names}
            write_heads(Path(file), self.heads, self.run.settings, records)
        return self.heads

    @property
    def failed(self) -> pd.DataFrame:
        """The items that failed, with their errors."""
        return self.items[self.items["state"] == FAILED]

    @property
    def axes(self) -> list[str]:
        """The settings that differ from item to item."""
        return list(self.run.settings.get("grid", {}))

    def _failures(self) -> list[str]:
        return [f"the item {row.folder} failed: {row.error}" for row in self.failed.itertuples()]

    def __repr__(self) -> str:
        counts = self.items["state"].value_counts()
        states = ", ".join(f"{number} {state}" for state, number in counts.items())
        return f"Sweep({self.run.settings.get('command')}: {len(self.items)} items, {states})"


class _Joined:
    """Tables of items on top of each other, with where each comes from in front."""

    def __init__(self, places: Mapping[str, Mapping[str, Any]]) -> None:
        self.places, self.parts = places, list[pd.DataFrame]()

    def add_item(self, item: str, folder: Path, table_of: Callable[[Path], pd.DataFrame | None]) -> list[str]:
        """Add a table of every run of an item, where it has one; what could not be read, in sentences."""
        try:
            runs = runs_in(folder)
            tables = {run: table_of(run) for run in runs}
            models = {run: _model(run) for run in runs}
        except RotoscopeError as problem:
            return [f"{item}: {problem}"]
        for run, table in tables.items():
            if table is not None and len(table):
                table = _with_fingerprints(table, run)
                several = {RUN_COLUMN: run.name} if len(runs) > 1 else {}
                self._add(item, table, several | models[run])
        return []

    def _add(self, item: str, table: pd.DataFrame, run: Mapping[str, Any]) -> None:
        place = grid_columns(self.places[item])
        front = (
            {ITEM_COLUMN: item}
            | place
            | {key: value for key, value in run.items() if key not in {*place, *table}}
        )
        named = {key if key not in table else f"grid_{key}": value for key, value in front.items()}
        constants = pd.DataFrame({key: [value] * len(table) for key, value in named.items()}, index=table.index)
        self.parts.append(pd.concat([constants, table], axis=1))

    def table(self) -> pd.DataFrame:
        if not self.parts:
            return pd.DataFrame()
        return _plain(pd.concat(self.parts, ignore_index=True))


def _places(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Every item's place in the grid by its name, as the sweep's description has it."""
    items = record.settings.get("items")
    if not isinstance(items, dict) or not items or not all(isinstance(one, dict) for one in items.values()):
        raise RunError("the sweep's description does not say which items it has; run its file again")
    return {str(name): dict(place) for name, place in items.items()}


def grid_columns(place: Mapping[str, Any]) -> dict[str, Any]:
    """A place in the grid as columns: lists as texts."""
    return {
        key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in place.items()
    }


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """Columns with one kind of value each: numbers and texts in one column are all texts."""
    for name in [column for column in table if table[column].dtype == object]:
        known = table[name].dropna()
        if known.map(type).nunique() > 1:
            table[name] = known.astype(str).reindex(table.index)
    return table


def _model(place: Path) -> dict[str, str]:
    """The model of a run as columns, where the run is of one."""
    subject = RunRecord.read(place).subject
    return {} if subject is None else {MODEL_COLUMN: subject.name, FINGERPRINT: subject.fingerprint}


def _with_fingerprints(table: pd.DataFrame, place: Path) -> pd.DataFrame:
    """A table of several models with the fingerprint of each, where the run's settings say it."""
    models = RunRecord.read(place).settings.get("models")
    if not isinstance(models, dict) or MODEL_COLUMN not in table or FINGERPRINT in table:
        return table
    return table.assign(**{FINGERPRINT: table[MODEL_COLUMN].map(models)})


def _fingerprints(item: Path) -> str | None:
    """Which models the runs of an item were made of, as far as they say."""
    records = [RunRecord.read(place) for place in runs_in(item)]
    marks = [record.subject.fingerprint for record in records if record.subject is not None]
    return " ".join(dict.fromkeys(marks)) or None
