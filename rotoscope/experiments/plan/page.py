"""The tabs of plans: what was decided, what is lost by every way to decide, and the tables that say so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd

from rotoscope.experiments.page_data import PageRun, Tab, curve, table
from rotoscope.experiments.plan.result import ANY, PLAN
from rotoscope.experiments.plan.settings import RANDOM, SOURCES


def plan_tab(page_run: PageRun) -> Tab | None:
    """Loss against the budget, by source and ranking."""
    if "points" not in page_run.tables or not len(page_run.tables["points"]):
        return None
    plan = page_run.opened()
    done = bool({"heads", "plan"} & set(page_run.tables))
    sentences = page_run.attempt("what was decided", plan.sentences) if done else None
    tables = (page_run.attempt("the tables of the plan", plan.overview) if done else None) or []
    return {
        "panels": panels_of(with_ends(plan.frontier), plan.budget_column),
        "x": plan.budget_words,
        "y": "loss",
        "said": sentences or [],
        "tables": [table(frame, title, most=None) for title, frame in tables if len(frame)],
    }


def with_ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Where nothing or everything is kept, every ranking is the same."""
    ends, names = rows[rows["ranking"] == ANY], rows["ranking"].unique()
    return pd.concat([rows[rows["ranking"] != ANY], *(ends.assign(ranking=name) for name in names if name not in (ANY, PLAN))])  # fmt: skip


def panels_of(rows: pd.DataFrame, x: str) -> list[Tab]:
    """A picture for every source, a line for every way to decide."""
    rows = rows.rename(columns={"loss_low": "low", "loss_high": "high"})
    panels = []
    order = [name for name in SOURCES if name in set(rows["source"])]
    for source, some in ((name, rows[rows["source"] == name]) for name in order):
        lines = [
            {"name": str(name).replace("_", " "), **curve(line, x, "loss")}
            for name, line in some.groupby("ranking", sort=False)
        ]
        panels.append({"title": f"Loss on {source}", "curves": lines})
    return panels


# Two plans of one kind beside each other: what each decided, what it loses, and what both have in common.
#
# Sentences hold whichever of the two comes first; what is one plan's own stands under `first` and `second`.


UNTESTED = "Each plan has its own intervals; no difference between the two is tested."
OTHER_MODEL = "The plans were made for two models that are not the same."
Pair = tuple[Any, Any]


def _frontiers(plans: Pair) -> Tab:
    """The frontiers of either plan, its own and that of random choices."""
    rows = [with_ends(plan.frontier) for plan in plans]
    lines = [some[some["ranking"].isin((PLAN, RANDOM))] for some in rows]
    first = plans[0]
    return {"x": first.budget_words, "panels": _panels(lines, first.budget_column)}


def _caches(plans: Pair) -> Tab:
    key, keeps = ["layer", "key_head"], [plan.heads.assign(kept=~plan.heads["streams"]) for plan in plans]
    both, words = _in_common(
        plans, [some.set_index(key)["kept"] for some in keeps], ("key heads", "keep everything"), []
    )
    apart = both.index[both["first"] != both["second"]]
    heads = [
        some.set_index(key).loc[apart]["kept"].map({True: "keeps everything", False: "streams"}).rename("plan")
        for some in keeps
    ]
    at = [plan.against_random[plan.against_random["kept_share"] == plan.keep] for plan in plans]
    shown = {"ranking": "ranking", "loss": "loss", "null_value": "random", "verdict": "verdict"}
    losses = [some.set_index("source")[list(shown)].rename(columns=shown) for some in at]
    tables = [
        _beside("Loss at the share that was asked for", losses),
        _beside("Key heads that keep everything under one plan only", [one.to_frame() for one in heads]),
    ]
    return _frontiers(plans) | {"words": words, "tables": tables}


