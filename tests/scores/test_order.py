"""Series in their own order are left alone; exchanged and misplaced points are named, and only those."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rotoscope.experiments.train.series import out_of_order

SPACED = {"log": [0, 1, 2, 4, 8, 16, 32, 64, 128], "even": [*range(0, 900, 100)]}
WEIGHTS = 400


def series(kind: str, steps: list[int], seed: int = 0) -> np.ndarray:
    """Weights that wander, go straight on, settle down with noise, or only scatter."""
    generator = np.random.default_rng(seed)
    first, direction = generator.normal(size=(2, WEIGHTS))
    share = np.array(steps)[:, None] / steps[-1]
    noise = generator.normal(size=(len(steps), WEIGHTS))
    moved = np.sqrt(np.diff(steps, prepend=0))[:, None] * noise
    return {
        "wander": first + moved.cumsum(0),
        "straight": first + share * direction,
        "settle": first * np.exp(-5 * share) + direction * (1 - np.exp(-2 * share)) + 0.03 * noise,
        "scatter": first + noise,
    }[kind]


@pytest.mark.parametrize("spaced", SPACED)
@pytest.mark.parametrize("kind", ["wander", "straight", "settle", "scatter"])
def test_nothing_is_said_of_a_sound_series(kind: str, spaced: str) -> None:
    for seed in range(5):
        assert out_of_order(series(kind, SPACED[spaced], seed)) == []


@pytest.mark.parametrize("steps", [[0, 5, 10, 15], *SPACED.values()], ids=str)
@pytest.mark.parametrize("kind", ["wander", "straight"])
def test_two_that_are_exchanged_are_named(kind: str, steps: list[int]) -> None:
    """Any two but the ends: four points with their ends exchanged are four reversed, with the inner two exchanged."""
    for pair in itertools.combinations(range(len(steps)), 2):
        points = series(kind, steps)
        points[list(pair)] = points[list(pair[::-1])]
        if pair != (0, len(steps) - 1):
            assert out_of_order(points) == [pair]


@pytest.mark.parametrize("kind", ["wander", "straight"])
def test_one_in_a_wrong_place_is_named(kind: str) -> None:
    points = series(kind, SPACED["even"])
    points[2] = (points[6] + points[7]) / 2
    assert out_of_order(points) == [(2,)]


def test_several_changes_are_found_one_after_the_other() -> None:
    points = series("wander", [*range(0, 1600, 100)])
    points[[2, 5, 9, 13]] = points[[5, 2, 13, 9]]
    assert out_of_order(points) == [(2, 5), (9, 13)]


def test_what_cannot_be_told_is_not_said() -> None:
    points = series("straight", SPACED["even"])
    assert out_of_order(points[::-1]) == []
    assert out_of_order(points[[0, 2, 1]]) == []
    assert out_of_order(points[:1]) == []
    assert out_of_order(np.zeros((6, 3))) == []
