"""When is a model's figure more than a null's? The one rule behind every such verdict.

Under the null hypothesis the subject is one more draw of the null. With K draws on the subject's prompts, m and s the mean
and standard deviation of a figure over them, and e the subject's standard error over prompts, a figure T is *beyond the
null* when

    |T - m| > t * sqrt(s^2 (1 + 1/K) + e^2),

t the Student quantile with K - 1 degrees of freedom after Holm's correction over all figures shown together, and, for a
figure in score units, when |T - m| >= 0.05. Otherwise it is *also in the null*. One draw says nothing about the spread
between draws, and one prompt nothing about e: no verdict. With two to four draws, figures that do not pass get none either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rotoscope.stats.intervals import INTERVAL

BEYOND, ALSO, NO_VERDICT = "beyond the null", "also in the null", "no verdict"
LEVEL = 0.05
"""How often at most one of the figures shown together may be called beyond the null where none is."""
EFFECT = 0.05
"""A difference in score units that is smaller says nothing, however certain it is."""
LEAST_DRAWS, ENOUGH_DRAWS = 2, 5
"""From how many draws on a figure can be beyond the null, and from how many on it can be called also in it."""


@dataclass(frozen=True)
class Figure:
    """A figure of the subject, and the same figure of every draw of the null."""

    value: float
    error: float
    """The subject's standard error over prompts; NaN where there was one prompt."""
    draws: Sequence[float]
    in_score_units: bool = True


@dataclass(frozen=True)
class Verdict:
    """What the null says about a figure."""

    verdict: str
    """`beyond the null`, `also in the null` or `no verdict`."""
    reason: str
    """Why there is no verdict; empty where there is one."""
    null_value: float
    """The mean over the draws."""
    null_low: float
    null_high: float
    """Where the next draw would lie, with 95 %; NaN where one draw says nothing about it."""
    null_draws: int
    p_value: float
    """After Holm's correction; below 0.05 for figures beyond the null. NaN where nothing can be tested."""


def verdicts(figures: Sequence[Figure]) -> list[Verdict]:
    """The verdicts on figures that are shown together, in their order: one family for Holm's correction."""
    compared = [_Compared(figure) for figure in figures]
    corrected = holm(np.array([one.p_value for one in compared]))
    return [one.verdict(float(p)) for one, p in zip(compared, corrected, strict=True)]


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's correction: p-values to compare with the level itself. What is not a number does not count."""
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    corrected = np.full(len(p_values), np.nan)
    steps = p_values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


class _Compared:
    """One figure beside the null's draws of it, before it is known what else is shown."""

    def __init__(self, figure: Figure) -> None:
        from scipy.special import stdtr, stdtrit  # t quantiles; not needed to ask a command for help

        self.figure = figure
        drawn = np.asarray(figure.draws, dtype=float)
        drawn = drawn[~np.isnan(drawn)]
        self.draws = len(drawn)
        self.mean = float(drawn.mean()) if self.draws else np.nan
        self.apart = abs(figure.value - self.mean)
        self.ends, self.p_value = (np.nan, np.nan), np.nan
        if self.draws < LEAST_DRAWS:
            return
        freedom = self.draws - 1
        between = float(drawn.std(ddof=1)) * np.sqrt(1 + 1 / self.draws)
        self.ends = tuple(self.mean + float(stdtrit(freedom, q)) * between for q in INTERVAL)
        spread = np.hypot(between, figure.error)
        if spread > 0:
            self.p_value = float(2 * stdtr(freedom, -self.apart / spread))
        elif spread == 0:  # neither draws nor prompts differ
            self.p_value = 1.0 if self.apart == 0 else 0.0

    def verdict(self, p_value: float) -> Verdict:
        large = self.apart >= EFFECT or not self.figure.in_score_units
        verdict, reason = NO_VERDICT, self._missing()
        if not reason:
            if p_value < LEVEL and large:
                verdict = BEYOND
            elif self.draws >= ENOUGH_DRAWS:
                verdict = ALSO
            else:
                reason = f"{self.draws} draws: no verdict; calling it the null's takes {ENOUGH_DRAWS}"
        return Verdict(verdict, reason, self.mean, *self.ends, self.draws, p_value)

    def _missing(self) -> str:
        if np.isnan(self.figure.value):
            return "undefined"
        if not self.draws:
            return "no draw of the null has it"
        if self.draws < LEAST_DRAWS:
            return f"one draw: no verdict, which takes at least {LEAST_DRAWS} ({ENOUGH_DRAWS} by default)"
        return "one prompt: no standard error, no verdict" if np.isnan(self.figure.error) else ""
