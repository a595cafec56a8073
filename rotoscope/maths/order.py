"""Whether a series of weights comes in the order it is said to come in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

CLEARLY = 0.25
"""By which share the steps that a change touches must get shorter before it is believed."""
ALIKE = 0.99
"""Changes that save this share of the most count as equal: reversed, a series is as long as before."""
FEWEST = 4
"""Points of a series about whose order anything is said."""


def out_of_order(points: np.ndarray) -> list[tuple[int, ...]]:
    """Rows of [point, weight] that clearly belong elsewhere: one that would fit another place, or two in each other's.

    The rule. A change takes one point to another place, or exchanges two; it touches the steps from them to their
    neighbours. Where these steps are then shorter by more than `CLEARLY`, by the sum of their squares, the change is
    believed; of several the one that saves most, of equal ones the shortest, and so on with the points that are left.

    Points that wander at random, and points that go straight on, are shortest in their own order: squares of distances
    add up along the former, and to more than their sum along the latter. Points that scatter around one place are about
    as long in every order, and nothing is said of them, nor of a series that is reversed as a whole.
    """
    count = len(points)
    squared = np.zeros((count + 1, count + 1))  # the last stands for both ends: no step leads there
    for one, point in enumerate(points):
        squared[one, :count] = ((points - point) ** 2).sum(-1)
    order = [count, *range(count), count]
    found: list[tuple[int, ...]] = []
    while count >= FEWEST:
        settled = {count, *(point for one in found for point in one)}
        changes = [*_exchanges(squared, order, settled), *_moves(squared, order, settled)]
        believed = [one for one in changes if one.before - one.after > CLEARLY * one.before]
        if not believed:
            break
        most = max(one.before - one.after for one in believed)
        best = min(
            (one for one in believed if one.before - one.after > ALIKE * most), key=lambda one: one.distance
        )
        at = [order.index(point) for point in best.points]
        if len(at) == 2:
            order[at[0]], order[at[1]] = order[at[1]], order[at[0]]
        else:
            order.insert(best.place, order.pop(at[0]))
        found.append(best.points)
    return sorted(found)


class _Change(NamedTuple):
    """Points that move, and the squares of the steps which that touches."""

    points: tuple[int, ...]
    before: float
    after: float
    distance: int
    place: int = 0
    """Where a single one goes."""


def _exchanges(squared: np.ndarray, order: list[int], settled: set[int]) -> Iterator[_Change]:
    for (a, one), (b, other) in itertools.combinations(enumerate(order), 2):
        if one in settled or other in settled:
            continue
        new = {a: other, b: one}
        steps = {a - 1, a, b - 1, b}
        before = sum(squared[order[k], order[k + 1]] for k in steps)
        after = sum(squared[new.get(k, order[k]), new.get(k + 1, order[k + 1])] for k in steps)
        yield _Change((min(one, other), max(one, other)), before, after, b - a)


def _moves(squared: np.ndarray, order: list[int], settled: set[int]) -> Iterator[_Change]:
    for a, one in enumerate(order):
        if one in settled:
            continue
        rest = [*order[:a], *order[a + 1 :]]
        left = squared[order[a - 1], one] + squared[one, order[a + 1]]
        closed = squared[order[a - 1], order[a + 1]]
        for b, (front, back) in enumerate(itertools.pairwise(rest), start=1):
            if abs(a - b) > 1:  # to the next place is an exchange
                after = closed + squared[front, one] + squared[one, back]
                yield _Change((one,), left + squared[front, back], after, abs(b - a), b)
