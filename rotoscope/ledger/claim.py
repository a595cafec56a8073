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

from rotoscope.ledger.verdicts import Finding, Found, Says, alone, beside

if TYPE_CHECKING:
    from rotoscope.ledger.claim_runs import Workshop

COSTS = ("quick", "cpu", "gpu")
Cost = Literal["quick", "cpu", "gpu", "endpoint"]
Need = Literal[
    "theory",
    "sequences",
    "printed",
    "proof",
    "scores",
    "profile",
    "telling",
    "depth",
    "places",
    "gating",
    "cache",
    "copying",
    "carried",
    "curves",
    "canonical",
    "training",
    "roles",
    "geometry",
    "lengths",
    "depths",
    "restricted mini",
    "restricted",
    "steered",
    "onehop",
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
_SEEDS_TRAINED = "three seeds trained by this run"
_SEEDS_MEASURED = f"{_SEEDS_TRAINED} and measured, shorter trainings stored (rotoscope lengths stored)"
_STORED_LENGTHS = "stored measurement of trained models (rotoscope lengths stored)"
_STORED_ROLES = "stored run (rotoscope dynamics number|letter)"
_STORED_GEOMETRY = "stored run (rs.experiments.find_geometry)"
_STORED_RESTRICTED = "stored runs of three seeds (rotoscope train number letter --preset paper --seeds 3 --angles all slow 1-8, {device})"
_STORED_STEERED = "stored measurement of three seeds (rotoscope train --favour none symbolic positional, rs.experiments.measure_steering)"
_STORED_RESTRICTED_MINI = (
    "stored runs of three seeds (rotoscope train number letter --preset mini --seeds 3 --angles all slow 1-4)"
)
_STORED_TELLING = (
    "stored run (rotoscope profile smollm2 --pairs 32 --prompts 4: its telling heads on every prompt)"
)
_STORED_DEPTH = "stored runs (rotoscope profile smollm2 --pairs 32|256, and --prefix start with prompts that end in 'Answer:')"
_STORED_PLACES = "stored run (rotoscope profile smollm2 --pairs 16 --prompts 128 --null none)"
_STORED_GATING = (
    "stored run (rotoscope gate smollm2 --task repeats --blocks first --prompts 8 --bands 2: symbolic heads)"
)
_STORED_CACHE = "stored run (rotoscope plan cache smollm2 --frontier 0.05 0.1 0.2 0.3 0.5 0.75 --prompts 16, of an earlier version that compared more rankings)"
_STORED_COPYING = (
    "stored run (the ten heads of smollm2 that copy most, gated as in rotoscope gate --remove 25-32)"
)
_STORED_CARRIED = "stored run (rotoscope depths smollm2 --pairs 32 --prompts 8 --at all)"
_STORED_DEPTHS = "stored measurement of trained models (rotoscope depths number|letter --at all --prompts 24 --swaps 120 --null-heads all)"
_DEPTHS_TRAINED = f"{_STORED_DEPTHS}; seed 0 trained and measured by this run"

NEEDS: dict[Need, Run] = {
    "theory": Run(cost="quick"),
    "sequences": Run(cost="quick"),
    "printed": Run(cost="quick", rests_on=("the paper's own table",) * 3),
    "proof": Run(cost="cpu", rests_on=(_STORED_DEPTH, HERE, HERE)),
    "scores": Run(cost="cpu", rests_on=(_STORED_DEPTH, HERE, HERE)),
    "profile": Run(cost="quick"),
    "telling": Run(cost="cpu", rests_on=(_STORED_TELLING, HERE, HERE)),
    "depth": Run(cost="gpu", rests_on=(_STORED_DEPTH, _STORED_DEPTH, HERE)),
    "places": Run(cost="cpu", rests_on=(_STORED_PLACES, HERE, HERE)),
    "gating": Run(cost="cpu", rests_on=(_STORED_GATING, HERE, HERE)),
    "cache": Run(cost="cpu", rests_on=(_STORED_CACHE, HERE, HERE)),
    "copying": Run(cost="cpu", rests_on=(_STORED_COPYING, HERE, HERE)),
    "carried": Run(cost="cpu", rests_on=(_STORED_CARRIED, HERE, HERE)),
    "curves": Run(cost="gpu", rests_on=(_STORED_CARRIED, _STORED_CARRIED, HERE)),
    "canonical": Run(cost="cpu", rests_on=(_STORED_CANONICAL, HERE, HERE)),
    "training": Run(cost="gpu", rests_on=(_STORED_TRAINING, _STORED_TRAINING, _SEEDS_TRAINED)),
    "roles": Run(cost="cpu", rests_on=(_STORED_ROLES, EMBEDDED, TRAINED)),
    "geometry": Run(cost="cpu", rests_on=(_STORED_GEOMETRY, EMBEDDED, TRAINED)),
    "lengths": Run(cost="gpu", rests_on=(_STORED_LENGTHS, _STORED_LENGTHS, _SEEDS_MEASURED)),
    "depths": Run(cost="gpu", rests_on=(_STORED_DEPTHS, _STORED_DEPTHS, _DEPTHS_TRAINED)),
    "restricted mini": Run(cost="cpu", rests_on=(_STORED_RESTRICTED_MINI, _SEEDS_TRAINED, _SEEDS_TRAINED)),
    "restricted": Run(cost="gpu", rests_on=(_STORED_RESTRICTED, _STORED_RESTRICTED, _SEEDS_TRAINED)),
    "steered": Run(cost="gpu", rests_on=(_STORED_STEERED, _STORED_STEERED, _SEEDS_TRAINED)),
    "onehop": Run(cost="endpoint", rests_on=("finished runs of one-hop questions (--one-hop)",) * 3),
}
"""The runs by name. Where a claim's run costs more than is asked for, it rests on what is stored."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the ledger before it is filled in."""

    id: str
    paper: Literal["p1", "p2", "ours"]
    where: str
    statement: str
    """In our own words."""
    paper_value: str
    rule: str
    """How numbers become a verdict."""
    reason: str
    """Why the rule's limits are where they are."""
    needs: Need
    """The run it is judged on: what it rests on and what it costs follow from it."""
    says: Says
    """Whether the paper prints it, a summary of the paper has it, or it is ours."""
    learned: bool
    """Whether it is about training or trained models, and so is also put to models that learned nothing."""
    compute: Callable[[Workshop], Finding]

    @property
    def place(self) -> str:
        """Where it stands, and what we know that from."""
        known = {"printed": "", "summary": " (after a summary)", "ours": " (ours, after the paper)"}
        return self.where + ("" if self.paper == "ours" else known[self.says])

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


SAYS: dict[str, Says] = {"p1": "summary", "p2": "printed", "ours": "ours"}
"""Who says a claim, unless it is marked otherwise."""

Look = Callable[["Workshop"], Found]
"""Puts a claim to a workshop's models."""


def claims(computed: Mapping[str, Callable[[Workshop], Finding]], *, learned: bool) -> list[Claim]:
    """The claims of these ids as the `claims-*.toml` word them, with what computes each."""
    made = []
    for name, compute in computed.items():
        paper: Any = name.partition("-")[0]
        words = {"says": SAYS[paper]} | _words()[name]
        made.append(Claim(id=name, paper=paper, compute=compute, learned=learned, **words))
    return made


def beside_untrained(look: Look) -> Callable[[Workshop], Finding]:
    """A claim about training: put to the workshop's models, and in the same way to models that learned nothing."""
    return lambda workshop: beside(look(workshop), look(workshop.untrained))


def by_itself(look: Look) -> Callable[[Workshop], Finding]:
    """A claim that says nothing about training."""
    return lambda workshop: alone(look(workshop))


@cache
def _words() -> dict[str, dict[str, Any]]:
    files = (Path(__file__).with_name(f"claims-{paper}.toml") for paper in SAYS)
    return {name: words for file in files for name, words in tomllib.loads(file.read_text("utf-8")).items()}


def rank_correlation(x: pd.Series, y: pd.Series) -> float:
    """Over what both have; NaN where either does not vary."""
    both = pd.DataFrame({"x": x, "y": y}).dropna().rank()
    return float(both["x"].corr(both["y"])) if (both.nunique() > 1).all() else float("nan")


def one_way(vectors: pd.DataFrame) -> float:
    """How far vectors (columns re and im) point one way: the length of their mean direction, 1 if all alike."""
    size = np.hypot(vectors["re"], vectors["im"])
    return float(np.hypot((vectors["re"] / size).mean(), (vectors["im"] / size).mean()))
