"""Words on a terminal: none is broken, and no line is longer than the terminal is wide unless one word is.

Where the output goes into a file or a pipe, sentences stay in one line, whatever their length.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

PLAIN_WIDTH = 112
"""As wide as tables are where there is no terminal."""
GAP, HANGING = 2, 2
"""Spaces between columns, and before what goes on in the next line."""


def new_console(**options: Any) -> Console:
    """The terminal as it is, or as wide as COLUMNS says; where there is neither, sentences are as long as they are."""
    found = Console(highlight=False, **options)
    if found.is_terminal or "COLUMNS" in os.environ:
        return found
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
    while keys > 1 and sum(one.least + GAP for one in columns[:keys]) > width / 2:
        keys -= 1
    part = list(columns[:keys])
    for column in columns[len(part) :]:
        if len(part) > keys and sum(one.least + GAP for one in part) + column.least > width:
            yield part
            part = part[:keys]
        part.append(column)
    yield part


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """The least that each needs; what is left goes to whoever lacks most."""
    widths, natural = [column.least for column in columns], [column.natural for column in columns]
    for _ in range(width - sum(widths) - GAP * (len(columns) - 1)):
        lacks = [wanted - given for wanted, given in zip(natural, widths, strict=True)]
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
    say(console, "\nnext")
    for command in commands:
        lines = ["  rotoscope"]
        for word in (shlex.quote(str(one)) for one in command):
            if not console.soft_wrap and len(lines[-1]) + len(word) + 3 > console.width:
                lines.append("   ")
            lines[-1] += f" {word}"
        console.print(Text(" \\\n".join(lines)), soft_wrap=True)


def as_flags(given: dict[str, Any], leaving: Iterable[str] = ()) -> list[str]:
    """Settings as the flags that were used."""
    words: list[str] = []
    for name, value in given.items():
        if name in leaving:
            continue
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [
                f"--{flag}",
                *(str(one) for one in (value if isinstance(value, tuple | list) else [value])),
            ]
    return words
