"""Tables against their golden values: which columns and rows are missing, what differs, how much and where."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

GOLDEN = Path(__file__).parent / "golden"
DIGITS = 7
"""Significant digits that are kept: all of a float32."""
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Tolerance:
    """A number differs by at most `absolute` + `relative` * its golden value; whole numbers and text do not differ at all."""

    absolute: float = 2e-5
    relative: float = 2e-5
    why: str = "rounding of float32"

    def allows(self, golden: float, made: float) -> bool:
        """Whether two numbers count as the same. NaN is NaN, and an infinity itself."""
        if math.isfinite(golden) and math.isfinite(made):
            return abs(made - golden) <= self.absolute + self.relative * abs(golden)
        return golden == made or (math.isnan(golden) and math.isnan(made))


@dataclass(frozen=True)
class Table:
    """A table that was made, and which of its columns are pinned.

    `keys` name a row; `sentences` are texts of which the numbers are compared and not the words.
    """

    frame: pd.DataFrame
    keys: tuple[str, ...]
    values: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()

    def columns(self) -> Columns:
        """The pinned columns that the table has, rounded."""
        names = [name for name in (*self.keys, *self.values, *self.sentences) if name in self.frame]
        return {name: [_plain(value) for value in self.frame[name].tolist()] for name in names}


Tables = Mapping[str, Table]


def golden_file(case: str) -> Path:
    return GOLDEN / f"{case}.json"


def read(case: str) -> dict[str, Columns]:
    golden: dict[str, Columns] = json.loads(golden_file(case).read_text(encoding="utf-8"))
    return golden


def write(case: str, tables: Tables) -> None:
    """The golden file of a case, one line per column."""
    parts = []
    for name, table in tables.items():
        columns = table.columns()
        missing = [key for key in (*table.keys, *table.values, *table.sentences) if key not in columns]
        if missing:
            raise KeyError(f"{case}: table '{name}' has no column {', '.join(missing)}")
        lines = [f"  {json.dumps(key)}: {json.dumps(values)}" for key, values in columns.items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    golden_file(case).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def differences(golden: Mapping[str, Columns], tables: Tables, tolerance: Tolerance) -> list[str]:
    """One sentence per column, row set or table that is not as it was pinned."""
    sentences = [f"table '{name}' is new: pin it with --write" for name in tables if name not in golden]
    for name, columns in golden.items():
        if name not in tables:
            sentences.append(f"table '{name}' is missing")
        else:
            sentences += _table_differences(name, columns, tables[name], tolerance)
    return sentences


def _table_differences(name: str, golden: Columns, table: Table, tolerance: Tolerance) -> Iterator[str]:
    made = table.columns()
    for column in [column for column in golden if column not in made]:
        yield f"{name}: column '{column}' is missing; the table has {', '.join(map(str, table.frame.columns))}"
    for column in [column for column in made if column not in golden]:
        yield f"{name}: column '{column}' is new: pin it with --write"
    keys = [key for key in table.keys if key in golden and key in made]
    pinned_rows, made_rows = _rows(golden, keys), _rows(made, keys)
    lost = [key for key in pinned_rows if key not in made_rows]
    extra = [key for key in made_rows if key not in pinned_rows]
    if lost:
        yield f"{name}: {len(lost)} of {len(pinned_rows)} rows are missing, such as {_place(keys, lost[0])}"
    if extra:
        yield f"{name}: {len(extra)} rows are new, such as {_place(keys, extra[0])}"
    for rows, what in ((pinned_rows, golden), (made_rows, made)):
        if len(rows) < max(map(len, what.values()), default=0):
            yield f"{name}: several rows have one key ({', '.join(keys)})"
    shared = [key for key in pinned_rows if key in made_rows]
    for column in golden:
        if column in made and column not in keys:
            pairs = [(golden[column][pinned_rows[key]], made[column][made_rows[key]]) for key in shared]
            compare = _sentence_gap if column in table.sentences else _gap
            gaps = [compare(before, now, tolerance) for before, now in pairs]
            wrong = [k for k, gap in enumerate(gaps) if gap > 0]
            if wrong:
                worst = max(wrong, key=lambda k: gaps[k])
                before, now = pairs[worst]
                size = f" (difference {gaps[worst]:.2g})" if math.isfinite(gaps[worst]) else ""
                place = _place(keys, shared[worst])
                yield f"{name}.{column}: {len(wrong)} of {len(pairs)} rows differ, most at {place}: {before!r} pinned, {now!r} now{size}"


def _rows(columns: Columns, keys: list[str]) -> dict[tuple[Any, ...], int]:
    return {key: row for row, key in enumerate(zip(*(columns[key] for key in keys), strict=True))}


def _place(keys: list[str], row: tuple[Any, ...]) -> str:
    return " ".join(f"{key}={value}" for key, value in zip(keys, row, strict=True))


def _gap(golden: Any, made: Any, tolerance: Tolerance) -> float:
    """0 where two values are the same, else how far apart they are."""
    if isinstance(golden, float) and isinstance(made, int | float) and not isinstance(made, bool):
        if tolerance.allows(golden, made):
            return 0.0
        gap = abs(made - golden)
        return gap if math.isfinite(gap) else math.inf
    return 0.0 if type(golden) is type(made) and golden == made else math.inf


def _sentence_gap(golden: str, made: str, tolerance: Tolerance) -> float:
    """The same of the numbers in two sentences: each may differ by one in its last digit, as printed."""
    before, now = (NUMBER.findall(text) for text in (golden, made))
    if len(before) != len(now):
        return math.inf
    gaps = [0.0]
    for first, second in zip(before, now, strict=True):
        gap = abs(_value(first) - _value(second))
        if gap > max(_step(first), _step(second)) * 1.001 + tolerance.absolute:
            gaps.append(gap)
    return max(gaps)


def _value(text: str) -> float:
    return float(text.replace(",", ""))


def _step(text: str) -> float:
    """One in the last digit of a printed number; none of a whole number, which counts something."""
    mantissa, _, exponent = text.partition("e")
    places = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - places) if places or exponent else 0.0


def _plain(value: Any) -> Any:
    """As JSON holds it, numbers rounded; what is not there is None in a text column and NaN in one of numbers."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return value if isinstance(value, bool | int) or value is None else str(value)
