"""The commands that can be swept, and an item as the command line that would make it by hand.

An item is run by the very code that its command runs. The command line lies below this room, so it is asked for by name, when
it is needed.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, NoReturn

from rotoscope.errors import RotoscopeError
from rotoscope.settings import nearest

OUT = "out"
"""Commands whose folder is no run."""


@dataclass(frozen=True)
class Swept:
    """A command whose runs are the items of a sweep."""

    name: str
    kept: tuple[str, ...] = (OUT,)
    """Settings that the sweep itself gives."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What can be set, each with what it is where it is not set."""
        run = command_line().COMMANDS[self.name]
        several = [
            name for name, one in inspect.signature(run).parameters.items() if one.kind is one.VAR_POSITIONAL
        ]
        found: dict[str, Any] = import_module("rotoscope.command").usual(run)
        return {name: value for name, value in found.items() if name not in (*self.kept, *several)}

    def line(self, given: Mapping[str, Any], out: str | os.PathLike[str]) -> list[str]:
        """The words of the command line that makes a run with these settings."""
        words = [self.name]
        for name, value in given.items():
            words += self._flags(name, value)
        return [*words, f"--{OUT}={os.fspath(out)}"]

    def _flags(self, name: str, value: Any) -> list[str]:
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            if not value:
                return [f"--no-{flag}"] if self.settings[name] is True else []
            return [f"--{flag}"]
        several = value if isinstance(value, list | tuple) else [value]
        for one in several:
            if isinstance(one, bool) or not isinstance(one, str | int | float):
                raise RotoscopeError(f"{name} must be a text, a number or a list of them, found {one!r}")
        return [f"--{flag}={one}" for one in several]

    def understood(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the command would understand, every value of its kind; settings that are wrong are refused, and nothing is run."""
        found: dict[str, Any] = command_line().check_line(self.line(given, OUT))
        return {name: value for name, value in found.items() if name != OUT}


def command_line() -> Any:
    """The command line, whose room lies below this one."""
    return import_module("rotoscope.cli")


def swept(name: str, refuse: Callable[[str], NoReturn]) -> Swept:
    """A command by its name; one that does not exist, or makes no run, is refused."""
    known = command_line().COMMANDS
    makes_run = import_module("rotoscope.command").makes_run
    can = [one for one, run in known.items() if makes_run(run)]
    if name not in can:
        said = f"{name} makes no run" if name in known else f"there is no command '{name}'"
        refuse(f"{said}: {nearest(name, can)}{', '.join(can)} can be swept")
    return Swept(name)
