"""What silencing heads does to the place that carried heads read, beside random heads of the same layers."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd

from rotoscope.maths.purity import where_covered
from rotoscope.results.aggregate import SCORES
from rotoscope.results.intervals import mean_interval
from rotoscope.results.verdict import BEYOND, Figure, verdicts

NONE, ONE, LAYER, ALL = "none", "one", "layer", "all"
READER = ["reader_layer", "reader_head"]
WHERE = ["condition", "layer", "head"]
NOBODY = (
    "nobody could be asked who writes a place: that takes a carried head, and a positional one below the depth at which it "
    "turns"
)


def empty_writers() -> pd.DataFrame:
    """The table where there was nobody to ask."""
    numbers = {name: pd.Series(dtype="int64") for name in ("prompt", "input_id", *READER, "layer", "head", "draw")}
    scores = {name: pd.Series(dtype="float64") for name in (*SCORES, "covered_share")}
    words = {name: pd.Series(dtype="str") for name in ("condition", "silenced")}
    return pd.DataFrame({**numbers, **scores, **words})


def summarise_writers(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per reader and set of silenced positional heads: the effect, its interval, its controls and the verdict.

    `effect` is the mean of what the positional score loses and the symbolic score gains: 0 where nothing changes, one half
    where a head no longer tells the two slots apart, 1 where one that stayed in place follows what was moved.
    """
    tables = [_of_reader(group) for _, group in rows.groupby(READER, sort=True)]
    tables = [table for table in tables if len(table)]
    if not tables:
        return pd.DataFrame(columns=[*READER, *WHERE, "silenced", "effect", "verdict"])
    return pd.concat(tables, ignore_index=True)


def edges_of(summary: pd.DataFrame) -> pd.DataFrame:
    """Writer and reader where silencing the one head takes more of the place than its controls do; the largest effect first."""
    told = (summary["condition"] == ONE) & (summary["verdict"] == BEYOND)
    edges = summary[told]
    edges = edges[edges["effect"] > edges["null_value"]] if len(edges) else edges
    return edges.sort_values("effect", ascending=False, kind="stable").reset_index(drop=True)


def _of_reader(rows: pd.DataFrame) -> pd.DataFrame:
    """All conditions of one reader: one family of verdicts."""
    rows = rows.assign(**dict(zip(SCORES, _covered(rows), strict=True)))
    untouched = _by_input(rows[rows["condition"] == NONE])
    found, figures = [], []
    own = rows[(rows["condition"] != NONE) & (rows["draw"] < 0)]
    for key, group in own.groupby(WHERE, sort=False):
        now = _by_input(group)
        effect = _effect(untouched, now)
        [low], [high] = mean_interval(effect[:, None], (-1.0, 1.0))
        error = effect.std(ddof=1) / np.sqrt(len(effect)) if len(effect) > 1 else np.nan
        beside = rows[(rows["condition"] == key[0]) & (rows["layer"] == key[1]) & (rows["draw"] >= 0)]
        draws = [_effect(untouched, _by_input(drawn)).mean() for _, drawn in beside.groupby("draw")]
        about = {name: int(group[name].iloc[0]) for name in READER} | dict(zip(WHERE, key, strict=True))
        silenced = len(group["silenced"].iloc[0].split())
        means = {score: now[score].mean() for score in SCORES}
        before = {f"{score}_before": untouched[score].mean() for score in SCORES}
        measured = {"effect": effect.mean(), "low": low, "high": high, "prompts": len(effect)}
        found.append(about | {"silenced": silenced} | before | means | measured)
        figures.append(Figure(float(effect.mean()), error, draws))
    beside = pd.DataFrame([asdict(verdict) for verdict in verdicts(figures)])
    return pd.concat([pd.DataFrame(found), beside], axis=1)


def _covered(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Scores where the swaps that were run hold half of the reader's weight, in the mean over prompts."""
    scores = rows["positional_score"], rows["symbolic_score"]
    return where_covered(scores, np.full(len(rows), rows["covered_share"].mean()))


def _by_input(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby("input_id", sort=True)[SCORES].mean()


def _effect(before: pd.DataFrame, now: pd.DataFrame) -> np.ndarray:
    """Of every input the mean of what the positional score loses and the symbolic score gains."""
    change = now - before
    return ((change["symbolic_score"] - change["positional_score"]) / 2).to_numpy(dtype=float)
