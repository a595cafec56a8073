"""The tabs of plans: what was decided, what is lost by every way to decide, and the tables that say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from rotoscope.experiments.plan.cache_result import NOTHING, PLAN, RANDOM, CachePlan
from rotoscope.experiments.plan.result import Plan
from rotoscope.experiments.plan.rotation_result import RotationPlan
from rotoscope.experiments.plan.settings import SOURCES
from rotoscope.report.columns import curve, table
from rotoscope.report.reported_run import ReportedRun

Tab = dict[str, Any]


def cache_tab(found: ReportedRun) -> Tab | None:
    """Loss against the share of key heads that keep everything, by source and ranking."""
    if "points" not in found.tables or not len(found.tables["points"]):
        return None
    run = CachePlan(found.run, found.tables)
    x = "share of key heads that keep everything"
    return _tab(found, run, panels_of(with_ends(run.frontier), "kept_share"), x, done="heads" in found.tables)


def rotation_tab(found: ReportedRun) -> Tab | None:
    """Loss against the number of planes that rotate, by source and ranking."""
    if not {"frontier", "selection"} <= set(found.tables):
        return None
    run = RotationPlan(found.run, found.tables)
    names = dict.fromkeys(run.selection["ranking"])
    rows = pd.concat([run.curve(name).assign(ranking=name) for name in names], ignore_index=True)
    x = "planes of a key head that rotate"
    return _tab(found, run, panels_of(rows, "planes"), x, done="plan" in found.tables)


def with_ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Where nobody or everybody streams, every ranking is the same."""
    ends, names = rows[rows["ranking"] == NOTHING], rows["ranking"].unique()
    return pd.concat([rows[rows["ranking"] != NOTHING], *(ends.assign(ranking=name) for name in names if name not in (NOTHING, "plan"))])  # fmt: skip


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


def _tab(
    found: ReportedRun,
    run: Plan,
    panels: list[Tab],
    x: str,
    *,
    done: bool,
) -> Tab:
    said = found.attempt("what was decided", run.sentences) if done else None
    tables = (found.attempt("the tables of the plan", run.overview) if done else None) or []
    return {
        "panels": panels,
        "x": x,
        "y": "loss",
        "said": said or [],
        "tables": [table(frame, title, most=None) for title, frame in tables if len(frame)],
    }


# Two plans of one kind beside each other: what each decided, what it loses, and what both have in common.
#
# Sentences hold whichever of the two comes first; what is one plan's own stands under `first` and `second`.


UNTESTED = "Each plan has its own intervals; no difference between the two is tested."
OTHER_MODEL = "The plans were made for two models that are not the same."
Pair = tuple[Any, Any]


def plans_compared(first: Plan, second: Plan) -> Tab | None:
    """What the page shows of two plans; nothing where they are not of one kind."""
    make = MADE.get(type(first))
    if make is None or type(first) is not type(second):
        return None
    found = make((first, second))
    said = [plan.sentences() for plan in (first, second)]
    return found | {"y": "loss", "said": {"first": said[0][0], "second": said[1][0]}}


def _caches(plans: Pair) -> Tab:
    rows = [with_ends(plan.frontier) for plan in plans]
    lines = [some[some["ranking"].isin((PLAN, RANDOM))] for some in rows]
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
    return {
        "x": "share of key heads that keep everything",
        "panels": _panels(lines, "kept_share"),
        "words": words,
        "tables": [
            _beside("Loss at the share that was asked for", losses),
            _beside("Key heads that keep everything under one plan only", [one.to_frame() for one in heads]),
        ],
    }


def _rotations(plans: Pair) -> Tab:
    lines = [
        pd.concat(
            [
                plan.curve(name).assign(ranking=word)
                for name, word in ((plan.chosen, PLAN), (RANDOM, RANDOM))
                if name in set(plan.selection["ranking"])
            ]
        )
        for plan in plans
    ]
    planes = [plan.plan.set_index(["layer", "key_head", "frequency_id"])["rotates"] for plan in plans]
    both, words = _in_common(plans, planes, ("planes", "rotate"), ["layer", "key_head"])
    sides = [
        both.groupby("layer")[name].sum().rename("planes that rotate").to_frame()
        for name in ("first", "second")
    ]
    shared = (both["first"] & both["second"]).groupby("layer").sum().rename("in both")
    return {
        "x": "planes of a key head that rotate",
        "panels": _panels(lines, "planes"),
        "words": words,
        "tables": [_beside("Planes that rotate, over all key heads of a layer", sides, shared.to_frame())],
    }


MADE: dict[type[Plan], Callable[[Pair], Tab]] = {
    CachePlan: _caches,
    RotationPlan: _rotations,
}


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
