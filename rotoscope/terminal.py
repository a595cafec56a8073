"""Words on a terminal: none is broken, and no line is longer than the terminal is wide unless one word is.

Where the output goes into a file or a pipe, sentences stay in one line, whatever their length.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_float_dtype
from rich.console import Console
from rich.text import Text

PLAIN_WIDTH = 112
"""As wide as tables are where there is no terminal."""
GAP, HANGING = 2, 2
"""Spaces between columns, and before what goes on in the next line."""


def new_console(**options: Any) -> Console:
    """The terminal as it is, or as wide as COLUMNS says; where there is neither, sentences are as long as they are."""
    console = Console(highlight=False, **options)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, width=PLAIN_WIDTH, soft_wrap=True, **options)


def say(console: Console, sentence: str, *, markup: bool = True) -> None:
    """A sentence, or several lines of them; no colours by guess."""
    text = Text.from_markup(sentence) if markup else Text(sentence)
    for line in text.split("\n", allow_blank=True):
        before = len(line.plain) - len(line.plain.lstrip())
        for part in [line] if console.soft_wrap else in_lines(line, console.width, before + HANGING):
            console.print(part, soft_wrap=True)


def in_lines(text: Text, width: int, hanging: int = 0) -> list[Text]:
    """A text in lines of at most a width, which end between words; lines after the first are indented."""
    ends: list[int] = []
    begin, indent, first = 0, 0, True
    for word in re.finditer(r"\S+", text.plain):
        if not first and word.end() - begin + indent > width:
            ends.append(word.start())
            begin, indent = word.start(), hanging
        first = False
    lines = text.divide(ends)
    for k, line in enumerate(lines):
        line.rstrip()
        if k:
            line.pad_left(hanging)
    return list(lines)


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, what stands under it, and whether that may go on in a next line."""

    title: str
    cells: Sequence[Text]
    wraps: bool = True
    right: bool = False

    @property
    def natural(self) -> int:
        """As wide as it would like to be."""
        return max(len(self.title), *(len(cell.plain) for cell in self.cells), 1)

    @property
    def least(self) -> int:
        """No narrower, or words would be broken."""
        words = [self.title, *(cell.plain for cell in self.cells if self.wraps)]
        whole = [len(cell.plain) for cell in self.cells if not self.wraps]
        return max([len(word) for text in words for word in text.split()] + whole, default=1)


def show_columns(console: Console, columns: Sequence[Column], keys: int = 1) -> None:
    """Columns side by side; those that do not fit stand below, beside the first ones (`keys`) again."""
    for part in _parts(columns, console.width, keys):
        widths = _widths(part, console.width)
        _show_row(console, part, widths, [Text(column.title, style="dim") for column in part])
        for row in zip(*(column.cells for column in part), strict=True):
            _show_row(console, part, widths, row)


def _parts(columns: Sequence[Column], width: int, keys: int) -> Iterator[list[Column]]:
    keys = max(keys, 1)
    while keys > 1 and sum(shown.least + GAP for shown in columns[:keys]) > width / 2:
        keys -= 1
    part = list(columns[:keys])
    for column in columns[len(part) :]:
        if len(part) > keys and sum(shown.least + GAP for shown in part) + column.least > width:
            yield part
            part = part[:keys]
        part.append(column)
    yield part


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """The least that each needs; what is left goes to whoever lacks most."""
    widths, natural = [column.least for column in columns], [column.natural for column in columns]
    for _ in range(width - sum(widths) - GAP * (len(columns) - 1)):
        lacks = [wide - narrow for wide, narrow in zip(natural, widths, strict=True)]
        if max(lacks) <= 0:
            break
        widths[lacks.index(max(lacks))] += 1
    return widths


