"""What the import hook of `conftest.py` puts around every function of the package: beartype, which checks every call."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Self, get_args, get_origin

import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype

# A number out of a table will do for a number, and an int for a float.
NUMBERS = {
    int: int | np.integer,
    float: float | int | np.floating | np.integer,
    bool: bool | np.bool_,
}
CONFIGURATION = BeartypeConf(hint_overrides=FrozenDict(NUMBERS))


@cache
def for_type_checkers(module: str) -> frozenset[str]:
    """Names that are imported under `if TYPE_CHECKING:` alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse:
            imports = [one for one in node.body if isinstance(one, ast.Import | ast.ImportFrom)]
            found |= {alias.asname or alias.name for one in imports for alias in one.names}
    return frozenset(found)


def left_alone(hint: Any, module: str) -> bool:
    """What cannot be judged here, or should not be.

    A string is a hint with a name that jaxtyping did not find, often one of a class further down, which beartype looks
    up when it is needed; names for type checkers alone are never found. `Self` would need a class decorated as a whole.
    A Literal is refused by the program itself, in a sentence that tests ask for.
    """
    if isinstance(hint, str):
        names = {node.id for node in ast.walk(ast.parse(hint)) if isinstance(node, ast.Name)}
        return bool(names & for_type_checkers(module))
    return (
        hint is Self or get_origin(hint) is Literal or any(left_alone(part, module) for part in get_args(hint))
    )


def checked(function: Callable[..., Any]) -> Any:
    """The function with its calls checked; one within another would be prepared again at every call of that."""
    if "<locals>" in function.__qualname__:
        return function
    hints = function.__annotations__
    for name in [name for name, hint in hints.items() if left_alone(hint, function.__module__)]:
        del hints[name]
    return beartype(function, conf=CONFIGURATION)
