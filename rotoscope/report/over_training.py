"""The training tab: heads, their classes and the accuracy over the steps of a training, finished or going on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rotoscope.maths.purity import GAMMA, pure_regions, purity_codes
from rotoscope.report.columns import clean, column, columns, packed
from rotoscope.report.reported_run import ReportedRun
from rotoscope.results.aggregate import LEAST_MASS, SCORES
from rotoscope.results.dynamics import Dynamics

Tab = dict[str, Any]
SHOWN_SCORES = (*SCORES, "relative_entropy")


def training_tab(found: ReportedRun) -> Tab | None:
    """Scores of every head at every step, when heads became pure, how far they separated, and the accuracy beside them."""
    scores = found.tables.get("scores")
    accuracy = found.tables.get("accuracy", found.tables.get("metrics"))
    if scores is None and accuracy is None:
        return None
    series = []
    if scores is not None and len(scores):
        run = Dynamics(found.run, found.tables)
        for (queries, tau), rows in scores.groupby(["queries", "tau"], sort=False):
            asked = {"queries": clean(queries), "tau": clean(float(tau), 12)}
            series.append({**asked, **_track(rows), **_became(run, queries, tau)})
    curves = []
    if accuracy is not None and "hops" in accuracy:
        for hops, rows in accuracy.sort_values("step").groupby("hops"):
            curves.append({"hops": int(hops), **columns(rows, ("step", "accuracy"))})
    return {"series": series, "accuracy": curves, "gamma": GAMMA, "pure": pure_regions()}


def _track(rows: pd.DataFrame) -> Tab:
    """Scores packed as [step, head]; of every step one digit per head: the place of its class among all, a space for none."""
    track = rows.set_index(["step", "layer", "head"])
    track = track[~track.index.duplicated()].unstack(["layer", "head"]).sort_index()
    wide = {name: track[name].sort_index(axis=1) for name in SHOWN_SCORES if name in rows}
    first = wide["positional_score"]
    codes = purity_codes(first, wide["symbolic_score"])
    little = {}
    if "swapped_mass" in rows:
        mass = track["swapped_mass"].sort_index(axis=1).to_numpy(dtype=float)
        little["little_at_stake"] = _digits((mass < LEAST_MASS) & (codes >= 0))
    return {
        **{name: packed(t.to_numpy(dtype=float).ravel(), 16) for name, t in wide.items()},
        "head_class": _digits(codes),
        **little,
        "steps": [int(step) for step in first.index],
        "layer": [int(layer) for layer, _ in first.columns],
        "head": [int(head) for _, head in first.columns],
    }


def _digits(codes: np.ndarray) -> list[str]:
    return ["".join(str(code) if code >= 0 else " " for code in step) for step in codes.astype(int).tolist()]


def _became(run: Dynamics, queries: str, tau: float) -> Tab:
    """When each head became pure, in the order of the heads, and by step how far heads and null have separated."""
    pure = run.pure_from(queries=queries, tau=tau).sort_values(["layer", "head"])
    apart = run.separation(queries=queries, tau=tau)
    return columns(pure, ("first_pure", "pure_since")) | {
        "separated": {name: column(apart[name]) for name in apart if name != "step"}
    }