def _show_row(console: Console, columns: Sequence[Column], widths: list[int], cells: Sequence[Text]) -> None:
    parts = [in_lines(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for k in range(max(len(lines) for lines in parts)):
        line = Text()
        for column, width, lines in zip(columns, widths, parts, strict=True):
            piece = lines[k].copy() if k < len(lines) else Text()
            piece.align("right" if column.right else "left", width)
            line.append_text(piece).append(" " * GAP)
        line.rstrip()
        console.print(line, soft_wrap=True)


def show_next(console: Console, *commands: Sequence[object]) -> None:
    """How every command ends: what to type next. A command that is longer than a line goes on after a backslash."""
    say(console, "")
    for command in commands:
        lines = ["next: rotoscope"]
        for word in (shlex.quote(str(part)) for part in command):
            if not console.soft_wrap and len(lines[-1]) + len(word) + 3 > console.width:
                lines.append("   ")
            lines[-1] += f" {word}"
        console.print(Text(" \\\n".join(lines)), soft_wrap=True)


# Tables of results: whole ones, and short ones of which every row is a line.


MOST_ROWS, FEW_ROWS = 24, 8
"""Rows of a table that are shown whole, and of one in a summary."""
LONGEST_CELL = 28
"""Signs of a cell in a summary."""
ASKED = ("tau", "theta", "level")
"""Columns of numbers that say what a row is about."""


def show_table(console: Console, table: pd.DataFrame, title: str) -> None:
    """Any table of results, rounded for reading; a long one is cut."""
    say(console, f"\n{title}", markup=False)
    cells = {str(name): [_cell(value) for value in table[name].head(MOST_ROWS)] for name in table}
    for low in [name for name in cells if name.endswith("low")]:
        _with_interval(cells, low.removesuffix("low"))
    columns = [
        Column(name.replace("_", " "), [Text(cell) for cell in column], wraps=not _is_number(column))
        for name, column in cells.items()
    ]
    measured = [is_float_dtype(table[name]) and name not in ASKED for name in table]
    show_columns(console, columns, keys=[*measured, True].index(True))
    if len(table) > MOST_ROWS:
        say(console, f"{MOST_ROWS} of {len(table):,} rows; the page has more")


def _with_interval(shown: dict[str, list[str]], prefix: str) -> None:
    """The two ends of an interval in the column of the value they belong to, where that is known by its name."""
    low, high, names = f"{prefix}low", f"{prefix}high", list(shown)
    bare = ["mean", "effect", "value"]
    named = [prefix.rstrip("_"), f"{prefix}value", f"{prefix}exponent"] if prefix else bare
    base = next((name for name in named if name in shown), None)
    if base is not None and names[names.index(low) + 1 :][:1] == [high]:
        ends = zip(shown[base], shown.pop(low), shown.pop(high), strict=True)
        shown[base] = [f"{value} [{a}, {b}]" if a and b else value for value, a, b in ends]


def _is_number(cells: list[str]) -> bool:
    """Whether a column holds numbers, with their intervals: they are not taken apart."""
    return all(cell[:1] in "-+.0123456789" for cell in cells)


def _cell(value: object) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.01 else f"{value:.1e}"


@dataclass(frozen=True)
class Grid:
    """A small table of words: every row is one line, and columns that have no room stand below, beside the first again."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    indent: int = 0
    more: int = 0
    """Rows that are left out."""

    @classmethod
    def of(cls, table: pd.DataFrame, rows: int = FEW_ROWS) -> Grid:
        """The first rows of a table, rounded, with intervals beside their values, without columns that are empty.

        How many rows there are beyond these is said below.
        """
        rows = len(table) if len(table) == rows + 1 else rows
        cells = {str(name): [_cell(value) for value in table[name].head(rows)] for name in table}
        for low in [name for name in cells if name.endswith("low")]:
            _with_interval(cells, low.removesuffix("low"))
        short = {name: [_shortened(cell) for cell in column] for name, column in cells.items() if any(column)}
        return cls(
            [name.replace("_", " ") for name in short],
            list(zip(*short.values(), strict=True)),
            more=max(0, len(table) - rows),
        )

    def lines(self, width: int) -> list[str]:
        """The table in lines of at most so many signs."""
        columns = list(zip(self.header, *self.rows, strict=True))
        padded = [
            _padded(column, right=k > 0 and _is_number([cell for cell in column[1:] if cell]))
            for k, column in enumerate(columns)
        ]
        parts, part = [], padded[:1]
        for column in padded[1:]:
            if len(part) > 1 and self.indent + sum(len(one[0]) + GAP for one in part) + len(column[0]) > width:
                parts.append(part)
                part = padded[:1]
            part.append(column)
        lines = [(" " * GAP).join(row).rstrip() for part in [*parts, part] for row in zip(*part, strict=True)]
        lines += [f"and {self.more} more rows"] if self.more else []
        return [" " * self.indent + line for line in lines if line]


def _padded(column: Sequence[str], *, right: bool) -> list[str]:
    width = max(map(len, column))
    return [cell.rjust(width) if right else cell.ljust(width) for cell in column]


def _shortened(cell: str) -> str:
    return cell if len(cell) <= LONGEST_CELL else f"{cell[: LONGEST_CELL - 1].rstrip()}…"


# What a command shows when it is done, in about fifteen lines.


CAVEAT_LETTERS = 240
"""Caveats are shown up to about so many letters, at least one of them; the others with --verbose."""
NOT_ASKED = "not asked: "
"""So begin sentences about what a run leaves open, with the flag that asks it; all of them are shown."""
Lines = list["str | Grid"]
"""Sentences and small tables, one below the other."""


@dataclass(frozen=True)
class Screen:
    """What came out, and against what; the rest is shown with --verbose."""

    found: Sequence[str | Grid] = ()
    against: Sequence[str | Grid] = ()
    details: Sequence[tuple[str, Callable[[], pd.DataFrame]]] = ()
    """Whole tables for --verbose, each with its title."""


def show_screen(console: Console, screen: Screen, caveats: Sequence[str], *, verbose: bool = False) -> None:
    """What came out, against what, and what to be careful of."""
    for block in (screen.found, screen.against):
        show_block(console, block)
    say(console, "")
    for sentence in (caveat for caveat in caveats if NOT_ASKED in caveat):
        say(console, sentence, markup=False)
    caveats = [caveat for caveat in caveats if NOT_ASKED not in caveat]
    letters = itertools.accumulate(map(len, caveats))
    fit = len(caveats) if verbose else max(1, sum(total <= CAVEAT_LETTERS for total in letters))
    begin = f"careful ({len(caveats) - fit} more with --verbose)" if fit < len(caveats) else "careful"
    for caveat in caveats[:fit]:
        say(console, f"{begin}: {caveat}", markup=False)
        begin = "careful"


def show_block(console: Console, block: Sequence[str | Grid]) -> None:
    """Sentences and small tables, after an empty line."""
    if block:
        say(console, "")
    for part in block:
        if isinstance(part, str):
            say(console, part, markup=False)
        else:
            for line in part.lines(console.width):
                console.print(Text(line), soft_wrap=True)


def show_place(
    console: Console, folder: Path, files: Sequence[Path], page: Path | None = None, proof: float | None = None
) -> None:
    """Where the run is, what to open, and how closely the model's own attention was rebuilt."""
    tables = sum(file.suffix == ".parquet" for file in files)
    figures = sum(file.suffix in (".png", ".pdf", ".svg") for file in files)
    counts = [f"{tables} tables" if tables != 1 else "1 table"]
    counts += [f"{figures} figure files"] if figures else []
    counts += [] if proof is None else [f"self-check {proof:.1e}"]
    opened = "" if page is None else f"  →  open {page}"
    say(console, f"{folder}  ({', '.join(counts)}){opened}", markup=False)


def as_flags(settings: dict[str, Any], leaving: Iterable[str] = ()) -> list[str]:
    """Settings as the flags that were used."""
    words: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if name in leaving:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", *map(str, value if isinstance(value, tuple | list) else [value])]
    return words
