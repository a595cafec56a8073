"""The command line: the commands of all experiments, and those that look at runs.

Nothing heavy is imported before a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from cyclopts import App

from rotoscope.cli.doctor import doctor
from rotoscope.command import complain, make_app, run_line
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.commands import experiment_commands
from rotoscope.experiments.registry import problems
from rotoscope.removed import check_removed
from rotoscope.report import report, serve

__all__ = ["app", "commands", "main"]


def commands() -> dict[str, Callable[..., int]]:
    """Every command by its name."""
    return experiment_commands() | {"report": report, "serve": serve, "doctor": doctor}


def app() -> App:
    """The command line as an application."""
    return make_app(commands())


def main(tokens: list[str] | None = None) -> None:
    """Run a command; anything wrong with the input is one sentence on standard error and exit code 2."""
    words = sys.argv[1:] if tokens is None else tokens
    for problem in problems():
        complain(problem)
    try:
        check_removed(words)
    except RotoscopeError as problem:
        complain(str(problem))
        sys.exit(2)
    sys.exit(run_line(app(), words))
