"""The rule of what is beyond a null: numbers by hand, a brute-force twin, its size and its power."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from rotoscope.stats.verdict import (
    AS_IN,
    BEYOND,
    NO_VERDICT,
    UNDECIDED,
    Figure,
    distances,
    holm,
    step_down,
    verdicts,
)

NINETEEN = [0.1 + 0.01 * k for k in range(-9, 10)]
"""Mean .1, standard deviation .05627, largest .19."""


def answer(value: float, error: float = 0.0, draws: list[float] = NINETEEN) -> str:
    return verdicts([Figure(value, error, draws)])[0].verdict


def test_by_hand() -> None:
    """s sqrt(1 + 1/19) = .05774; t(18) is 2.1009 at 97.5 % and 1.7341 at 95 %: .1213 and .1001."""
    [verdict] = verdicts([Figure(0.5, 0.0, NINETEEN)])
    assert (verdict.verdict, verdict.reason, verdict.p_value) == (BEYOND, "", pytest.approx(0.05))
    assert (verdict.null_value, verdict.null_draws) == (pytest.approx(0.1), 19)
    assert (verdict.null_low, verdict.null_high) == pytest.approx((0.1 - 0.1213, 0.1 + 0.1213), abs=1e-4)
    [verdict] = verdicts([Figure(0.1, 0.0, NINETEEN)])
    assert (verdict.verdict, verdict.p_value) == (UNDECIDED, 1.0)
    assert verdict.reason == f"effects below {verdict.visible_effect:.2f} cannot be seen with 19 draws"
    closer = [0.1 + 0.98 * (draw - 0.1) for draw in NINETEEN]
    assert answer(0.1, 0.0, closer) == AS_IN
    assert answer(0.1, 0.02, closer) == UNDECIDED  # the error over prompts counts


def test_only_the_furthest_of_twenty_is_beyond() -> None:
    """At 19 draws the subject must lie further out than every draw; at 39 one draw may lie as far."""
    assert answer(0.22) == BEYOND
    assert answer(0.19) == UNDECIDED  # as far as one of 19
    thirty_nine = [0.001 * k for k in range(-19, 19)]
    assert answer(0.2, 0.0, [*thirty_nine, 0.3]) == BEYOND
    assert answer(0.2, 0.0, [*thirty_nine[1:], 0.3, 0.3]) == UNDECIDED


def test_the_least_difference_counts_for_every_unit() -> None:
    narrow = [0.1 + 0.0001 * k for k in range(-9, 10)]
    assert answer(0.149, 0.0, narrow) == AS_IN
    assert answer(0.151, 0.0, narrow) == BEYOND
    shares = [0.0] * 38 + [1 / 72]
    assert answer(1 / 36, 0.005, shares) == AS_IN
    assert answer(1 / 12, 0.005, shares) == BEYOND


def twin(value: np.ndarray, draws: np.ndarray) -> list[float]:
    """One vector after the other, one figure after the other, by numpy's own standard deviation and the floor of .015."""
    vectors = np.vstack([value, draws])
    far = np.zeros(vectors.shape)
    for i in range(len(vectors)):
        rest = np.delete(vectors, i, axis=0)
        far[i] = np.abs(vectors[i] - rest.mean(0)) / np.hypot(rest.std(0, ddof=1), 0.015)
    p_values, largest, remaining = [0.0] * len(value), 0.0, set(range(len(value)))
    for figure in np.argsort(-far[0]):
        reached = [max(row[k] for k in remaining) >= far[0, figure] for row in far]
        largest = max(largest, sum(reached) / len(reached))
        p_values[figure] = largest
        remaining.remove(figure)
    return p_values


@pytest.mark.parametrize("draws", [3, 19, 39])
def test_p_values_are_those_of_the_twin(draws: int) -> None:
    generator = np.random.default_rng(draws)
    for _ in range(20):
        value = generator.normal(0, 1.5, 6)
        matrix = generator.normal(0, 1, (draws, 6)) + generator.normal(0, 1, (draws, 1))
        tested = verdicts([Figure(v, 0.01, column.tolist()) for v, column in zip(value, matrix.T, strict=True)])
        assert [verdict.p_value for verdict in tested] == pytest.approx(twin(value, matrix))


