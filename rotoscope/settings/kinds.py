"""Values as settings hold them: what Python lets one write beside it is understood, anything else is refused in a sentence."""

from __future__ import annotations

import difflib
import numbers
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from rotoscope.errors import RotoscopeError

WORDS: dict[Any, str] = {
    bool: "True or False", int: "a whole number", float: "a number", str: "text", Path: "a path",
}  # fmt: skip
"""What a field of each kind holds."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that is most like a wrong one; empty where none is."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean '{close[0]}'? " if close else ""


def either(names: Iterable[str]) -> str:
    """What there is to choose from, in words."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def each(value: Any) -> tuple[Any, ...]:
    """One value or several, as several."""
    value = _unwrapped(value)
    one = isinstance(value, str | bytes | os.PathLike | Mapping) or not isinstance(value, Iterable)
    return (value,) if one else tuple(_unwrapped(part) for part in value)


def listed(name: str, values: Any) -> str:
    """One whole number or several as they are written on a command line: 20,31."""
    return ",".join(str(held(name, int, one)) for one in each(values))


def held(name: str, kind: Any, value: Any) -> Any:
    """A value as a field annotated like this holds it: several where one was given, a path for its name, a plain number.

    What is of another kind is refused; whether a number is whole, and within its bounds, is asked of those.
    """
    value = _unwrapped(value)
    if get_origin(kind) in (Union, UnionType):
        if value is None and NoneType in get_args(kind):
            return None
        [kind] = [one for one in get_args(kind) if one is not NoneType]
    if get_origin(kind) is tuple:
        return _several(name, get_args(kind), each(value))
    if get_origin(kind) is Literal:
        return _named(name, get_args(kind), value)
    if kind is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    if kind is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    expected: Any = numbers.Real if kind in (int, float) else kind
    if kind in WORDS and not isinstance(value, expected):
        _refuse(name, WORDS[kind], value)
    return value


def _several(name: str, kinds: tuple[Any, ...], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """One kind for however many values there are, or a kind for each."""
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(values)
    if len(kinds) != len(values):
        _refuse(name, f"{len(kinds)} values", values)
    return tuple(held(name, kind, value) for kind, value in zip(kinds, values, strict=True))


def _named(name: str, known: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, str):
        _refuse(name, either(known), value)
    if value not in known:
        raise RotoscopeError(f"unknown {name} '{value}'; {nearest(value, known)}choose {either(known)}")
    return value


def _unwrapped(value: Any) -> Any:
    """The number that an array or a tensor without axes holds."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _refuse(name: str, words: str, found: Any) -> NoReturn:
    raise RotoscopeError(f"{name} must be {words}, found {found!r}")
