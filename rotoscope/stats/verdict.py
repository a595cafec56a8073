"""When does a subject differ from a null? The one rule behind every such verdict.

Under the null hypothesis the subject is one more draw: the K + 1 vectors of all figures shown together are exchangeable.
Every figure of every vector is studentised by the other K vectors,

    z = |x - mean| / sqrt(sd^2 + floor^2),    floor = 0.3 * 0.05,

and step-down max-T over the figures gives exact Monte-Carlo p-values, corrected for all of them (Westfall and Young). The floor
keeps a figure that hardly ever differs, as a share that one draw has and the others have not, from deciding over all others: at
3.3 floors a difference is as large as what counts. A vector without a figure is nowhere in it; of two p-values, over all vectors
and over those that have the figure, the larger one counts. With m and s the mean and the standard deviation over the draws and e
the subject's standard error over prompts, a figure T is

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
FLOOR = 0.3
"""Of the least effect: what is added to the spread of the draws."""
MOST_DEVIATIONS = 1000.0
"""What is not seen at so many standard deviations of the draws is not seen at any size."""


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
    least = np.array([figure.least_effect for figure in figures])
    family = _tested(vectors)
    p_values, visible = np.full((2, len(figures)), np.nan)
    if family.any():
        tested, floor = vectors[:, family], FLOOR * least[family]
        p_values[family] = step_down(distances(tested, floor))
        visible[family] = np.maximum(_visible_effects(tested, floor), least[family])
    return [
        _verdict(*arguments) for arguments in zip(figures, p_values.tolist(), visible.tolist(), strict=True)
    ]


def distances(vectors: np.ndarray, floor: np.ndarray | float = 0.0) -> np.ndarray:
    """How far every figure of a vector lies from that of the other vectors, in their standard deviations and a floor [figures].

    `vectors` is [vectors, figures], NaN where a vector does not have a figure; so is what is returned. Where the others do not
    differ at all and there is no floor, any difference is infinitely far.
    """
    count = (~np.isnan(vectors)).sum(0)
    centred = vectors - np.nanmean(vectors, 0)
    # Without vector i the mean moves by centred_i / (n - 1), and the sum of squares loses n / (n - 1) centred_i^2.
    apart = np.abs(centred) * count / (count - 1)
    squares = np.nansum(centred**2, 0) - centred**2 * count / (count - 1)
    spread = np.sqrt(np.maximum(squares, 0) / (count - 2) + floor**2)
    alike = np.where(apart > ROUNDING, np.inf, 0.0)
    far = np.divide(apart, spread, out=alike, where=spread > ROUNDING)
    return np.where(np.isnan(vectors), np.nan, far)


def step_down(distances: np.ndarray) -> np.ndarray:
    """p-values of the first vector's figures by step-down max-T [figures], from [vectors, figures].

    Exact where every vector has every figure; NaN for what the first vector does not have.
    """
    known = ~np.isnan(distances)
    far = np.where(known, distances, -np.inf)
    order = np.argsort(-far[0], kind="stable")
    ranked = far[:, order]
    largest = np.maximum.accumulate(ranked[:, ::-1], axis=1)[:, ::-1]  # of this figure and those less far out
    reached = largest >= ranked[0] * (1 - 1e-9)  # the first vector reaches itself
    p_values = np.empty(len(order))
    p_values[order] = np.maximum(np.maximum.accumulate(reached.mean(0)), _share(reached, known[:, order]))
    return np.where(known[0], p_values, np.nan)


def _share(reached: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Of the vectors that have a figure, the share that reach the first one."""
    share: np.ndarray = (reached & known).sum(0) / np.maximum(known.sum(0), 1)
    return share


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


def _tested(vectors: np.ndarray) -> np.ndarray:
    """The figures that enough vectors have to be tested. The subject counts as any other, so that the test stays exact."""
    count = (~np.isnan(vectors)).sum(0)
    enough: np.ndarray = count > max(2, min(ENOUGH_DRAWS, len(vectors) - 1))
    return enough


def _visible_effects(vectors: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """Of every figure the smallest difference that would be beyond the null, the other figures being as they are."""
    draws = vectors[1:]
    known = np.vstack([np.full(draws.shape[1], True), ~np.isnan(draws)])
    mean, spread = np.nanmean(draws, 0), np.nanstd(draws, 0, ddof=1)
    apart = np.nan_to_num(distances(vectors, floor), nan=-np.inf)
    others = np.stack([np.delete(apart, k, axis=1).max(1, initial=0.0) for k in range(len(mean))], axis=1)

    def visible(effect: np.ndarray) -> np.ndarray:
        moved = distances(np.concatenate([(mean + effect)[None], draws]), floor)
        reached = np.fmax(others, moved) >= moved[0]
        return np.maximum(reached.mean(0), _share(reached, known)) <= LEVEL

    low, high = np.zeros(len(mean)), np.maximum(MOST_DEVIATIONS * spread, 1.0)
    seen = visible(high)
    for _ in range(40):
        middle = (low + high) / 2
        is_visible = visible(middle)
        low, high = np.where(is_visible, low, middle), np.where(is_visible, middle, high)
    return np.where(seen, high, np.nan)


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
