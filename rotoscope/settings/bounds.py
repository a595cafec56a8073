"""The numbers that a setting can have, and why no others."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rotoscope.errors import RotoscopeError


@dataclass(frozen=True)
class Bounds:
    """From the least to the most, both included unless said otherwise."""

    least: float
    most: float
    why: str
    """What is wrong with a number outside; it stands at the end of the sentence."""
    whole: bool = True
    least_itself: bool = True
    most_itself: bool = True
    percent: bool = False
    """Whether it may be written as a percentage."""

    def read(self, given: Any) -> Any:
        """0.25 from "25 %", "25%" or "0.25", where percentages may be written; what is no text is left as it is."""
        if isinstance(given, tuple | list):
            return tuple(self.read(one) for one in given)
        if not self.percent or not isinstance(given, str):
            return given
        number, per_cent = given.strip().removesuffix("%"), given.strip().endswith("%")
        try:
            return float(number) / (100 if per_cent else 1)
        except ValueError as problem:
            raise RotoscopeError(f"'{given}' is no share: write 0.25 or 25%") from problem

    def check(self, name: str, value: Any) -> None:
        """Refuse a value, or one of several, that lies outside."""
        for one in _each(value):
            kind: Any = numbers.Integral if self.whole else numbers.Real
            if not isinstance(one, kind) or isinstance(one, bool) or math.isnan(one):
                raise RotoscopeError(f"{name} must be a {'whole ' * self.whole}number, found {one}")
            if one < self.least or (one == self.least and not self.least_itself):
                self._refuse(name, "at least" if self.least_itself else "more than", self.least, one)
            if one > self.most or (one == self.most and not self.most_itself):
                self._refuse(name, "at most" if self.most_itself else "less than", self.most, one)

    def _refuse(self, name: str, words: str, bound: float, found: float) -> None:
        shown = f"{bound:,}" if self.whole else f"{bound:g}"
        meant = f"did you mean {found:g}%? " if self.percent and 2 <= found <= 100 else ""
        raise RotoscopeError(f"{name} must be {words} {shown}, found {found}: {meant}{self.why}")


def _each(value: Any) -> Iterator[Any]:
    """The numbers in a value; nothing is none."""
    if isinstance(value, tuple | list):
        for one in value:
            yield from _each(one)
    elif value is not None:
        yield value


SEED = Bounds(0, 2**32 - 1, "a seed has 32 bits, so that what is added to it still fits a generator")


def count(most: int, why: str, *, least: int = 1) -> Bounds:
    """So many of something."""
    return Bounds(least, most, why)


def share(why: str, *, one: bool = True, percent: bool = False) -> Bounds:
    """From nothing to all of something."""
    return Bounds(0, 1, why, whole=False, most_itself=one, percent=percent)


def amount(least: float, most: float, why: str, *, least_itself: bool = True) -> Bounds:
    """A number with a fraction."""
    return Bounds(least, most, why, whole=False, least_itself=least_itself)


BASE = 10_000.0
"""Of RoPE's angles g_k = base^(-2(k-1)/d), unless another is chosen."""
ROTARY_BASE = amount(
    1, 1e12, "planes would all turn alike, or too slowly to tell from none", least_itself=False
)
"""The bases that a model can be trained with."""
