"""What every kind of run has in common: a record, tables, and a folder they come back from."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, overload

import pandas as pd

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.lazy import writer
from rotoscope.runs.files import checksum, listed, read_table, write_table
from rotoscope.runs.folder import ASIDE, PIECES, Place
from rotoscope.runs.record import RUN, RunRecord

if TYPE_CHECKING:
    from rotoscope.terminal import Screen


CHECKPOINT = "checkpoint-"
"""How folders of weights begin that a training leaves, often hundreds of them; a run may be called so, too."""


def holds_run(folder: Path) -> bool:
    """Whether there is a `run.json`, whatever it is: one that cannot be read is a run that somebody must hear of."""
    return os.path.exists(folder / RUN)


def folders_in(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those in it as deep as that, in order.

    Links are not followed, nor hidden folders and parts of runs looked into; a checkpoint is one unless it holds a run.
    """
    yield folder
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # removed meanwhile, or not ours to read
        return
    for name in names:
        weights = name.startswith(CHECKPOINT) and not holds_run(folder / name)
        if not name.startswith(".") and name not in (PIECES, RUN) and not weights:
            yield from folders_in(folder / name, depth - 1)


Tables = dict[str, pd.DataFrame]


class SummaryTable(NamedTuple):
    """A table that is made from a run's tables to be read: in the terminal, and on the page."""

    title: str
    make: Callable[[], pd.DataFrame]
    needs: tuple[str, ...] = ()
    """Stored tables without which it cannot be made."""


class NextStep(NamedTuple):
    """A question that is open, and a command."""

    why: str
    command: str


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

    def page_tables(self) -> Tables:
        """What a page is made from."""
        return self.tables

    def caveats(self) -> list[str]:
        """What a reader must know before trusting the numbers, as far as the tables tell."""
        return []

    def summaries(self) -> list[SummaryTable]:
        """The tables that one reads first, the most important one in front."""
        return []

    def available_summaries(self) -> list[SummaryTable]:
        """Those of them that this run has the tables for."""
        return [table for table in self.summaries() if set(table.needs) <= set(self.tables)]

    def next_steps(self) -> list[NextStep]:
        """The questions that the run leaves open, with the commands that answer them."""
        return []

    def screen(self) -> Screen:
        """What a terminal shows of the run in about fifteen lines."""
        from rotoscope.terminal import Grid, Lines, Screen

        summaries = self.available_summaries()
        first: Lines = [summaries[0].title, Grid.of(summaries[0].make())] if summaries else []
        details = [(table.title, table.make) for table in summaries]
        return Screen(found=first, against=self.sentences(), details=details)

    def sentences(self) -> list[str]:
        """What came out, in a few sentences."""
        return []

    def head_rows(self) -> pd.DataFrame | None:
        """The heads of the run with their scores, for one table over many runs; None where it has none."""
        stored = getattr(type(self), "heads", None)
        if isinstance(stored, Table) and stored.name not in self.tables:
            return None
        heads = getattr(self, "heads", None)
        return heads if isinstance(heads, pd.DataFrame) else None

    def store(self, folder: Path) -> None:
        """Write all tables, then the record, into a folder."""
        stored = self.stored_tables()
        for name, table in stored.items():
            write_table(folder / f"{name}.parquet", table)
        self.run.tables = sorted(stored)
        files = {file for file in listed(folder) if not file.startswith(f"{PIECES}/")} - {RUN}
        self.run.files = {file: checksum(folder / file) for file in sorted(files) if (folder / file).is_file()}
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
        return Path(writer("report")(path, self))


# A run's tables as attributes that say what their rows are.


class Table:
    """Gives the table of the attribute's own name; `name` where the file is called otherwise.

    Where a run need not have it, `optional` gives an empty table instead of an error, and `made_with` says
    what the run should have been made with.
    """

    def __init__(
        self, doc: str, *, name: str | None = None, optional: bool = False, made_with: str = ""
    ) -> None:
        self.__doc__ = doc
        self.name, self.optional, self.made_with = name, optional, made_with

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.attribute, self.name = attribute, self.name or attribute

    @overload
    def __get__(self, run: None, owner: type) -> Self: ...
    @overload
    def __get__(self, run: SavedRun, owner: type) -> pd.DataFrame: ...
    def __get__(self, run: SavedRun | None, owner: type) -> Self | pd.DataFrame:
        if run is None:
            return self
        assert self.name is not None
        if self.name in run.tables:
            return run.tables[self.name]
        if self.optional:
            return pd.DataFrame()
        if self.made_with:
            raise RotoscopeError(f"this {run.kind} was made without {self.made_with}")
        have = ", ".join(sorted(run.tables)) or "none"
        raise RunError(f"this {run.kind} run has no table '{self.name}' (it has: {have}); make the run again")

    def __set__(self, run: SavedRun, value: object) -> None:
        raise AttributeError(f"{self.attribute} is read from the run; put a table into .tables['{self.name}']")


# What runs that score heads have in common: the temperatures and the tolerance they were made with.


class ScoredRun(SavedRun):
    """A run whose tables hold scores of heads at one or several temperatures."""

    shown_prompt = Table("The first prompt, one row per token.", made_with="examples=True")
    attention = Table(
        "Every head on the first prompt, with lists: attention before and after its heaviest swap, the swaps that are kept, "
        "attention after each of them where content moved, and keys in the plane whose logits vary most. "
        "`experiments.profile.examples.after_swap` puts the attention after any of them together.",
        made_with="examples=True",
    )

    @property
    def taus(self) -> list[float]:
        """The temperatures that were measured, in the order given."""
        return [float(tau) for tau in self.run.settings["tau"]]

    def tau_or_first(self, tau: float | None) -> float:
        """The temperature asked for; by default the first that was measured."""
        return self.taus[0] if tau is None else tau

    @property
    def gamma(self) -> float:
        """The tolerance of the purity classes."""
        return float(self.run.settings["gamma"])
