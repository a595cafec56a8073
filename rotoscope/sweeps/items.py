"""The items of a sweep: every combination of the grid, each an ordinary run in a folder named after its settings."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.results.record import settings_hash
from rotoscope.sweeps.commands import Swept
from rotoscope.sweeps.file import SweepFile

MOST_ITEMS = 1_000_000
MOST_SIGNS, MOST_NAME = 28, 90
"""Of a value in a folder's name, and of all values."""
KEY_SIGNS = 8
WITHOUT_EFFECT = ("device", "force", "overwrite")
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
    made, known = list[Item](), dict[str, Item]()
    for values in itertools.product(*file.grid.values()):
        place = dict(zip(file.grid, values, strict=True))
        item = _item(file, place)
        said = repr(sorted(item.understood.items()))
        if said in known:
            raise RotoscopeError(
                f"{file.name}: the items {known[said].name} and {item.name} are the same; leave one out"
            )
        known[said] = item
        made.append(item)
    return made


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
    return " ".join(str(one) for one in value) if isinstance(value, list) else str(value)


def part_of(items: Sequence[Item], part: tuple[int, int]) -> list[Item]:
    """The items of one part of several: every sixteenth, so that all parts have as much of every model."""
    first, parts = part
    return list(items[first - 1 :: parts])
