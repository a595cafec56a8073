"""What a page is made from: a run and its tables, and tables as the page stores them.

A page stores columns rounded, without anything that JSON does not know.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.errors import RunError
from rotoscope.experiments.registry import ResultKind, kind_declaration
from rotoscope.lazy import resolve
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun, SummaryTable, Tables

PAGE, SERVED = 4_700_000, 40_000_000
"""Letters for all that is said of heads, in a page that is sent around and in one that a server on the same machine gives.
Attention has what the rest leaves, and two fifths at most; the drawing script takes five million letters more."""
Tab = dict[str, Any]
DIGITS = 4
MOST_ROWS = 500
"""Rows of a table that is only shown as a table; the run folder has them all."""


def clean(value: Any, digits: int = DIGITS) -> Any:
    """Anything as JSON can hold it: numbers rounded, NaN and infinity as null, what is unknown as text."""
    if isinstance(value, dict):
        return {str(key): clean(inner, digits) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray, pd.Series)):
        return [clean(inner, digits) for inner in value]
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, (float, np.floating)):
        return _rounded(float(value), digits)
    return None if value is pd.NA or value is pd.NaT else str(value)


def _rounded(value: float, digits: int) -> float | int | None:
    """Large numbers to that many decimals, small ones to that many digits that count."""
    if not math.isfinite(value):
        return None
    rounded = round(value, digits) if abs(value) >= 0.1 or value == 0 else float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 2**53 else rounded


def columns(frame: pd.DataFrame, names: Iterable[str], digits: int = DIGITS) -> dict[str, list[Any]]:
    """The named columns that are there, each a list. Scores need no more than so many decimals."""
    return {name: column(frame[name], digits) for name in names if name in frame}


def column(series: pd.Series, digits: int = DIGITS) -> list[Any]:
    """One column, quickly where it is all numbers."""
    if pd.api.types.is_float_dtype(series.dtype):
        return [_decimals(x) for x in np.round(series.to_numpy(dtype=float, na_value=np.nan), digits).tolist()]
    return [clean(x, digits) for x in series.tolist()]


def curve(rows: pd.DataFrame, x: str, y: str) -> dict[str, list[Any]]:
    """A line to draw: x and y, and the ends of intervals where there are columns `low` and `high`."""
    rows = rows.sort_values(x)
    named = zip(("x", "y", "low", "high"), (x, y, "low", "high"), strict=True)
    return {name: column(rows[origin]) for name, origin in named if origin in rows}


def _decimals(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value


def table(frame: pd.DataFrame, title: str, note: str = "", most: int | None = MOST_ROWS) -> dict[str, Any]:
    """A table to read and sort: its first rows, and how many there are."""
    shown = frame if most is None else frame.head(most)
    return {
        "title": title,
        "note": note,
        "names": [str(name) for name in shown.columns],
        "columns": [[clean(x) for x in shown[name].tolist()] for name in shown.columns],
        "rows": len(frame),
    }


def packed(values: np.ndarray, bits: int) -> dict[str, Any]:
    """Many numbers in few bytes: whole steps from the smallest to the largest; the last code: missing."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    steps = 2**bits - 2
    step = (high - low) / steps if high > low else 1.0
    with np.errstate(invalid="ignore"):
        codes = np.where(np.isfinite(values), np.rint((values - low) / step), steps + 1)
    raw = codes.astype("<u2" if bits == 16 else "u1").tobytes()
    return {"bits": bits, "low": low, "step": step, "data": base64.b64encode(raw).decode("ascii")}


@dataclass
class PageRun:
    """A run's description and its tables; of one that is not finished, the tables so far."""

    name: str
    run: RunRecord
    tables: Tables = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What cannot be shown, and why."""
    running: list[str] = field(default_factory=list)
    """How far a run is that is being written; empty otherwise."""
    room: int = PAGE
    """Letters that its page may take."""

    @property
    def kind(self) -> str:
        return self.run.kind

    @property
    def complete(self) -> bool:
        return self.run.complete

    @property
    def declaration(self) -> ResultKind:
        """What the registry says of this kind of run."""
        declaration = kind_declaration(self.kind)
        if declaration is None:
            raise RunError(f"'{self.name}' is a run of kind '{self.kind}', which this version does not know")
        return declaration

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

    def opened(self) -> Any:
        """The run as its own class."""
        result: type[SavedRun] = resolve(self.declaration.result)
        return result(self.run, self.tables)

    def summary_tables(self, summaries: Iterable[SummaryTable], titles: Iterable[str] = ()) -> list[Tab]:
        """Those summaries that can be made, are not empty and have a title that is not among `titles`."""
        tables = []
        for title, make, needs in summaries:
            if title in titles or not set(needs) <= set(self.tables):
                continue
            frame = self.attempt(f"'{title}'", make)
            if frame is not None and len(frame):
                tables.append(table(frame, title))
        return tables


def verdict_tab(page_run: PageRun, name: str, title: str, front: Sequence[str]) -> Tab | None:
    """A table with a verdict in every row; the columns `front` come first."""
    if name not in page_run.tables:
        return None
    rows = page_run.tables[name]
    first = [column for column in front if column in rows]
    order = [*first, *(column for column in rows if column not in first)]
    counts = {str(verdict): int(number) for verdict, number in rows["verdict"].value_counts().items()}
    return {"verdicts": counts, "statements": table(rows[order], title, most=None), "front": len(first)}
