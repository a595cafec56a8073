"""The rule of what is beyond a null: numbers by hand, a twin by Student quantiles, random subjects, a decline."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rotoscope.stats.verdict import Figure, holm, verdicts

FIVE = [0.10, 0.12, 0.08, 0.11, 0.09]
"""Mean .1, standard deviation .0158."""


def one(value: float, error: float = 0.0, draws: list[float] = FIVE, *, scores: bool = True) -> str:
    return verdicts([Figure(value, error, draws, scores)])[0].verdict


def test_by_hand() -> None:
    """Five draws: m = .1, s = .015811, s sqrt(1 + 1/5) = .017321; t(4) = 2.7764, so the next draw lies within .0481."""
    [found] = verdicts([Figure(0.16, 0.0, FIVE)])
    assert (found.null_value, found.null_draws) == (pytest.approx(0.1), 5)
    assert (found.null_low, found.null_high) == pytest.approx((0.1 - 0.04809, 0.1 + 0.04809), abs=1e-5)
    assert one(0.1482) == "also in the null"  # beyond .1481, but by less than .05
    assert one(0.1482, scores=False) == "beyond the null"
    assert one(0.1480, scores=False) == "also in the null"
    assert one(0.1501) == one(0.0499) == "beyond the null"
    # a standard error of .02 over prompts: sqrt(.0003 + .0004) = .026458, times 2.7764 = .07346
    assert one(0.1734, 0.02) == "also in the null"
    assert one(0.1736, 0.02) == "beyond the null"


def test_holm_by_hand() -> None:
    assert holm(np.array([0.01, 0.04, np.nan, 0.03])).tolist() == pytest.approx(
        [0.03, 0.06, np.nan, 0.06], nan_ok=True
    )
    assert holm(np.array([0.6, 0.5])).tolist() == [1.0, 1.0]
    assert holm(np.array([])).tolist() == []


def test_figures_shown_together_are_corrected_together() -> None:
    """.0482 from the null is beyond it alone; beside nine others t(4) is 5.5976 at first, which takes .0970."""
    quiet = [Figure(0.1, 0.0, FIVE, False)] * 9
    assert verdicts([Figure(0.1482, 0.0, FIVE, False), *quiet])[0].verdict == "also in the null"
    assert verdicts([Figure(0.1969, 0.0, FIVE, False), *quiet])[0].verdict == "also in the null"
    assert verdicts([Figure(0.1971, 0.0, FIVE, False), *quiet])[0].verdict == "beyond the null"
    # an undefined figure is none of those tested
    undefined = [Figure(float("nan"), 0.0, FIVE)] * 9
    assert verdicts([Figure(0.1482, 0.0, FIVE, False), *undefined])[0].verdict == "beyond the null"


def twin(figures: list[Figure]) -> list[bool]:
    """Step by step: the figure furthest out first, against the quantile for all, then for all but one, ..."""
    count, beyond = len(figures), [False] * len(figures)

    def distance(f: Figure) -> float:
        k = len(f.draws)
        return abs(f.value - np.mean(f.draws)) / (np.var(f.draws, ddof=1) * (1 + 1 / k) + f.error**2) ** 0.5

    order = sorted(range(count), key=lambda i: -distance(figures[i]))
    for step, i in enumerate(order):
        t = stats.t.ppf(1 - 0.05 / (count - step) / 2, len(figures[i].draws) - 1)
        if distance(figures[i]) <= t:
            break
        large = abs(figures[i].value - np.mean(figures[i].draws)) >= 0.05
        beyond[i] = large or not figures[i].in_score_units
    return beyond


@pytest.mark.parametrize("draws", [2, 4, 5, 12])
def test_twin(draws: int) -> None:
    dice = np.random.default_rng(draws)
    found = set()
    for _ in range(60):
        scale = dice.choice([0.01, 0.1])
        family = [
            Figure(dice.normal(0, 0.6), dice.uniform(0, 0.02), dice.normal(0, scale, draws).tolist(), in_scores)
            for in_scores in (True, False, True, False, True)
        ]
        verdict = [v.verdict == "beyond the null" for v in verdicts(family)]
        assert verdict == twin(family)
        found |= set(verdict)
    assert found == {True, False} or draws == 2


def test_fewer_draws_than_a_verdict_needs() -> None:
    [alone] = verdicts([Figure(0.9, 0.01, [0.1])])
    assert alone.verdict == "no verdict"
    assert alone.reason == "one draw: no verdict, which takes at least 2 (5 by default)"
    assert np.isnan([alone.null_low, alone.p_value]).all()
    assert alone.null_value == 0.1
    [few] = verdicts([Figure(0.1, 0.01, FIVE[:3])])
    assert (few.verdict, few.reason) == ("no verdict", "3 draws: no verdict; calling it the null's takes 5")
    assert one(0.9, 0.01, FIVE[:3]) == "beyond the null"
    assert one(0.1, 0.01) == "also in the null"


def test_nothing_is_judged_without_a_spread_over_prompts() -> None:
    [found] = verdicts([Figure(0.9, float("nan"), FIVE)])
    assert (found.verdict, found.reason) == ("no verdict", "one prompt: no standard error, no verdict")
    [found] = verdicts([Figure(float("nan"), 0.01, FIVE)])
    assert (found.verdict, found.reason) == ("no verdict", "undefined")
    [found] = verdicts([Figure(0.5, 0.01, [float("nan")] * 5)])
    assert (found.verdict, found.reason) == ("no verdict", "no draw of the null has it")
    [found] = verdicts([Figure(0.5, 0.01, [*FIVE, float("nan")])])
    assert found.null_draws == 5


def test_draws_that_do_not_differ() -> None:
    assert one(0.0, draws=[0.0] * 5) == "also in the null"
    assert one(0.2, draws=[0.0] * 5) == "beyond the null"


def test_a_random_subject_is_seldom_beyond_the_null() -> None:
    """Ten figures, those of one model going together, drawn like the null's: at most 5 % of families have one beyond."""
    dice, subjects = np.random.default_rng(0), 800
    shared = dice.normal(0, 0.05, (subjects, 6, 1)) + dice.normal(0, 0.05, (subjects, 6, 10))
    wrong = 0
    for models in shared:
        family = [Figure(m[0], 0.0, m[1:].tolist()) for m in models.T]
        wrong += any(v.verdict == "beyond the null" for v in verdicts(family))
    assert 0.01 < wrong / subjects <= 0.06
