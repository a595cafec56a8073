"""A claim of a paper as data: what it says, what the paper found, how it is judged, the run it needs, and the table of all."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.ledger.verdicts import Finding, Outcome, Says, beside, by_construction
from rotoscope.runs.result import SavedRun

if TYPE_CHECKING:
    from rotoscope.ledger.claim_runs import ClaimRuns, Runs


COSTS = ("quick", "cpu", "gpu")
Cost = Literal["quick", "cpu", "gpu", "endpoint"]
Kind = Literal["theorem", "by construction", "empirical", "ours", "cost"]
KINDS: dict[str, str] = {
    "theorem": "theorems and definitions",
    "empirical": "empirical claims of the papers",
    "by construction": "by construction",
    "ours": "our own",
    "cost": "comparisons of cost",
}
HERE = "computed by this run"


@dataclass(frozen=True)
class Need:
    """A run that claims are judged on: what making it takes, and the command behind the stored one."""

    cost: Cost
    stored: str = ""

    def rests_on(self, cost: str) -> str:
        """What a claim rests on at a cost."""
        if self.cost == "endpoint":
            return self.stored
        return HERE if COSTS.index(self.cost) <= COSTS.index(cost) else f"stored runs ({self.stored})"


_LANGUAGE = "python -m benchmarks.language_models MODEL"
NEEDS: dict[str, Need] = {
    "theory": Need("quick"),
    "sequences": Need("quick"),
    "printed": Need("quick"),
    "language": Need("cpu", _LANGUAGE),
    "language, 256 facts": Need("gpu", _LANGUAGE),
    "cache": Need("cpu", "rotoscope plan cache smollm2 --frontier 0.05 0.1 0.2 0.3 0.5 0.75 --prompts 16"),
    "copying": Need(
        "cpu", "the ten heads of smollm2 that copy most, gated as in rotoscope gate --remove 25-32"
    ),
    "carried": Need("cpu", "rotoscope depths smollm2 --pairs 32 --prompts 8 --at all --null random"),
    "curves": Need("gpu", "rotoscope depths smollm2 --pairs 32 --prompts 8 --at all --null random"),
    "canonical": Need("cpu", "rotoscope canonical all --preset paper"),
    "training": Need("gpu", "rotoscope train number letter --preset paper --seeds 3"),
    "roles": Need("cpu", "rotoscope dynamics number|letter"),
    "geometry": Need("cpu", "rs.experiments.find_geometry"),
    "lengths": Need("gpu", "rotoscope lengths number letter, models of three seeds"),
    "depths": Need(
        "gpu", "rotoscope depths number|letter --at all --prompts 24 --swaps 120 --null random --null-heads all"
    ),
    "restricted mini": Need(
        "cpu", "rotoscope train number letter --preset mini --seeds 3 --angles all slow 1-4"
    ),
    "restricted": Need("gpu", "rotoscope train number letter --preset paper --seeds 3 --angles all slow 1-8"),
    "steered": Need(
        "gpu", "rotoscope train --favour none symbolic positional, rs.experiments.measure_steering"
    ),
    "onehop": Need("endpoint", "finished runs of one-hop questions (--one-hop)"),
}
"""The runs by name. Where a claim's run costs more than is paid for, it rests on what is stored."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the ledger before it is filled in."""

    id: str
    paper: Literal["p1", "p2", "ours"]
    section: str
    """Where the paper says it."""
    statement: str
    """In our own words."""
    paper_value: str
    rule: str
    """How numbers become a verdict."""
    reason: str
    """Why the rule's limits are where they are."""
    needs: str
    """The run it is judged on, one of `NEEDS`: what it rests on and what it costs follow from it."""
    says: Says
    """Whether the paper prints it, a summary of the paper has it, or it is ours."""
    kind: Kind
    compute: Callable[[ClaimRuns], Finding]
    restated: str = ""
    """Why the rule was changed after an earlier ledger, before its figures were computed again."""
    was: str = ""
    """The verdict under the rule before."""
    look: Callable[[Runs], Outcome] | None = None
    """What puts it to the runs of any multi-hop models, those that did not learn the task among them."""

    @property
    def place(self) -> str:
        """Where it stands, and what we know that from."""
        source = {"printed": "", "summary": " (after a summary)", "ours": " (ours, after the paper)"}
        return self.section + ("" if self.paper == "ours" else source[self.says])

    @property
    def cost(self) -> Cost:
        """What recomputing it takes; at a lower cost it rests on stored runs."""
        return NEEDS[self.needs].cost

    def command(self, cost: str, model: str = "smollm2") -> str:
        """What gives its row at a cost, number for number."""
        chosen = "" if model == "smollm2" else f" --model {model}"
        return f"rotoscope reproduce {self.id} --cost {cost}{chosen}"

    def recompute(self, cost: str, model: str = "smollm2") -> str:
        """What computes it without stored runs; empty where the cost that is paid already does."""
        if self.cost == "endpoint":
            ask = "rotoscope ask --endpoint URL --model NAME --out RUN"
            return f"{ask}, then rotoscope reproduce {self.id} --one-hop RUN"
        return self.command(self.cost, model) if COSTS.index(self.cost) > COSTS.index(cost) else ""


