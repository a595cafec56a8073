"""When does a subject differ from a null? The one rule behind every such verdict.

Under the null hypothesis the subject is one more draw: the K + 1 vectors of all figures shown together are exchangeable.
Every figure of every vector is studentised by the other K vectors, z = |x - mean| / sd, and step-down max-T over the figures
gives exact Monte-Carlo p-values, corrected for all of them (Westfall and Young). With m and s the mean and the standard
deviation over the draws and e the subject's standard error over prompts, a figure T is

- *beyond the null* when p <= 0.05 and |T - m| >= 0.05, which takes 19 draws;
- *as in the null* when |T - m| + t * sqrt(s^2 (1 + 1/K) + e^2) < 0.10, t being Student's 95 % quantile with K - 1 degrees of
  freedom;
- *undecided* otherwise, with the smallest effect that these draws could have shown;
- without a verdict where the subject or the draws have nothing to compare.

Differences are in the figure's own unit: score, share, correlation, accuracy, or nats of loss. A user's own measure has a unit
that nobody here knows: no difference is too small for it, and it is never as in the null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rotoscope.stats.intervals import INTERVAL

BEYOND, AS_IN, UNDECIDED, NO_VERDICT = "beyond the null", "as in the null", "undecided", "no verdict"
LEVEL = 0.05
"""The family-wise error: how often any of the figures shown together may be called beyond the null where none is."""
LEAST_EFFECT = 0.05
"""A smaller difference says nothing, however certain it is: 5 points of a score or share, or 0.05 nats of a loss."""
ENOUGH_DRAWS = 19
"""The draws that an exact p-value of 0.05 takes: 1 / (19 + 1)."""
ROUNDING = 1e-12
"""Smaller differences between draws are rounding."""


@dataclass(frozen=True)
class Figure:
    """A figure of the subject, and the same figure of every draw of the null."""

    value: float
    error: float
    """The subject's standard error over prompts; NaN where there was one prompt."""
    draws: Sequence[float]
    """In the same order for all figures of a family; NaN where a draw does not have it."""
    least_effect: float = LEAST_EFFECT
    """A smaller difference says nothing; one certainly below twice as much is as in the null. 0 where the unit is unknown."""


@dataclass(frozen=True)
class Verdict:
    """What the null says about a figure."""

    verdict: str
    """`beyond the null`, `as in the null`, `undecided` or `no verdict`."""
    reason: str
    """Why the figure is undecided or has no verdict; empty otherwise."""
    null_value: float
    """The mean over the draws."""
    null_low: float
    null_high: float
    """Where the next draw would lie, with 95 %; NaN where one draw says nothing about it."""
    null_draws: int
    p_value: float
    """Exact, and corrected for all figures of the family. NaN where nothing can be tested."""
    visible_effect: float
    """The smallest difference that would have been called beyond the null; NaN where none would."""


def verdicts(figures: Sequence[Figure]) -> list[Verdict]:
    """The verdicts on figures that are shown together, in their order: one family."""
    vectors = _joint_vectors(figures)
    family, rows = _testable(vectors)
    p_values, visible = np.full((2, len(figures)), np.nan)
    if family.any():
        tested = vectors[rows][:, family]
        p_values[family] = step_down(distances(tested))
        least = np.array([figure.least_effect for figure in figures])
        visible[family] = np.maximum(_visible_effects(tested), least[family])
    return [
        _verdict(*arguments) for arguments in zip(figures, p_values.tolist(), visible.tolist(), strict=True)
    ]


def distances(vectors: np.ndarray) -> np.ndarray:
    """How far every figure of a vector lies from that of the other vectors, in their standard deviations.

    `vectors` is [vectors, figures]. Where the others do not differ at all, any difference is infinitely far.
    """
    count = len(vectors)
    centred = vectors - vectors.mean(0)
    # Without vector i the mean moves by centred_i / (n - 1), and the sum of squares loses n / (n - 1) centred_i^2.
    apart = np.abs(centred) * count / (count - 1)
    squares = (centred**2).sum(0) - centred**2 * count / (count - 1)
    spread = np.sqrt(np.maximum(squares, 0) / (count - 2))
    alike = np.where(apart > ROUNDING, np.inf, 0.0)
    return np.divide(apart, spread, out=alike, where=spread > ROUNDING)


