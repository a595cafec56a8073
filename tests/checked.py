"""What `conftest.py` puts around every function of the package: beartype, which checks every call, and jaxtyping."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any, Literal, Self, get_args, get_origin

import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping import jaxtyped

# A number out of a table will do for a number, and an int for a float.
NUMBERS = {
    int: int | np.integer,
    float: float | int | np.floating | np.integer,
    bool: bool | np.bool_,
}
ARRAYS = ("Float[", "Int[", "Bool[")
CONFIGURATION = BeartypeConf(hint_overrides=FrozenDict(NUMBERS))


@cache
def for_type_checkers(module: str) -> frozenset[str]:
    """Names that are imported under `if TYPE_CHECKING:` alone."""
    found: set[str] = set()
    source = inspect.getsource(sys.modules[module])
    if "TYPE_CHECKING" not in source:  # most have none, and parsing takes a while
        return frozenset()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse:
            imports = [one for one in node.body if isinstance(one, ast.Import | ast.ImportFrom)]
            found |= {alias.asname or alias.name for one in imports for alias in one.names}
    return frozenset(found)


def left_alone(hint: Any, module: str) -> bool:
    """What cannot be judged here, or should not be.

    Names for type checkers alone are never found. `Self` would need a class decorated as a whole. A Literal is refused by
    the program itself, in a sentence that tests ask for.
    """
    if isinstance(hint, str):
        known, names = vars(sys.modules[module]), names_in(hint)
        hidden = names & (for_type_checkers(module) | {"Self", "Literal"})
        return bool(hidden) or any(
            left_alone(known[name], module) for name in names if get_args(known.get(name))
        )
    return (
        hint is Self or get_origin(hint) is Literal or any(left_alone(part, module) for part in get_args(hint))
    )


@cache
def names_in(hint: str) -> frozenset[str]:
    """The names an annotation is made of."""
    return frozenset(node.id for node in ast.walk(ast.parse(hint)) if isinstance(node, ast.Name))


def checked(function: Callable[..., Any]) -> Any:
    """The function with its calls checked, shapes too where it names some."""
    if any(array in str(hint) for hint in function.__annotations__.values() for array in ARRAYS):
        return jaxtyped(function, typechecker=plainly_checked)
    return plainly_checked(function)


def plainly_checked(function: Callable[..., Any]) -> Any:
    """Whoever asks the function for its annotations, as the command line does, finds all of them."""
    hints = function.__annotations__
    function.__annotations__ = {
        name: hint for name, hint in hints.items() if not left_alone(hint, function.__module__)
    }
    watched = beartype(function, conf=CONFIGURATION)
    function.__annotations__ = watched.__annotations__ = hints
    return watched


def blocks(node: ast.AST) -> Iterator[ast.AST]:
    """Statements and what holds them, without their expressions, which are most of a tree."""
    yield node
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for part in getattr(node, name, ()):
            yield from blocks(part)


def is_kernel(function: ast.FunctionDef) -> bool:
    """What Triton compiles: it is no function of Python's."""
    return any(ast.unparse(decorator) == "triton.jit" for decorator in function.decorator_list)


class Loader(SourceFileLoader):
    """Loads a module of the package with `checked` around its functions and methods; those within others are left alone."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = ast.parse(data, path)
        for node in blocks(tree):
            if isinstance(node, ast.Module | ast.ClassDef):
                for part in [
                    one for one in node.body if isinstance(one, ast.FunctionDef) and not is_kernel(one)
                ]:
                    decorator = ast.parse("__import__('tests.checked').checked.checked", mode="eval").body
                    for inner in ast.walk(decorator):
                        ast.copy_location(inner, part)
                    part.decorator_list.append(decorator)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> CodeType:
        """Always from the source: what is kept in `__pycache__` is not checked."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class Finder(PathFinder):
    """Finds the package's modules."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.split(".")[0] != "rotoscope":
            return None
        spec = super().find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec
