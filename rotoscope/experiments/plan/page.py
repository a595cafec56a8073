"""The tab of a plan, and two plans beside each other: what was decided, what every way to decide loses, what two plans share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd

from rotoscope.experiments.page_data import PageRun, Tab, curve, table
from rotoscope.experiments.plan.result import ANY, PLAN, Plan
from rotoscope.experiments.plan.settings import RANDOM, SOURCES

UNTESTED = "Each plan has its own intervals; no difference between the two is tested."
SIDES = ("first", "second")


def plan_tab(page_run: PageRun) -> Tab | None:
    """Loss against the budget, by source and ranking."""
    if "points" not in page_run.tables or not len(page_run.tables["points"]):
        return None
    plan = page_run.opened()
    done = plan.unit_table in page_run.tables
    sentences = page_run.attempt("what was decided", plan.sentences) if done else None
    tables = (page_run.attempt("the tables of the plan", plan.overview) if done else None) or []
    return {
        "panels": [{"title": title, "curves": curves} for title, curves in _curves(plan).items()],
        "x": plan.budget_words,
        "y": "loss",
        "said": sentences or [],
        "tables": [table(frame, title, most=None) for title, frame in tables if len(frame)],
    }


def _curves(plan: Plan, names: Sequence[str] | None = None) -> dict[str, list[Tab]]:
    """By title of a panel, one for each source, a line for every ranking; where all or nothing is kept, rankings are the same."""
    frontier = plan.frontier.rename(columns={"loss_low": "low", "loss_high": "high"})
    if names is None:
        names = [name for name in frontier["ranking"].unique() if name != ANY]
    panels: dict[str, list[Tab]] = {}
    for source in (name for name in SOURCES if name in plan.sources):
        rows = frontier[frontier["source"] == source]
        lines = [
            (name, rows[rows["ranking"].isin((name, ANY))]) for name in names if name in set(rows["ranking"])
        ]
        panels[f"Loss on {source}"] = [
            {
                "name": name.replace("_", " "),
                **curve(line.drop_duplicates(plan.budget_column), plan.budget_column, "loss"),
            }
            for name, line in lines
        ]
    return panels


@dataclass(frozen=True)
class PlanComparison:
    """A finished plan, for a comparison with another of its kind.

    Sentences hold whichever of the two comes first; what is one plan's own stands under `first` and `second`.
    """

    plan: Plan

    @classmethod
    def of(cls, page_run: PageRun) -> Self | None:
        """None for a plan that is not finished."""
        return cls(page_run.opened()) if page_run.complete else None

    def beside(self, other: PlanComparison) -> Tab:
        """What the page shows of two plans."""
        plans = (self.plan, other.plan)
        panels = [_curves(plan, (PLAN, RANDOM)) for plan in plans]
        titles = dict.fromkeys([*panels[0], *panels[1]])
        kept = pd.concat([plan.kept_units() for plan in plans], axis=1, join="inner", keys=SIDES).astype(bool)
        tab = {
            "x": self.plan.budget_words,
            "y": "loss",
            "panels": [
                {"title": title, **dict(zip(SIDES, (curves.get(title, []) for curves in panels), strict=True))}
                for title in titles
            ],
            "said": dict(zip(SIDES, (plan.sentences()[0] for plan in plans), strict=True)),
            "tables": [_losses(plans), _differences(self.plan, kept)],
        }
        return {"plan": tab, "words": _shared_words(plans, kept)}


def _losses(plans: tuple[Plan, Plan]) -> Tab:
    """What either plan loses at the budget that was asked for, beside random choices."""
    columns = {"ranking": "ranking", "loss": "loss", "null_value": "random", "verdict": "verdict"}
    sides = []
    for plan in plans:
        rows = plan.against_random[plan.against_random[plan.budget_column] == plan.budget]
        sides.append(rows.set_index("source")[list(columns)].rename(columns=columns))
    return _beside("Loss at the budget that was asked for", sides)


def _differences(plan: Plan, kept: pd.DataFrame) -> Tab:
    """Where two plans keep different units, how many either keeps."""
    groups = kept.assign(both=kept.all(axis=1)).groupby(plan.compared_by).sum()
    groups = groups[(groups["first"] != groups["both"]) | (groups["second"] != groups["both"])]
    units, verb = plan.unit_words
    counts = [groups[[side]].set_axis([f"{units} that {verb}"], axis=1) for side in SIDES]
    return _beside("Where the plans differ", counts, groups[["both"]].set_axis(["in both"], axis=1))


def _shared_words(plans: tuple[Plan, Plan], kept: pd.DataFrame) -> list[str]:
    """How much of what two plans keep is the same, beside what chance alone would share.

    Chance: as many drawn at random, out of all or out of those of each group that units are ranked in.
    """
    units, verb = plans[0].unit_words
    shared, union = int(kept.all(axis=1).sum()), int(kept.any(axis=1).sum())
    groups = kept.groupby(plans[0].ranked_within) if plans[0].ranked_within else [((), kept)]
    chance = sum(rows["first"].sum() * rows["second"].sum() / len(rows) for _, rows in groups)
    sentences = []
    if len({plan.run.settings.get("fingerprint") or plan.name for plan in plans}) > 1:
        sentences.append(
            f"The plans were made for two models that are not the same. {units.capitalize()} are matched by layer and number alone."
        )
    share = f" ({shared / union:.0%})" if union else ""
    sentences.append(
        f"Of {union:,} {units} that {verb} under either plan, {shared:,}{share} {verb} under both; as many drawn at random would share "
        f"{chance:,.1f}."
    )
    alone = sum(len(plan.kept_units()) for plan in plans) - 2 * len(kept)
    if alone:
        sentences.append(f"{alone:,} {units} are in one of the models only.")
    return [*sentences, UNTESTED]


def _beside(title: str, sides: Sequence[pd.DataFrame], shared: pd.DataFrame | None = None) -> Tab:
    """A table of what two plans share, then of the first, then of the second; rows of only one are listed, too."""
    index = sides[0].index.append(sides[1].index.difference(sides[0].index, sort=False))
    front = index.to_frame(index=False)
    if shared is not None:
        front = pd.concat([front, shared.reindex(index).reset_index(drop=True)], axis=1)
    parts: dict[str, Any] = {
        side: table(rows.reindex(index).reset_index(drop=True), title, most=None)
        for side, rows in zip(SIDES, sides, strict=True)
    }
    return {**table(front, title, most=None), **parts}