@pytest.mark.parametrize("rare", [1 / 72, 1 / 12])
@pytest.mark.parametrize("draws", [19, 39])
def test_a_rare_share_does_not_hide_a_large_effect(draws: int, rare: float) -> None:
    """Two shares that one draw each has, and all others have not, beside a figure 20 standard deviations from its draws."""
    generator = np.random.default_rng(0)
    shares = [[rare, *[0.0] * (draws - 1)], [0.0, rare, *[0.0] * (draws - 2)]]
    figures = [Figure(0.5, 0.01, (0.1 + 0.02 * generator.normal(size=draws)).tolist())]
    large, *others = verdicts(figures + [Figure(0.0, 0.0, share) for share in shares])
    assert (large.verdict, large.p_value) == (BEYOND, 1 / (draws + 1))
    assert 0.05 <= large.visible_effect < 0.2
    assert {other.verdict for other in others} <= {AS_IN, UNDECIDED}


def test_draws_without_one_figure_count_for_the_others() -> None:
    """Half of 39 draws do not have the second figure, and others not the third: the first still rests on all of them."""
    generator = np.random.default_rng(0)
    columns = generator.normal(0.1, 0.02, (39, 3))
    columns[:19, 1] = columns[19:, 2] = np.nan
    first, second, third = verdicts([Figure(0.5, 0.01, column.tolist()) for column in columns.T])
    assert (first.verdict, first.p_value) == (BEYOND, 1 / 40)
    assert (second.verdict, second.p_value) == (BEYOND, 1 / 21)
    assert (third.verdict, third.p_value) == (BEYOND, 1 / 20)
    alone = verdicts([Figure(0.5, 0.01, columns[:, 0].tolist())])[0]
    assert first.visible_effect <= 1.5 * alone.visible_effect


@pytest.mark.slow
def test_size_where_draws_lack_figures() -> None:
    """Of subjects that are a draw like the others, with figures that are undefined in some, at most 5 % are beyond."""
    generator, subjects, wrong = np.random.default_rng(3), 600, 0
    for _ in range(subjects):
        vectors = generator.normal(0, 0.05, (40, 6)) + generator.normal(0, 0.05, (40, 1))
        vectors[:, 3:][generator.random((40, 3)) < 0.4] = np.nan
        wrong += BEYOND in family_of(vectors[0], vectors[1:])
    assert 0.01 <= wrong / subjects <= 0.05 + stats.norm.ppf(0.99) * (0.05 * 0.95 / subjects) ** 0.5


def test_every_vector_is_studentised_alike() -> None:
    """Whichever vector stands first, the distances are the same: what makes the p-values exact."""
    vectors = np.random.default_rng(0).normal(size=(7, 3))
    moved = np.roll(vectors, 1, axis=0)
    assert distances(moved) == pytest.approx(np.roll(distances(vectors), 1, axis=0))


@pytest.mark.parametrize("draws", [19, 39])
def test_the_smallest_visible_effect_is_where_the_verdict_turns(draws: int) -> None:
    generator = np.random.default_rng(0)
    columns = [generator.normal(0, 0.1, draws).tolist() for _ in range(8)]
    figures = [Figure(0.01 * k, 0.05, column) for k, column in enumerate(columns)]
    for k, verdict in enumerate(verdicts(figures)):
        assert 0.1 < verdict.visible_effect < 0.7
        for factor, expected in ((0.99, False), (1.01, True)):
            value = verdict.null_value + factor * verdict.visible_effect
            moved = [*figures[:k], Figure(value, 0.05, columns[k]), *figures[k + 1 :]]
            assert (verdicts(moved)[k].verdict == BEYOND) is expected


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, np.nan, 0.03])).tolist() == pytest.approx(
        [0.03, 0.06, np.nan, 0.06], nan_ok=True
    )
    assert holm(np.array([0.6, 0.5])).tolist() == [1.0, 1.0]
    assert holm(np.array([])).tolist() == []