def _rotations(plans: Pair) -> Tab:
    planes = [plan.plan.set_index(["layer", "key_head", "frequency_id"])["rotates"] for plan in plans]
    both, words = _in_common(plans, planes, ("planes", "rotate"), ["layer", "key_head"])
    sides = [
        both.groupby("layer")[name].sum().rename("planes that rotate").to_frame()
        for name in ("first", "second")
    ]
    shared = (both["first"] & both["second"]).groupby("layer").sum().rename("in both")
    tables = [_beside("Planes that rotate, over all key heads of a layer", sides, shared.to_frame())]
    return _frontiers(plans) | {"words": words, "tables": tables}


@dataclass(frozen=True)
class PlanComparison(ABC):
    """A finished plan, for a comparison with another of its kind."""

    plan: Any

    @classmethod
    def of(cls, page_run: PageRun) -> Self | None:
        """None for a plan that is not finished."""
        return cls(page_run.opened()) if page_run.complete else None

    def beside(self, other: PlanComparison) -> Tab:
        """What the page shows of two plans."""
        plans = (self.plan, other.plan)
        tab = self.content(plans)
        first, second = (plan.sentences()[0] for plan in plans)
        words = tab.pop("words")
        return {"plan": tab | {"y": "loss", "said": {"first": first, "second": second}}, "words": words}

    @staticmethod
    @abstractmethod
    def content(plans: Pair) -> Tab:
        """Curves, tables and sentences about two plans."""


class CacheComparison(PlanComparison):
    """A finished cache plan."""

    content = staticmethod(_caches)


class RotationComparison(PlanComparison):
    """A finished rotation plan."""

    content = staticmethod(_rotations)


def _in_common(
    plans: Pair, marks: Sequence[pd.Series], words: tuple[str, str], within: list[str]
) -> tuple[pd.DataFrame, list[str]]:
    """What either plan keeps, row by row, and how much of it is the same; beside what chance alone would share.

    Chance: as many drawn at random, out of all or out of those of each group (`within`).
    """
    both = pd.concat(marks, axis=1, join="inner", keys=["first", "second"]).astype(bool)
    alone = sum(map(len, marks)) - 2 * len(both)
    shared, either = int((both["first"] & both["second"]).sum()), int((both["first"] | both["second"]).sum())
    groups = both.groupby(within) if within else [((), both)]
    chance = sum(some["first"].sum() * some["second"].sum() / len(some) for _, some in groups)
    what, do = words
    share = f" ({shared / either:.0%})" if either else ""
    said = (
        []
        if _one_model(plans)
        else [f"{OTHER_MODEL} {what.capitalize()} are matched by layer and number alone."]
    )
    said.append(
        f"Of {either:,} {what} that {do} under either plan, {shared:,}{share} {do} under both; as many drawn at random would share "
        f"{chance:,.1f}."
    )
    said += [f"{alone:,} {what} are in one of the models only."] if alone else []
    return both, [*said, UNTESTED]


def _one_model(plans: Pair) -> bool:
    first, second = (plan.run.settings.get("fingerprint") or plan.name for plan in plans)
    return bool(first == second)


def _panels(rows: Sequence[pd.DataFrame], x: str) -> list[Tab]:
    """A picture for every source of either plan, with the lines of both."""
    first, second = ({panel["title"]: panel["curves"] for panel in panels_of(some.copy(), x)} for some in rows)
    return [
        {"title": title, "first": first.get(title, []), "second": second.get(title, [])}
        for title in dict.fromkeys([*first, *second])
    ]


def _beside(title: str, sides: Sequence[pd.DataFrame], shared: pd.DataFrame | None = None) -> Tab:
    """A table of what both have in common, then of the first, then of the second; rows of one alone are there, too."""
    index = sides[0].index.append(sides[1].index.difference(sides[0].index, sort=False))
    front = index.to_frame(index=False)
    if shared is not None:
        front = pd.concat([front, shared.reindex(index).reset_index(drop=True)], axis=1)
    parts = {
        name: table(some.reindex(index).reset_index(drop=True), title, most=None)
        for name, some in zip(("first", "second"), sides, strict=True)
    }
    return {**table(front, title, most=None), **parts}