class NotStored(RotoscopeError):
    """A run of these models does not come with rotoscope."""


SAYS: dict[str, Says] = {"p1": "summary", "p2": "printed", "ours": "ours"}
"""Who says a claim, unless it is marked otherwise."""

Look = Callable[["Runs"], Outcome]
"""Puts a claim to the runs of some models."""


def claims(computed: Mapping[str, Callable[[ClaimRuns], Finding]]) -> list[Claim]:
    """The claims of these ids as the `claims-*.toml` word them, with what computes each."""
    rows = []
    for name, compute in computed.items():
        paper: Any = name.partition("-")[0]
        words = {"says": SAYS[paper]} | claim_words()[name]
        words.setdefault("kind", "ours" if words["says"] == "ours" else "empirical")
        look = getattr(compute, "look", None)
        rows.append(Claim(id=name, paper=paper, compute=compute, look=look, **words))
    return rows


@cache
def claim_words() -> dict[str, dict[str, Any]]:
    """What the TOML files say of every claim, by id."""
    files = (Path(__file__).with_name(f"claims-{paper}.toml") for paper in SAYS)
    return {name: words for file in files for name, words in tomllib.loads(file.read_text("utf-8")).items()}


@dataclass(frozen=True)
class BesideModels:
    """A claim about learning, put in the same way to models that did not learn the task."""

    look: Look
    twins: bool = False
    """Whether it is undecided as long as there are no twins trained on shuffled answers."""

    def __call__(self, runs: ClaimRuns) -> Finding:
        return beside(self.look(runs), outcomes_of(runs.nulls, self.look, twins=self.twins))


def outcomes_of(nulls: Sequence[Runs], look: Look, *, twins: bool) -> dict[str, Outcome | str]:
    """What models that did not learn the task give, by their names; why there is none where `twins` are waited for."""
    outcomes: dict[str, Outcome | str] = {}
    for null in nulls:
        try:
            outcomes[null.name] = look(null)
        except NotStored:
            if twins:
                outcomes[null.name] = f"{null.name} are not stored yet"
    return outcomes


def as_constructed(look: Callable[[ClaimRuns], Outcome]) -> Callable[[ClaimRuns], Finding]:
    """A check that cannot fail of what was made right."""
    return lambda runs: by_construction(look(runs))


PAPERS = {"p1": "P1", "p2": "P2", "ours": "this project"}
"""Who says a claim, as a reader knows them."""


class Ledger(SavedRun):
    """Claims with the paper's value, ours, the null's, the verdict and the command behind it."""

    kind = "ledger"

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row per claim: the paper's value, ours, the null's, rule, verdict and the command behind it."""
        return self.tables["ledger"]

    def counts(self) -> pd.Series:
        """How many claims have each verdict."""
        return self.rows["verdict"].value_counts()

    def counts_by_kind(self) -> pd.DataFrame:
        """The same by kind of claim: theorems, empirical claims of the papers, by construction, our own, cost."""
        table = pd.crosstab(self.rows["kind"], self.rows["verdict"])
        return table.reindex([kind for kind in KINDS if kind in table.index])

    def kinds_text(self) -> str:
        """The counts in words, one sentence for every kind of claim."""
        sentences = []
        for kind, counts in self.counts_by_kind().iterrows():
            counted = ", ".join(
                f"{n} {verdict}" for verdict, n in counts[counts > 0].sort_values(ascending=False).items()
            )
            sentences.append(f"{counts.sum()} {KINDS[str(kind)]}: {counted}")
        return "; ".join(sentences)

    def changes(self) -> pd.DataFrame:
        """The claims whose verdict is another than under their earlier rule, with the reason for the new rule."""
        rows = self.rows[(self.rows["was"] != "") & (self.rows["was"] != self.rows["verdict"])]
        return rows[["id", "was", "verdict", "restated"]].reset_index(drop=True)

    def markdown(self) -> str:
        """The ledger as a Markdown table, the verdict beside the claim: in sight on a narrow screen.

        How stored runs were made, and the command of every row, stand in the table alone.
        """
        head = ("claim", "verdict", "statement", "paper's value", "ours", "null", "paper", "rests on")
        rows = [
            (
                row.id,
                row.verdict,
                row.statement,
                row.paper_value,
                row.our_value + (f" ({row.note})" if row.note else ""),
                row.null_value,
                f"{PAPERS.get(row.paper, row.paper)}, {row.place}",
                row.rests_on.split(" (")[0],
            )
            for row in self.rows.itertuples()
        ]
        return f"{len(self.rows)} claims. {self.kinds_text()}.\n\n" + markdown_table(head, rows)

    def __repr__(self) -> str:
        counted = ", ".join(f"{number} {verdict}" for verdict, number in self.counts().items())
        return f"Ledger({counted})"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, cells on one line each."""
    cells = ([str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in (head, *rows))
    first, *rest = (f"| {' | '.join(line)} |" for line in cells)
    return "\n".join([first, "|---" * len(head) + "|", *rest]) + "\n"
