"""A measure is a function from a layer's heads to numbers for each of them; the built-in ones are written the same way.

@rs.measure
def previous_token(heads: rs.LayerHeads) -> dict[str, Tensor]:
    return {"previous_token": heads.attention[..., -2]}
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rotoscope.errors import RotoscopeError

if TYPE_CHECKING:
    from rotoscope.models.layer import LayerHeads
    from rotoscope.shapes import Tensor

REGISTERED: dict[str, Measure] = {}
"""Measures by the name under which settings hold them: module:function."""


@dataclass(frozen=True)
class Measure:
    """A function that is called once for every layer, or for several layers of one shape together."""

    function: Callable[[LayerHeads], dict[str, Tensor]]

    def __call__(self, heads: LayerHeads) -> dict[str, Tensor]:
        return self.function(heads)

    @property
    def name(self) -> str:
        """What messages call it: the function's own name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def path(self) -> str:
        """What settings call it, module:function."""
        return f"{getattr(self.function, '__module__', '')}:{self.name}"

    @property
    def code(self) -> str:
        """A checksum of what the function does, by which an edited measure is noticed."""
        from rotoscope.models.foreign_code import function_code

        return function_code(self.function)


def measure(function: Callable[[LayerHeads], dict[str, Tensor]]) -> Measure:
    """Make a function from a layer's heads to columns of [batch, heads] a measure that `rs.profile` can be given."""
    if not callable(function) or getattr(function, "__name__", "") == "<lambda>":
        raise RotoscopeError(
            f"a measure is a function with a name, found {function!r}; write def my_measure(heads): ..."
        )
    registered = function if isinstance(function, Measure) else Measure(function)
    REGISTERED[registered.path] = registered
    return registered


def measure_path(measured: Any) -> str:
    """The name of a measure in settings; a function is registered under it."""
    return measured if isinstance(measured, str) else measure(measured).path


def find_measure(path: str) -> Measure:
    """A registered measure, or one that is imported: "module:function" or "file.py:function"."""
    if path in REGISTERED:
        return REGISTERED[path]
    module, _, name = path.rpartition(":")
    try:
        return measure(getattr(_imported(module), name))
    except Exception as problem:
        raise RotoscopeError(
            f"the measure '{path}' cannot be imported ({type(problem).__name__}: {problem}); write module:function, or "
            "file.py:function, as in my_measures.py:previous_token"
        ) from problem


def measure_file(path: str) -> Path | None:
    """The file that a measure's name in settings leads to; nothing is imported but the packages around a module."""
    module = path.rpartition(":")[0]
    if module.endswith(".py"):
        return Path(module)
    try:
        spec = find_spec(module) if module else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _imported(module: str) -> Any:
    if not module.endswith(".py"):
        return import_module(module)
    spec = spec_from_file_location(Path(module).stem, module)
    if spec is None or spec.loader is None:
        raise ImportError(f"{module} is no Python file")
    loaded = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
