"""The tabs of plans: what was decided, what is lost by every way to decide, and the tables that say so."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rotoscope.report.columns import curve, table
from rotoscope.report.reported_run import ReportedRun
from rotoscope.results.cache_plan import NOTHING, CachePlan
from rotoscope.results.plan import Plan
from rotoscope.results.rotation_plan import RotationPlan
from rotoscope.settings.plan import SOURCES

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
