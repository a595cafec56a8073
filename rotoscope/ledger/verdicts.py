"""How a verdict follows from figures: the one place.

- **reproduced**, **in part**, **not reproduced**: the figures meet the claim's rule, a stated part of it, or neither.
- **also in the null**: they meet it, and models that learned nothing meet it as far.
- **corrected**: a statement holds after the repair that stands beside it. **false as printed**: it has a counterexample.
  Only what a paper is known to print can be that; of P1 we had a summary.
- **cost**: a comparison of what two things took, which nobody claims. **not run here**: nothing to judge on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rotoscope.stats.verdict import BEYOND, Figure, verdicts

REPRODUCED = "reproduced"
IN_PART = "in part"
ALSO_NULL = "also in the null"
CORRECTED = "corrected"
FALSE = "false as printed"
NOT = "not reproduced"
NOT_RUN = "not run here"
COST = "cost"
VERDICTS = (REPRODUCED, IN_PART, ALSO_NULL, CORRECTED, FALSE, NOT, NOT_RUN, COST)

Says = Literal["printed", "summary", "ours"]
"""Who says it: the paper in print, the paper as a summary has it, or we, after the paper."""
TOGETHER = 4
"""How many figures outside a profile's own statistics are compared with the null's draws: they share one error level, each
corrected as if the others were as far off."""


@dataclass(frozen=True)
class Finding:
    """What came out: our value, that of models that learned nothing where one applies, and the verdict."""

    value: str
    verdict: str
    null: str = ""
    note: str = ""


@dataclass(frozen=True)
class Found:
    """What the figures of some models say of a claim: the value, and how far it is as said."""

    value: str
    as_said: bool
    in_part: bool = False
    note: str = ""

    @property
    def level(self) -> int:
        return 2 if self.as_said else 1 if self.in_part else 0


def judged(as_said: bool, *, in_part: bool = False, null: int = 0) -> str:
    """The verdict on a claim that is as said, or so in part, where models that learned nothing come as far as `null`.

    Levels: 2 as said, 1 in part, 0 neither. What does not go beyond the null's level is also in the null.
    """
    level = 2 if as_said else 1 if in_part else 0
    return NOT if level == 0 else ALSO_NULL if level <= null else REPRODUCED if level == 2 else IN_PART


def beside(found: Found, null: Found) -> Finding:
    """What was found, beside the same of models that learned nothing."""
    verdict = judged(found.as_said, in_part=found.in_part, null=null.level)
    return Finding(found.value, verdict, null.value, found.note)


def alone(found: Found) -> Finding:
    """Of a claim that says nothing about training."""
    return Finding(found.value, judged(found.as_said, in_part=found.in_part), note=found.note)


def goes_beyond(value: float, error: float, draws: Sequence[float]) -> bool:
    """Whether a figure lies above what random models give, by the rule for nulls."""
    found = verdicts([Figure(value, error, draws)] * TOGETHER)[0]
    return found.verdict == BEYOND and value > found.null_value


def of_statement(outcome: str, says: Says, correction_holds: bool) -> str:
    """The verdict on a theorem, from what its check found.

    A statement of ours that holds is what a printed one becomes when it is repaired.
    """
    if outcome == "holds":
        return CORRECTED if says == "ours" else REPRODUCED
    if not correction_holds:
        return NOT
    return FALSE if outcome == "false as printed" and says == "printed" else CORRECTED