def test_fewer_draws_than_a_verdict_of_beyond_takes() -> None:
    [verdict] = verdicts([Figure(0.9, 0.01, [0.1])])
    assert (verdict.verdict, verdict.null_value) == (UNDECIDED, 0.1)
    assert verdict.reason == "1 draw: a verdict of beyond the null takes 19"
    assert np.isnan([verdict.null_low, verdict.p_value, verdict.visible_effect]).all()
    [verdict] = verdicts([Figure(0.9, 0.0, NINETEEN[:18])])
    assert verdict.reason == "18 draws: a verdict of beyond the null takes 19"
    assert verdict.p_value == pytest.approx(1 / 19)
    assert answer(0.1, 0.01, [0.10, 0.12, 0.08, 0.11, 0.09]) == AS_IN


def test_no_verdict_where_there_is_nothing_to_compare() -> None:
    nothing = float("nan")
    reasons = {
        "undefined": Figure(nothing, 0.01, NINETEEN),
        "no draw of the null has it": Figure(0.5, 0.01, [nothing] * 19),
        "nothing to compare: 0 here and in every draw": Figure(0.0, 0.0, [0.0] * 19),
    }
    family = verdicts(list(reasons.values()))
    assert [(verdict.verdict, verdict.reason) for verdict in family] == [(NO_VERDICT, r) for r in reasons]
    [verdict] = verdicts([Figure(0.9, nothing, NINETEEN)])
    assert (verdict.verdict, verdict.reason) == (UNDECIDED, "one prompt has no standard error")
    assert verdicts([]) == []


def test_figures_with_fewer_draws_do_not_decide_over_the_others() -> None:
    """Neither an undefined figure nor one that few draws have is tested with the rest."""
    alone = verdicts([Figure(0.5, 0.0, NINETEEN)])[0]
    beside = [Figure(float("nan"), 0.0, NINETEEN), Figure(9.0, 0.0, [0.1, 0.2, *[float("nan")] * 17])]
    first, undefined, few = verdicts([Figure(0.5, 0.0, NINETEEN), *beside])
    assert first == alone
    assert np.isnan([undefined.p_value, few.p_value]).all()
    assert (few.verdict, few.null_draws) == (UNDECIDED, 2)


def family_of(subject: np.ndarray, draws: np.ndarray) -> list[str]:
    return [
        v.verdict
        for v in verdicts([Figure(x, 0.01, d.tolist()) for x, d in zip(subject, draws.T, strict=True)])
    ]


@pytest.mark.parametrize("draws", [19, pytest.param(39, marks=pytest.mark.slow)])
def test_size_and_power(draws: int) -> None:
    """Of 14 figures that go together none is beyond in 95 % of random subjects; an effect of six deviations is seen.

    Two of the figures are shares of 72 heads, of which most draws have none.
    """
    generator, subjects = np.random.default_rng(draws), 400
    wrong = right = 0
    for _ in range(subjects):
        shared = generator.normal(0, 0.05, (1 + draws, 1)) + generator.normal(0, 0.05, (1 + draws, 12))
        shares = generator.binomial(72, 0.01, (1 + draws, 2)) / 72
        vectors = np.hstack([shared, shares])
        wrong += BEYOND in family_of(vectors[0], vectors[1:])
        vectors[0, 0] += 6 * 0.05 * 2**0.5
        right += family_of(vectors[0], vectors[1:])[0] == BEYOND
    assert wrong / subjects <= 0.05 + stats.norm.ppf(0.99) * (0.05 * 0.95 / subjects) ** 0.5
    assert wrong / subjects >= 0.01
    assert right / subjects >= 0.9


def test_p_values_go_down_step_by_step() -> None:
    """The figure that is furthest out is compared with all, the next with the rest; p never falls on the way."""
    far = np.random.default_rng(1).exponential(size=(40, 9))
    far[0] *= 3
    p_values = step_down(far)
    ordered = p_values[np.argsort(-far[0])]
    assert all(first <= second for first, second in pairwise(ordered))
    single = [(far.max(1) >= value).mean() for value in far[0]]
    assert (p_values <= np.array(single) + 1e-12).all()
    assert (p_values < single).any()
