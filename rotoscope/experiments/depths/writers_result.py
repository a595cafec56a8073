"""What silencing heads does to the place that carried heads read, beside random heads of the same layers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.scores.classes import COVERED
from rotoscope.stats.aggregate import SCORES
from rotoscope.stats.intervals import mean_interval
from rotoscope.stats.verdict import BEYOND, ENOUGH_DRAWS, Figure, verdicts

NONE, ONE, LAYER, ALL = "none", "one", "layer", "all"
READER = ["reader_layer", "reader_head"]
WHERE = ["condition", "layer", "head"]
NOBODY = (
    "nobody could be asked who writes a place: that takes a carried head, and a positional one below the depth at which it "
    "turns"
)


def empty_writers() -> pd.DataFrame:
    """The table where there was nobody to ask."""
    numbers = {
        name: pd.Series(dtype="int64") for name in ("prompt", "input_id", *READER, "layer", "head", "draw")
    }
    scores = {name: pd.Series(dtype="float64") for name in (*SCORES, "covered_share")}
    words = {name: pd.Series(dtype="str") for name in ("condition", "silenced")}
    return pd.DataFrame({**numbers, **scores, **words})


def summarise_writers(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per reader and set of silenced positional heads: the effect, its interval, its controls and the verdict.

    `effect` is the mean of what the positional score loses and the symbolic score gains: 0 where nothing changes, one half
    where a head no longer tells the two slots apart, 1 where one that stayed in place follows what was moved. All rows are one
    family of verdicts, as they are one graph.
    """
    summaries: list[dict[str, Any]] = []
    figures: list[Figure] = []
    for _, group in rows.groupby(READER, sort=True):
        for summary, figure in _of_reader(group):
            summaries.append(summary)
            figures.append(figure)
    if not summaries:
        return pd.DataFrame(columns=[*READER, *WHERE, "silenced", "effect", "verdict", "null_draws"])
    beside = pd.DataFrame([asdict(verdict) for verdict in verdicts(figures)])
    return pd.concat([pd.DataFrame(summaries), beside], axis=1)


def edges_of(summary: pd.DataFrame) -> pd.DataFrame:
    """Writer and reader where silencing the one head takes more of the place than its controls do; the largest effect first."""
    is_edge = (summary["condition"] == ONE) & (summary["verdict"] == BEYOND)
    edges = summary[is_edge]
    edges = edges[edges["effect"] > edges["null_value"]] if len(edges) else edges
    return edges.sort_values("effect", ascending=False, kind="stable").reset_index(drop=True)


def too_few_sets(summary: pd.DataFrame) -> list[int]:
    """Layers whose single heads cannot be shown to write a place: there are fewer than 19 others to compare them with."""
    single = summary[(summary["condition"] == ONE) & (summary["null_draws"] < ENOUGH_DRAWS)]
    return sorted(int(layer) for layer in single["layer"].unique())


def _of_reader(rows: pd.DataFrame) -> Iterator[tuple[dict[str, Any], Figure]]:
    """Every condition of one reader, and its effect beside those of its controls."""
    about = {name: int(rows[name].iloc[0]) for name in READER}
    rows = rows[rows["covered_share"] >= COVERED]
    if rows.empty:
        return
    keys = [*WHERE, "draw"]
    # One row per set of silenced heads, one column per input.
    stays, follows = (rows.groupby([*keys, "input_id"], sort=False)[score].mean().unstack() for score in SCORES)
    leaning = (follows - stays) / 2
    condition, layer, _, draw = (leaning.index.get_level_values(name) for name in keys)
    [untouched] = leaning.index[condition == NONE]
    effects = leaning - leaning.loc[untouched]
    counts = rows.drop_duplicates(keys).set_index(keys)["silenced"].str.split().str.len()
    for key in effects.index[(draw < 0) & (condition != NONE)]:
        effect = effects.loc[key].to_numpy(dtype=float)
        [low], [high] = mean_interval(effect[:, None], (-1.0, 1.0))
        error = effect.std(ddof=1) / np.sqrt(len(effect)) if len(effect) > 1 else np.nan
        beside = effects[(condition == key[0]) & (layer == key[1]) & (draw >= 0)]
        scores = {
            f"{score}{suffix}": wide.loc[at].mean()
            for score, wide in zip(SCORES, (stays, follows), strict=True)
            for suffix, at in (("_before", untouched), ("", key))
        }
        measured = {"effect": effect.mean(), "low": low, "high": high, "prompts": len(effect)}
        position = dict(zip(WHERE, key, strict=False))
        summary = about | position | {"silenced": int(counts[key])} | scores | measured
        yield summary, Figure(float(effect.mean()), float(error), beside.mean(axis=1).tolist())


def writers_in_words(summary: pd.DataFrame) -> pd.DataFrame:
    """The summary for reading: who is silenced in words, all below the reader first, single heads by their effect last."""
    order = summary.assign(rank=summary["condition"].map({ALL: 0, LAYER: 1, ONE: 2}))
    order["least"] = -order["effect"].where(order["condition"] == ONE)
    order = order.sort_values([*READER, "rank", "least"], kind="stable")
    rows = [
        {
            "reader": f"{row['reader_layer']}:{row['reader_head']}",
            "silenced": _silenced_words(row),
            "heads": row["silenced"],
            "positional": row["positional_score"],
            "symbolic": row["symbolic_score"],
            "effect": row["effect"],
            "95 %": _ends(row["low"], row["high"]),
            "controls": row["null_value"],
            "95 % of controls": _ends(row["null_low"], row["null_high"]),
            "p": row["p_value"],
            "verdict": row["verdict"],
        }
        for row in order.to_dict("records")
    ]
    return pd.DataFrame(rows)


def _silenced_words(row: dict[Hashable, Any]) -> str:
    if row["condition"] == ONE:
        return f"{row['layer']}:{row['head']}"
    return "all below" if row["condition"] == ALL else f"layer {row['layer']}"


def _ends(low: float, high: float) -> str:
    return "" if np.isnan(low) else f"{low:.2f} to {high:.2f}"
