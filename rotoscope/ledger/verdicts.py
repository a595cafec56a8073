"""How a verdict follows from figures: the one place.

- **reproduced**, **in part**, **not reproduced**: the figures meet the claim's rule, a stated part of it, or neither.
- **as in the null**: they meet it, and so do models that did not learn the task, or equivalence with a null is shown.
- **undecided**: they meet it, and what would tell is not there: too few draws, no twins, no model that does the task.
- **by construction**: a check that cannot fail of anything that was made right; it is not counted as reproduced.
- **corrected**: a statement holds after the repair that stands beside it. **false as printed**: it has a counterexample.
  Only what a paper is known to print can be that; of P1 we had a summary.
- **cost**: a comparison of what two things took, which nobody claims. **not run here**: nothing to judge on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from rotoscope.stats.verdict import BEYOND, NO_VERDICT, Figure, Verdict, verdicts

REPRODUCED = "reproduced"
IN_PART = "in part"
AS_IN_NULL = "as in the null"
UNDECIDED = "undecided"
NOT = "not reproduced"
BY_CONSTRUCTION = "by construction"
CORRECTED = "corrected"
FALSE = "false as printed"
NOT_RUN = "not run here"
COST = "cost"
VERDICTS = (REPRODUCED, IN_PART, AS_IN_NULL, UNDECIDED, NOT, BY_CONSTRUCTION, CORRECTED, FALSE, NOT_RUN, COST)

Says = Literal["printed", "summary", "ours"]
"""Who says it: the paper in print, the paper as a summary has it, or we, after the paper."""
EXPLAINED = 0.7
"""A rank correlation from here on accounts for half of the ranks' variance."""


@dataclass(frozen=True)
class Finding:
    """A row's outcome: our value, that of the null where one applies, and the verdict."""

    value: str
    verdict: str
    null: str = ""
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the figures of some models say of a claim: the value, and how much of the rule they meet."""

    value: str
    met: bool
    in_part: bool = False
    note: str = ""
    undecided: str = ""
    """Why nothing follows, where the figures do not say."""

    @property
    def level(self) -> int:
        """2 the rule, 1 the part of it that the rule names, 0 neither."""
        return 2 if self.met else 1 if self.in_part else 0


def judged(met: bool, *, in_part: bool = False, null: int = 0) -> str:
    """The verdict on figures that meet a rule, or part of it, where the null's figures reach a level of it."""
    level = 2 if met else 1 if in_part else 0
    return NOT if level == 0 else AS_IN_NULL if level <= null else REPRODUCED if level == 2 else IN_PART


def beside(outcome: Outcome, nulls: dict[str, Outcome | str]) -> Finding:
    """An outcome beside those of models that did not learn the task, by their names; a string says why some are missing."""
    known = {name: null for name, null in nulls.items() if isinstance(null, Outcome)}
    missing = [null for null in nulls.values() if isinstance(null, str)]
    verdict = judged(
        outcome.met, in_part=outcome.in_part, null=max((n.level for n in known.values()), default=0)
    )
    notes = [outcome.note]
    if outcome.undecided:
        verdict, notes = UNDECIDED, [outcome.undecided, *notes]
    elif missing and verdict in (REPRODUCED, IN_PART):
        verdict, notes = UNDECIDED, [*missing, *notes]
    value = "; ".join(f"{name}: {null.value}" if len(known) > 1 else null.value for name, null in known.items())
    return Finding(outcome.value, verdict, value, "; ".join(filter(None, notes)))


def by_construction(outcome: Outcome) -> Finding:
    """Of a check that cannot fail of what was made right."""
    verdict = BY_CONSTRUCTION if outcome.met else NOT if outcome.value else NOT_RUN
    return Finding(outcome.value, verdict, note=outcome.note)


def beside_draws(met: bool, figures: Sequence[tuple[float, Verdict]], sign: int = 1) -> tuple[str, str]:
    """The verdict, and why, on figures that must lie beyond every null on the side that is claimed."""
    if not met:
        return NOT, ""
    if all(beyond(value, verdict, sign) for value, verdict in figures):
        return REPRODUCED, ""
    if any(verdict.verdict not in (BEYOND, UNDECIDED, NO_VERDICT) for _, verdict in figures):
        return AS_IN_NULL, ""
    if any(verdict.verdict == BEYOND and not beyond(value, verdict, sign) for value, verdict in figures):
        return AS_IN_NULL, ""
    return UNDECIDED, "; ".join(dict.fromkeys(verdict.reason for _, verdict in figures if verdict.reason))


def null_verdict(value: float, error: float, draws: Sequence[float]) -> Verdict:
    """What the null says about one figure."""
    return verdicts([Figure(value, error, draws)])[0]


def beyond(value: float, verdict: Verdict, sign: int = 1) -> bool:
    """Whether a figure lies beyond its null on the side that is claimed."""
    return verdict.verdict == BEYOND and sign * (value - verdict.null_value) > 0


def of_statement(outcome: str, says: Says, correction_holds: bool) -> str:
    """The verdict on a theorem, from what its check found.

    A statement of ours that holds is what a printed one becomes when it is repaired.
    """
    if outcome == "holds":
        return CORRECTED if says == "ours" else REPRODUCED
    if not correction_holds:
        return NOT
    return FALSE if outcome == "false as printed" and says == "printed" else CORRECTED


def rank_correlation(x: pd.Series, y: pd.Series) -> float:
    """Over what both have; NaN where either does not vary."""
    ranks = pd.DataFrame({"x": x, "y": y}).dropna().rank()
    return float(ranks["x"].corr(ranks["y"])) if (ranks.nunique() > 1).all() else float("nan")


def resultant(vectors: pd.DataFrame) -> float:
    """How far vectors (columns re and im) point one way: the length of their mean direction, 1 if all are alike."""
    size = np.hypot(vectors["re"], vectors["im"])
    return float(np.hypot((vectors["re"] / size).mean(), (vectors["im"] / size).mean()))
