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

import inspect
import itertools
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from rotoscope.command import check_line, make_app, run_line, usual
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.commands import experiment_commands
from rotoscope.experiments.registry import experiments
from rotoscope.removed import check_removed, removed_command, removed_setting
from rotoscope.runs.files import plain
from rotoscope.runs.record import settings_hash
from rotoscope.settings import each, nearest

OUT = "out"
"""The setting of a command that names the folder of its run."""


@dataclass(frozen=True)
class Swept:
    """A command whose runs are the items of a sweep."""

    name: str
    kept: tuple[str, ...] = (OUT,)
    """Settings that the sweep itself gives."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What can be set, each with what it is where it is not set."""
        run = experiment_commands()[self.name]
        parameters = inspect.signature(run).parameters.items()
        several = [name for name, parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL]
        return {name: value for name, value in usual(run).items() if name not in (*self.kept, *several)}

    def line(self, settings: Mapping[str, Any], out: str | os.PathLike[str]) -> list[str]:
        """The words of the command line that makes a run with these settings."""
        words = [self.name]
        for name, value in settings.items():
            words += self._flags(name, value)
        return [*words, f"--{OUT}={os.fspath(out)}"]

    def _flags(self, name: str, value: Any) -> list[str]:
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            if not value:
                return [f"--no-{flag}"] if self.settings[name] is True else []
            return [f"--{flag}"]
        values = value if isinstance(value, list | tuple) else [value]
        for part in values:
            if isinstance(part, bool) or not isinstance(part, str | int | float):
                raise RotoscopeError(f"{name} must be a text, a number or a list of them, found {part!r}")
        return [f"--{flag}={part}" for part in values]

    def understood(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What the command would understand, every value of its kind; settings that are wrong are refused, and nothing is run."""
        check_removed(self.line(settings, OUT))
        values = check_line(make_app({self.name: experiment_commands()[self.name]}), self.line(settings, OUT))
        return {name: value for name, value in values.items() if name != OUT}


def run_words(words: list[str]) -> int:
    """Run an item's command line in this process, without a page unless it is asked for; its exit code."""
    pages = "page" in Swept(words[0]).settings and "--page" not in words
    return run_line(make_app(experiment_commands()), [*words, *(["--no-page"] if pages else [])])


def swept(name: str, refuse: Callable[[str], NoReturn]) -> Swept:
    """A command by its name; one that does not exist, or makes no run, is refused."""
    if message := removed_command(name):
        refuse(message)
    can = [each.name for each in experiments().values() if each.sweepable]
    if name not in can:
        refuse(
            f"no command that makes runs is called '{name}': {nearest(name, can)}{', '.join(can)} can be swept"
        )
    return Swept(name)


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
        text = content.get(key, usual)
        if text is None:
            self.refuse((), f'it names no {key}: give {key} = …, such as {key} = "profile"')
        if not isinstance(text, str) or not text:
            self.refuse((key,), f"{key} must be a text, found {text!r}")
        return str(text)

    def table(self, content: dict[str, Any], key: str) -> dict[str, Any]:
        table = content.get(key, {})
        if not isinstance(table, dict):
            self.refuse((key,), f"{key} must be a table: write [{key}] and its settings below")
        return dict(table)

    def known(self, table: str, key: str, command: Swept) -> None:
        name = key.replace("-", "_")
        if name in command.kept:
            why = "every item has a folder of its own, named after its settings"
            self.refuse((table, key), f"'{key}' cannot be set in a sweep: {why}")
        if message := removed_setting(command.name, name):
            self.refuse((table, key), message)
        if name not in command.settings:
            hint = nearest(name, command.settings)
            self.refuse(
                (table, key),
                f"{command.name} has no setting '{key}': {hint}see rotoscope {command.name} --help",
            )

    def public(self, table: str, key: str, value: Any) -> None:
        """Settings are written down with the sweep, so a password among them is refused."""
        if any(isinstance(part, str) and PASSWORD.search(part) for part in each(value)):
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
            if value in values[:k] and any(
                type(value) is type(earlier) for earlier in values[:k] if earlier == value
            ):
                self.refuse(
                    ("grid", key), f"the axis '{key}' has {value!r} twice, which would be the same item"
                )

    def once(self, grid: dict[str, Any], settings: dict[str, Any]) -> None:
        """Nothing is set twice, however it is written."""
        seen = set[str]()
        for table, keys in (("grid", grid), ("settings", settings)):
            for key in keys:
                name = key.replace("-", "_")
                if name in seen:
                    both = (
                        "is set for all items and is an axis of the grid, too"
                        if table == "settings"
                        else "is there twice"
                    )
                    self.refuse((table, key), f"'{key}' {both}")
                seen.add(name)

    def refuse(self, key: tuple[str, ...], message: str) -> NoReturn:
        line = self.lines.get(key)
        raise RotoscopeError(f"{self.name}{'' if line is None else f', line {line}'}: {message}")


def _lines(text: str, tables: Collection[str]) -> Iterable[tuple[tuple[str, ...], int]]:
    """The line of every key, by its whole name; what stands within a list or a text of several lines may be taken for a key,
    and does no harm: nobody asks for it."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = TABLE.match(line)
        if header and _parts(header[1])[:1] and _parts(header[1])[0] in tables:
            table = _parts(header[1])
            yield table, number
        elif match := KEY.match(line):
            name = (*table, *_parts(match[1] + match[2]))
            for end in range(len(table) + 1, len(name) + 1):
                yield name[:end], number
            rest = line[match.end() :]
            for inner in re.findall(r"""[{,]\s*("[^"]*"|'[^']*'|[\w-]+)\s*=""", rest):
                yield (*name, *_parts(inner)), number


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"""\s*("[^"]*"|'[^']*'|[^.]+)""", name))


