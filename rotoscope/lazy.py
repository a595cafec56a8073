"""A package's public names, imported when they are first used: `rotoscope --help` must not wait for torch.

A package lists its names as imports under `if TYPE_CHECKING`, which type checkers read as they stand:

    if TYPE_CHECKING: from rotoscope.lab.trainer import Trainer as Trainer
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names are listed under `if TYPE_CHECKING`."""
    surface = _surface(Path(file))

    def get(name: str) -> Any:
        if name not in surface:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = surface[name]
        owner = import_module(module)
        if module == package or not hasattr(owner, original):
            found: Any = import_module(f"{module}.{original}")
        else:
            found = getattr(owner, original)
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted(surface), sorted(surface)


def _surface(file: Path) -> dict[str, tuple[str, str]]:
    """The imports under `if TYPE_CHECKING`: name -> (module, its name there)."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    listed = next(node for node in module.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in listed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


WRITERS = {
    "report": "rotoscope.report:write_report",
    "dataset": "rotoscope.lab.sequences:save_dataset",
}
"""Methods of results and samples that write what a folder below theirs knows how to write."""


def writer(name: str) -> Callable[..., Any]:
    """The function behind such a method, imported now."""
    write: Callable[..., Any] = resolve(WRITERS[name])
    return write


def resolve(path: str) -> Any:
    """The object that "module:name" names; the module is imported now."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
