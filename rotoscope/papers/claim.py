"""A claim of a paper as data: what it says, what the paper found, how it is judged, and the run it needs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from rotoscope.papers.workshop import Workshop

REPRODUCED = "reproduced"
DIFFERENT = "reproduced with a difference"
NOT = "not reproduced"
FALSE = "false as printed"
NOT_RUN = "not run here"
VERDICTS = (REPRODUCED, DIFFERENT, NOT, FALSE, NOT_RUN)
COSTS = ("quick", "cpu", "gpu")
Cost = Literal["quick", "cpu", "gpu", "endpoint"]
Need = Literal[
    "theory", "sequences", "profile", "canonical", "training", "roles", "geometry", "lengths", "onehop"
]

HERE = "computed by this run"
EMBEDDED, TRAINED = f"{HERE} on the embedded model", f"{HERE} on the model it trained"


@dataclass(frozen=True)
class Run:
    """A run that claims are judged on: what making it takes, and what stands in its place otherwise."""

    cost: Cost
    rests_on: tuple[str, str, str] = (HERE, HERE, HERE)
    """At quick, cpu and gpu cost; {device} is where the stored models were trained."""


_CHECKPOINTS = "(rotoscope train number|letter --preset paper, {device})"
_STORED_CANONICAL = "stored run (rotoscope canonical all --preset paper)"
_STORED_TRAINING = f"stored runs of three seeds {_CHECKPOINTS}"
_SEED_TRAINED = f"seed 0 trained by this run, seeds 1 and 2 stored {_CHECKPOINTS}"
_SEED_MEASURED = "seed 0 trained and measured by this run, the others stored (rotoscope lengths stored)"
_STORED_LENGTHS = "stored measurement of trained models (rotoscope lengths stored)"
_STORED_ROLES = "stored run (rotoscope dynamics number|letter)"

NEEDS: dict[Need, Run] = {
    "theory": Run(cost="quick"),
    "sequences": Run(cost="quick"),
    "profile": Run(cost="quick"),
    "canonical": Run(cost="cpu", rests_on=(_STORED_CANONICAL, HERE, HERE)),
    "training": Run(cost="gpu", rests_on=(_STORED_TRAINING, _STORED_TRAINING, _SEED_TRAINED)),
    "roles": Run(cost="cpu", rests_on=(_STORED_ROLES, EMBEDDED, TRAINED)),
    "geometry": Run(cost="cpu", rests_on=(EMBEDDED, EMBEDDED, TRAINED)),
    "lengths": Run(cost="gpu", rests_on=(_STORED_LENGTHS, _STORED_LENGTHS, _SEED_MEASURED)),
    "onehop": Run(cost="endpoint", rests_on=("finished runs of one-hop questions (--one-hop)",) * 3),
}
"""The runs by name. Where a claim's run costs more than is asked for, it rests on what is stored."""


@dataclass(frozen=True)
class Finding:
    """What came out: our value, the null's where one applies, and the verdict that follows from them."""

    value: str
    verdict: str
    null: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the ledger before it is filled in."""

    id: str
    paper: Literal["p1", "p2"]
    where: str
    statement: str
    """In our own words."""
    paper_value: str
    rule: str
    """How numbers become a verdict."""
    needs: Need
    """The run it is judged on: what it rests on and what it costs follow from it."""
    compute: Callable[[Workshop], Finding]

    @property
    def cost(self) -> Cost:
        """What recomputing it takes; at a lower cost it rests on stored runs."""
        return NEEDS[self.needs].cost

    def command(self, cost: str, subject: str = "smollm2") -> str:
        """What gives its row at a cost, number for number."""
        model = "" if subject == "smollm2" else f" --model {subject}"
        return f"rotoscope reproduce {self.id} --cost {cost}{model}"

    def recompute(self, cost: str, subject: str = "smollm2") -> str:
        """What computes it without stored runs; empty where the given cost already does."""
        if self.cost == "endpoint":
            return (
                "rotoscope ask --endpoint URL --model NAME --out RUN, then "
                f"rotoscope reproduce {self.id} --one-hop RUN"
            )
        return self.command(self.cost, subject) if COSTS.index(self.cost) > COSTS.index(cost) else ""


def claims(computed: Mapping[str, Callable[[Workshop], Finding]]) -> list[Claim]:
    """The claims of these ids as `claims.toml` words them, with what computes each."""
    return [
        Claim(id=name, paper="p1" if name.startswith("p1") else "p2", compute=compute, **_words()[name])
        for name, compute in computed.items()
    ]


@cache
def _words() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))


def judged(as_said: bool, *, in_part: bool = False) -> str:
    """Reproduced if it is as said, with a difference if it is so in part, otherwise not."""
    return REPRODUCED if as_said else DIFFERENT if in_part else NOT


def one_way(vectors: pd.DataFrame) -> float:
    """How far vectors (columns re and im) point one way: the length of their mean direction, 1 if all alike."""
    size = np.hypot(vectors["re"], vectors["im"])
    return float(np.hypot((vectors["re"] / size).mean(), (vectors["im"] / size).mean()))
