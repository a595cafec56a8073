"""`sweep.toml`: a command, a grid, and settings that all items share.

    command = "profile"
    out = "sweeps/first"
    [grid]
    model = ["smollm2", "letter"]
    seed = [0, 1]
    [settings]
    prompts = 4

Whatever is wrong with it is said with the line it stands in, before anything starts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rotoscope.errors import RotoscopeError
from rotoscope.results.files import plain
from rotoscope.settings.base import nearest
from rotoscope.settings.kinds import each
from rotoscope.sweeps.commands import Swept, swept

KEYS = ("command", "out", "grid", "settings")
KEY = re.compile(r"""\s*("[^"]*"|'[^']*'|[\w-]+)((?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*=""")
PASSWORD = re.compile(r"://[^/\s]*@")
"""A name or a password in an address."""
TABLE = re.compile(r"""\s*\[{1,2}\s*([^\[\]]+?)\s*\]""")


@dataclass(frozen=True)
class SweepFile:
    """What a sweep's file says, checked as far as it can be without a model."""

    command: Swept
    out: Path
    grid: Mapping[str, list[Any]]
    """By axis, in the order of the file; the last one changes fastest."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = "sweep"
    """Of the file."""


def read_file(path: str | Path) -> SweepFile:
    """A sweep's file; one that is missing, damaged or means nothing is refused in a sentence."""
    file = Path(path)
    try:
        text = plain(file).read_text(encoding="utf-8")
    except FileNotFoundError as missing:
        raise RotoscopeError(f"no such sweep file: {file}") from missing
    except (OSError, ValueError) as problem:
        raise RotoscopeError(f"the sweep file {file} cannot be read ({problem})") from problem
    try:
        content = tomllib.loads(text)
    except ValueError as problem:
        raise RotoscopeError(f"the sweep file {file} cannot be read ({problem})") from problem
    return _Reading(file.name, text, content.keys()).checked(content)


class _Reading:
    """A file's content and where in it everything stands."""

    def __init__(self, name: str, text: str, tables: Collection[str]) -> None:
        self.name = name
        self.lines: dict[tuple[str, ...], int] = {}
        for key, line in _lines(text, tables):
            self.lines.setdefault(key, line)

    def checked(self, content: dict[str, Any]) -> SweepFile:
        for key in content:
            if key not in KEYS:
                self.refuse((key,), f"unknown key '{key}': {nearest(key, KEYS)}there are {', '.join(KEYS)}")
        command = swept(self.text(content, "command"), lambda said: self.refuse(("command",), said))
        out = Path(self.text(content, "out", "sweeps/" + Path(self.name).stem))
        grid, settings = self.table(content, "grid"), self.table(content, "settings")
        if not grid:
            self.refuse(("grid",), "the sweep has no grid: give [grid] with a list of values for each setting")
        for table, given in (("grid", grid), ("settings", settings)):
            for key, value in given.items():
                self.known(table, key, command)
                self.public(table, key, value)
        for key, values in grid.items():
            self.axis(key, values)
        self.once(grid, settings)
        axes, shared = ({k.replace("-", "_"): v for k, v in given.items()} for given in (grid, settings))
        return SweepFile(command, out, axes, shared, self.name)

    def text(self, content: dict[str, Any], key: str, usual: str | None = None) -> str:
        """A key with a text; one that has to be there is missed."""
        found = content.get(key, usual)
        if found is None:
            self.refuse((), f'it names no {key}: give {key} = …, such as {key} = "profile"')
        if not isinstance(found, str) or not found:
            self.refuse((key,), f"{key} must be a text, found {found!r}")
        return str(found)

    def table(self, content: dict[str, Any], key: str) -> dict[str, Any]:
        found = content.get(key, {})
        if not isinstance(found, dict):
            self.refuse((key,), f"{key} must be a table: write [{key}] and its settings below")
        return dict(found)

    def known(self, table: str, key: str, command: Swept) -> None:
        name = key.replace("-", "_")
        if name in command.kept:
            why = "every item has a folder of its own, named after its settings"
            self.refuse((table, key), f"'{key}' cannot be set in a sweep: {why}")
        if name not in command.settings:
            hint = nearest(name, command.settings)
            self.refuse(
                (table, key),
                f"{command.name} has no setting '{key}': {hint}see rotoscope {command.name} --help",
            )

    def public(self, table: str, key: str, value: Any) -> None:
        """Settings are written down with the sweep, so a password among them is refused."""
        if any(isinstance(one, str) and PASSWORD.search(one) for one in each(value)):
            self.refuse(
                (table, key),
                f"the address in '{key}' holds a name or a password, which would be written down with the sweep; set the "
                f"variable ROTOSCOPE_ASK_ENDPOINT to the address instead, or ROTOSCOPE_API_KEY to a key",
            )

    def axis(self, key: str, values: Any) -> None:
        """An axis is a list with something in it, nothing twice."""
        if not isinstance(values, list):
            self.refuse(
                ("grid", key),
                f"the axis '{key}' must be a list, found {values!r}: write [{values!r}], or move it to [settings]",
            )
        if not values:
            self.refuse(("grid", key), f"the axis '{key}' is empty; give at least one value, or leave it out")
        for k, value in enumerate(values):
            if value in values[:k] and any(type(value) is type(one) for one in values[:k] if one == value):
                self.refuse(
                    ("grid", key), f"the axis '{key}' has {value!r} twice, which would be the same item"
                )

    def once(self, grid: dict[str, Any], settings: dict[str, Any]) -> None:
        """Nothing is set twice, however it is written."""
        seen = set[str]()
        for table, given in (("grid", grid), ("settings", settings)):
            for key in given:
                name = key.replace("-", "_")
                if name in seen:
                    both = (
                        "is set for all items and is an axis of the grid, too"
                        if table == "settings"
                        else "is there twice"
                    )
                    self.refuse((table, key), f"'{key}' {both}")
                seen.add(name)

    def refuse(self, key: tuple[str, ...], said: str) -> NoReturn:
        line = self.lines.get(key)
        raise RotoscopeError(f"{self.name}{'' if line is None else f', line {line}'}: {said}")


def _lines(text: str, tables: Collection[str]) -> Iterable[tuple[tuple[str, ...], int]]:
    """The line of every key, by its whole name; what stands within a list or a text of several lines may be taken for a key,
    and does no harm: nobody asks for it."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = TABLE.match(line)
        if header and _parts(header[1])[:1] and _parts(header[1])[0] in tables:
            table = _parts(header[1])
            yield table, number
        elif found := KEY.match(line):
            name = (*table, *_parts(found[1] + found[2]))
            for end in range(len(table) + 1, len(name) + 1):
                yield name[:end], number
            rest = line[found.end() :]
            for inner in re.findall(r"""[{,]\s*("[^"]*"|'[^']*'|[\w-]+)\s*=""", rest):
                yield (*name, *_parts(inner)), number


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"""\s*("[^"]*"|'[^']*'|[^.]+)""", name))
