"""Many runs: a grid as a list of items, run here, in parts or on a Ray cluster, and one table over all of them.

`rs.sweep("sweep.toml", on="here")` runs a sweep, `rs.sweep.open("sweeps/first")` opens one: the room itself can be called.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rotoscope.results.sweep import Sweep
from rotoscope.sweep import atlas
from rotoscope.sweep.driver import run_sweep
from rotoscope.sweep.file import SweepFile, read_file
from rotoscope.sweep.items import Item, items_of

__all__ = [
    "Item",
    "Sweep",
    "SweepFile",
    "atlas",
    "items_of",
    "open",
    "read_file",
    "run_sweep",
]


def open(path: str | Path) -> Sweep:
    """Open a sweep's folder, finished or not; `rs.open` does the same."""
    return Sweep.open(path)


class _Callable(ModuleType):
    """A module that is its most important function, too."""

    def __call__(self, file: str | Path, **how: Any) -> Sweep:
        """Run a sweep: see `run_sweep`."""
        return run_sweep(file, **how)


sys.modules[__name__].__class__ = _Callable
