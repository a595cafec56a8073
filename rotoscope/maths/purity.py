"""Classes of heads in the positional-symbolic plane."""

from __future__ import annotations

import math

from rotoscope.errors import RotoscopeError

__all__ = ["CLASSES", "purity_class"]

CLASSES = ("positional", "symbolic", "uniform", "mixed")


def purity_class(positional: float, symbolic: float, gamma: float = 0.1) -> str | None:
    """The class of a head at tolerance gamma.

    Pure positional: positional score >= 1 - gamma and symbolic score <= gamma; pure symbolic the other
    way round; uniform: both >= 1 - gamma (by the exclusion principle); mixed: all the rest. A head
    without a score has no class.
    """
    if not 0 <= gamma < 0.5:
        raise RotoscopeError(f"gamma must lie in [0, 0.5), found {gamma}")
    if math.isnan(positional) or math.isnan(symbolic):
        return None
    high, low = 1 - gamma, gamma
    if positional >= high and symbolic >= high:
        return "uniform"
    if positional >= high and symbolic <= low:
        return "positional"
    if symbolic >= high and positional <= low:
        return "symbolic"
    return "mixed"
