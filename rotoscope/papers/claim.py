"""A claim of a paper as data: what it says, what the paper found, how it is judged, and the function that computes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from rotoscope.papers.workshop import Workshop

__all__ = [
    "COSTS",
    "DIFFERENT",
    "FALSE",
    "NOT",
    "NOT_RUN",
    "REPRODUCED",
    "VERDICTS",
    "Claim",
    "Cost",
    "Finding",
    "judged",
    "one_way",
]

REPRODUCED = "reproduced"
DIFFERENT = "reproduced with a difference"
NOT = "not reproduced"
FALSE = "false as printed"
NOT_RUN = "not run here"
VERDICTS = (REPRODUCED, DIFFERENT, NOT, FALSE, NOT_RUN)
COSTS = ("quick", "cpu", "gpu")
Cost = Literal["quick", "cpu", "gpu", "endpoint"]


@dataclass(frozen=True)
class Finding:
    """What came out: our value, the null's where one applies, and the verdict that follows from them."""

    value: str
    verdict: str
    null: str = ""
    note: str = ""
    rests_on: str = "computed by this run"


@dataclass(frozen=True)
class Claim:
    """One row of the ledger before it is filled in."""

    id: str
    paper: Literal["p1", "p2"]
    where: str
    statement: str
    """In our own words."""
    paper_value: str
    judged: str
    """The rule that turns numbers into a verdict."""
    compute: Callable[[Workshop], Finding]
    cost: Cost = "quick"
    """What computing it anew takes; at a lower cost it rests on stored runs."""

    def command(self, cost: str, subject: str = "smollm2") -> str:
        """What gives its row at a cost, number for number."""
        model = "" if subject == "smollm2" else f" --model {subject}"
        return f"rotoscope reproduce {self.id} --cost {cost}{model}"

    def anew(self, cost: str, subject: str = "smollm2") -> str:
        """What computes it without stored runs; empty where the given cost already does."""
        if self.cost == "endpoint":
            return f"rotoscope lengths --endpoint URL --model NAME --out RUN, then rotoscope reproduce {self.id} --one-hop RUN"
        return self.command(self.cost, subject) if COSTS.index(self.cost) > COSTS.index(cost) else ""


def judged(as_said: bool, *, in_part: bool = False) -> str:
    """Reproduced if it is as said, with a difference if it is so in part, otherwise not."""
    return REPRODUCED if as_said else DIFFERENT if in_part else NOT


def one_way(vectors: pd.DataFrame) -> float:
    """How far vectors (columns re and im) point one way: the length of their mean direction, 1 if all alike."""
    size = np.hypot(vectors["re"], vectors["im"])
    return float(np.hypot((vectors["re"] / size).mean(), (vectors["im"] / size).mean()))
