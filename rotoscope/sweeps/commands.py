"""The commands that can be swept, and an item as the command line that would make it by hand.

An item is run by the very code that its command runs.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from rotoscope.command import check_line, make_app, run_line, usual
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.commands import experiment_commands
from rotoscope.experiments.registry import experiments
from rotoscope.removed import check_removed, removed_command
from rotoscope.settings import nearest

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
        values = value if isinstance(value, list | tuple) else [value]
        for part in values:
            if isinstance(part, bool) or not isinstance(part, str | int | float):
                raise RotoscopeError(f"{name} must be a text, a number or a list of them, found {part!r}")
        return [f"--{flag}={part}" for part in values]

    def understood(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the command would understand, every value of its kind; settings that are wrong are refused, and nothing is run."""
        check_removed(self.line(given, OUT))
        values = check_line(make_app({self.name: experiment_commands()[self.name]}), self.line(given, OUT))
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