# The items of a sweep: every combination of the grid, each an ordinary run in a folder named after its settings.


MOST_ITEMS = 1_000_000
MOST_SIGNS, MOST_NAME = 28, 90
"""Of a value in a folder's name, and of all values."""
KEY_SIGNS = 8
WITHOUT_EFFECT = ("device", "overwrite")
"""Settings that change no result: a run goes on with others."""


@dataclass(frozen=True)
class Item:
    """One run of a sweep."""

    name: str
    """Of its folder: its values of the grid, and the beginning of its settings' hash."""
    command: Swept
    given: Mapping[str, Any]
    """Every setting that is given, those of the grid first."""
    axes: tuple[str, ...]
    understood: Mapping[str, Any] = field(default_factory=dict)
    """The same as its command understands it."""

    @property
    def on_cpu(self) -> bool:
        """Whether it was said that no GPU is used."""
        return self.given.get("device") == "cpu"

    @property
    def spread(self) -> bool:
        """Whether its model is spread over several devices."""
        return bool(self.given.get("device_map"))

    @property
    def place(self) -> dict[str, Any]:
        """Where in the grid it lies."""
        return {axis: self.given[axis] for axis in self.axes}

    def line(self, folder: Path) -> list[str]:
        """The command line that makes this item in a sweep's folder."""
        return self.command.line(self.given, folder / self.name)


def items_of(file: SweepFile) -> list[Item]:
    """Every item, in the order of the grid; its settings are checked as its command would check them."""
    sizes = [len(values) for values in file.grid.values()]
    whole = 1
    for size in sizes:
        whole *= size
    if whole > MOST_ITEMS:
        raise RotoscopeError(
            f"{file.name}: the grid has {whole:,} items, and {MOST_ITEMS:,} are the most; make it smaller"
        )
    items, known = list[Item](), dict[str, Item]()
    for values in itertools.product(*file.grid.values()):
        place = dict(zip(file.grid, values, strict=True))
        item = _item(file, place)
        description = repr(sorted(item.understood.items()))
        if description in known:
            raise RotoscopeError(
                f"{file.name}: the items {known[description].name} and {item.name} are the same; leave one out"
            )
        known[description] = item
        items.append(item)
    return items


def _item(file: SweepFile, place: dict[str, Any]) -> Item:
    given = {**place, **file.settings}
    try:
        understood = file.command.understood(given)
    except RotoscopeError as problem:
        named = ", ".join(f"{axis} = {_text(value)}" for axis, value in place.items())
        raise RotoscopeError(f"{file.name}: the item with {named} cannot be run: {problem}") from problem
    told = {name: value for name, value in understood.items() if name not in WITHOUT_EFFECT or name in place}
    key = settings_hash({"command": file.command.name, "settings": told})[:KEY_SIGNS]
    words = [word for axis, value in place.items() if (word := _word(axis, value))]
    name = "-".join([*words, key])[-MOST_NAME:].lstrip("-.")
    name = f"item-{name}" if name.startswith("checkpoint") else name  # those are parts of runs, and not listed
    return Item(name, file.command, given, tuple(file.grid), understood)


def _word(axis: str, value: Any) -> str:
    """A value in a folder's name: texts as they are, of a path the last part, numbers with what they count."""
    if isinstance(value, bool):
        return axis if value else f"no-{axis}"
    if isinstance(value, str):
        text = Path(value).name if value.startswith((os.sep, ".", "~")) else value
    elif isinstance(value, list):
        text = f"{axis}-{_text(value)}"
    else:
        text = f"{axis}{value}"
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:MOST_SIGNS].rstrip("-.")


def _text(value: Any) -> str:
    return " ".join(str(part) for part in value) if isinstance(value, list) else str(value)


def part_of(items: Sequence[Item], part: tuple[int, int]) -> list[Item]:
    """The items of one part of several: every sixteenth, so that all parts have as much of every model."""
    first, parts = part
    return list(items[first - 1 :: parts])
