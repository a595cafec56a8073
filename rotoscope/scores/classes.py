"""Classes of heads in the positional-symbolic plane: the one place that says what is pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rotoscope.errors import RotoscopeError

CLASSES = ("positional", "symbolic", "carried", "uniform", "mixed")
AT_ITS_LAYER = ("positional", "symbolic", "uniform", "mixed")
"""The classes that swaps at a head's own layer can tell apart."""
GAMMA = 0.1
"""The papers' tolerance."""
COVERED = 0.5
"""The share of a head's weight that the swaps run must hold for anything to be said about them."""

Scores = tuple[ArrayLike, ArrayLike]
"""Positional and symbolic scores of many heads."""


def purity_codes(
    positional: ArrayLike, symbolic: ArrayLike, gamma: float = GAMMA, permuted: Scores | None = None
) -> np.ndarray:
    """The class of each head at tolerance gamma, as its place in `CLASSES`; -1 for a head without a score.

    Pure positional: positional score >= 1 - gamma and symbolic score <= gamma; pure symbolic the other
    way round; uniform: both >= 1 - gamma (by the exclusion principle); mixed: all the rest.

    `permuted` are the scores with the prompt itself permuted, NaN where they are not known. A head that is pure symbolic
    at its layer and pure positional there is carried: it follows a state that earlier layers wrote the place into.
    """
    if not 0 <= gamma < 0.5:
        raise RotoscopeError(f"gamma must lie in [0, 0.5), found {gamma}")
    p, s = np.asarray(positional, dtype=float), np.asarray(symbolic, dtype=float)
    positional_high, symbolic_high = p >= 1 - gamma, s >= 1 - gamma
    classes = {
        "positional": positional_high & (s <= gamma),
        "symbolic": symbolic_high & (p <= gamma),
        "uniform": positional_high & symbolic_high,
    }
    if permuted is not None:
        stays = purity_codes(*permuted, gamma) == CLASSES.index("positional")
        classes = {"carried": classes["symbolic"] & stays} | classes
    missing = np.isnan(p) | np.isnan(s)
    return np.select([missing, *classes.values()], [-1, *map(CLASSES.index, classes)], CLASSES.index("mixed"))


def purity_classes(
    positional: ArrayLike, symbolic: ArrayLike, gamma: float = GAMMA, permuted: Scores | None = None
) -> list[str | None]:
    """The names of the classes of many heads; None for a head without a score."""
    codes = purity_codes(positional, symbolic, gamma, permuted)
    return [None if code < 0 else CLASSES[code] for code in codes]


def purity_class(positional: float, symbolic: float, gamma: float = GAMMA) -> str | None:
    """The class of one head at tolerance gamma (see `purity_codes`); None if it has no score."""
    return purity_classes([positional], [symbolic], gamma)[0]


def pure_regions(gamma: float = GAMMA) -> dict[str, tuple[float, float]]:
    """The lower left corner of the square, gamma wide, in which a head counts as pure, by class."""
    high = 1 - gamma
    return {"positional": (high, 0.0), "symbolic": (0.0, high), "uniform": (high, high)}