def step_down(distances: np.ndarray) -> np.ndarray:
    """Exact p-values of the first vector's figures by step-down max-T [figures], from [vectors, figures]."""
    order = np.argsort(-distances[0], kind="stable")
    ranked = distances[:, order]
    largest = np.maximum.accumulate(ranked[:, ::-1], axis=1)[:, ::-1]  # of this figure and those less far out
    reached = (largest >= ranked[0] * (1 - 1e-9)).mean(0)  # the first vector reaches itself
    p_values = np.empty(len(order))
    p_values[order] = np.maximum.accumulate(reached)
    return p_values


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's correction: p-values to compare with the level itself. What is not a number does not count."""
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    corrected = np.full(len(p_values), np.nan)
    steps = p_values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


def _joint_vectors(figures: Sequence[Figure]) -> np.ndarray:
    """The subject's vector, then one per draw [1 + K, figures]; NaN where a figure has fewer draws than others."""
    longest = max((len(figure.draws) for figure in figures), default=0)
    vectors = np.full((1 + longest, len(figures)), np.nan)
    for column, figure in enumerate(figures):
        vectors[0, column] = figure.value
        vectors[1 : 1 + len(figure.draws), column] = figure.draws
    return vectors


def _testable(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The figures that are tested together, and the vectors that have them all."""
    known = ~np.isnan(vectors)
    draws = known[1:].sum(0)
    family = known[0] & (draws >= max(2, min(ENOUGH_DRAWS, draws.max(initial=0))))
    rows = known[:, family].all(1)
    return family & (rows.sum() > 2), rows


def _visible_effects(vectors: np.ndarray) -> np.ndarray:
    """Of every figure the smallest difference that would be beyond the null, the other figures being as they are."""
    draws = vectors[1:]
    count, figures = draws.shape
    exceeding = int(LEVEL * (count + 1) + 1e-9) - 1  # so many draws may lie further out
    if exceeding < 0:
        return np.full(figures, np.nan)
    mean, spread = draws.mean(0), draws.std(0, ddof=1)
    apart = distances(vectors)[1:]
    others = np.stack([np.delete(apart, k, axis=1).max(1, initial=0.0) for k in range(figures)], axis=1)
    needed = np.sort(others, axis=0)[count - 1 - exceeding]
    low = np.zeros(figures)
    high = np.where(np.isinf(needed), np.inf, spread * (np.minimum(needed, 1 / ROUNDING) + count + 1))
    for _ in range(40):
        middle = np.where(np.isfinite(high), (low + high) / 2, 0.0)
        moved = distances(np.concatenate([(mean + middle)[None], draws]))
        is_visible = (np.maximum(others, moved[1:]) >= moved[0]).sum(0) <= exceeding
        low, high = np.where(is_visible, low, middle), np.where(is_visible, middle, high)
    return np.where(np.isfinite(high), high, np.nan)


def _verdict(figure: Figure, p_value: float, visible: float) -> Verdict:
    from scipy.special import stdtrit  # t quantiles; not needed to ask a command for help

    draws = np.asarray(figure.draws, dtype=float)
    draws = draws[~np.isnan(draws)]
    count = len(draws)
    mean = float(draws.mean()) if count else np.nan
    low = high = reach = np.nan
    if count > 1:
        between = float(draws.std(ddof=1)) * np.sqrt(1 + 1 / count)
        low, high = (mean + float(stdtrit(count - 1, end)) * between for end in INTERVAL)
        reach = float(stdtrit(count - 1, 1 - LEVEL)) * float(np.hypot(between, figure.error))
    verdict, reason = _answer(figure, draws, abs(figure.value - mean), reach, p_value, visible)
    return Verdict(verdict, reason, mean, low, high, count, p_value, visible)


def _answer(
    figure: Figure, draws: np.ndarray, apart: float, reach: float, p_value: float, visible: float
) -> tuple[str, str]:
    """The verdict, and the reason where it is undecided or none."""
    if np.isnan(figure.value):
        return NO_VERDICT, "undefined"
    if not len(draws):
        return NO_VERDICT, "no draw of the null has it"
    if figure.value == 0 and not draws.any():
        return NO_VERDICT, "nothing to compare: 0 here and in every draw"
    if np.isnan(figure.error):
        return UNDECIDED, "one prompt has no standard error"
    if p_value <= LEVEL and apart >= figure.least_effect:
        return BEYOND, ""
    if apart + reach < 2 * figure.least_effect:
        return AS_IN, ""
    if len(draws) < ENOUGH_DRAWS:
        count = "1 draw" if len(draws) == 1 else f"{len(draws)} draws"
        return UNDECIDED, f"{count}: a verdict of {BEYOND} takes {ENOUGH_DRAWS}"
    if np.isnan(visible):
        return UNDECIDED, "the draws differ too much for any effect to be seen"
    return UNDECIDED, f"effects below {visible:.2f} cannot be seen with {len(draws)} draws"
