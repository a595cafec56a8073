"""Heads people know, beside their classes: which head is of which kind, and does a class have more of them than chance?

A head is *of a kind* when its score is at least `LEAST` and larger than that of any head of any draw of the null. For shares of
attention 0.3 is ten times what uniform attention would put on one of thirty positions; for copying it is 0.1, the limit that
Wu et al. 2024 draw for retrieval heads.

The table class by kind is judged against shuffled classes: depth alone makes classes and kinds meet, so classes are
shuffled within layers. How many heads of a class are then of a kind is a sum of hypergeometric numbers, one per layer,
and its distribution is exact. Holm's correction is over all cells of the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import comb

import numpy as np
import pandas as pd

from rotoscope.maths.known_patterns import KNOWN
from rotoscope.maths.purity import CLASSES
from rotoscope.results.intervals import INTERVAL, mean_interval
from rotoscope.results.verdict import ALSO, BEYOND, LEVEL, NO_VERDICT, holm

PLACE = ["layer", "head"]
LEAST = dict.fromkeys(KNOWN, 0.3) | {"copying": 0.1}
"""The least score with which a head is of a kind."""
STRONGEST = 3
"""How many heads of a kind an overview names."""


def head_scores(parts: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One row per (layer, head): means over the prompts of all parts, and their 95 % intervals."""
    prompts = pd.concat(dict(enumerate(part.set_index(["prompt", *PLACE]) for part in parts)), names=["part"])
    heads = prompts.groupby(PLACE, sort=True)[list(KNOWN)].mean()
    for name in KNOWN:
        wide = prompts[name].unstack(PLACE).sort_index(axis=1).to_numpy(dtype=float)
        heads[f"{name}_low"], heads[f"{name}_high"] = mean_interval(wide, (0.0, 1.0))
    return heads.reset_index()


def known_types(scores: pd.DataFrame, nulls: pd.DataFrame) -> pd.DataFrame:
    """Of which kinds every head is: one column of truths per kind beside layer and head."""
    beyond = {name: float(nulls[name].max()) if len(nulls) else np.nan for name in KNOWN}
    return scores[PLACE].assign(
        **{name: (scores[name] >= LEAST[name]) & ~(scores[name] <= beyond[name]) for name in KNOWN}
    )


def known_table(heads: pd.DataFrame, scores: pd.DataFrame, nulls: pd.DataFrame) -> pd.DataFrame:
    """One row per kind and class: how many heads, how many with classes shuffled within layers, and the verdict.

    `heads` has layer, head and head_class, `scores` those of `head_scores`, `nulls` the scores of all draws of the null.
    """
    joined = heads.merge(known_types(scores, nulls), on=PLACE).dropna(subset=["head_class"])
    present = [name for name in CLASSES if (joined["head_class"] == name).any()]
    rows = [
        {"known_type": kind, "head_class": name} | _cell(joined, joined["head_class"] == name, joined[kind])
        for kind in KNOWN
        if scores[kind].notna().any()
        for name in present
    ]
    table = pd.DataFrame(
        rows, columns=["known_type", "head_class", "of_type", "heads", "expected", "low", "high", "p_value"]
    )
    table["p_value"] = holm(table["p_value"].to_numpy(dtype=float)) if len(nulls) else np.nan
    judged = np.where(table["p_value"] < LEVEL, BEYOND, ALSO)
    table["verdict"] = np.where(table["p_value"].isna(), NO_VERDICT, judged)
    undecided = np.where(table["of_type"] == 0, "no head of this kind", "every shuffle gives the same")
    reason = undecided if len(nulls) else "no null: a random model might score as much"
    table["reason"] = np.where(table["p_value"].isna(), reason, "")
    return table


def _cell(joined: pd.DataFrame, of_class: pd.Series, of_type: pd.Series) -> dict[str, float]:
    """How many heads of a class are of a kind, and what shuffling the classes within every layer gives."""
    both = int((of_class & of_type).sum())
    chances = np.ones(1)
    layers = pd.DataFrame({"all": 1, "a": of_class, "b": of_type}).groupby(joined["layer"]).sum()
    for size, a, b in layers.to_numpy(dtype=int):
        chances = np.convolve(chances, _overlap(size, a, b))
    reached = np.cumsum(chances)
    low, high = (int(np.searchsorted(reached, end)) for end in INTERVAL)
    p = min(1.0, 2 * min(float(chances[: both + 1].sum()), float(chances[both:].sum())))
    certain = np.count_nonzero(chances > 0) == 1
    return {
        "of_type": int(of_type.sum()),
        "heads": both,
        "expected": float(chances @ np.arange(len(chances))),
        "low": low,
        "high": high,
        "p_value": np.nan if certain else p,
    }


def _overlap(size: int, a: int, b: int) -> np.ndarray:
    """How likely a and b of so many heads, drawn at random, have 0, 1, ... in common."""
    ways = [comb(a, k) * comb(size - a, b - k) for k in range(min(a, b) + 1)]
    return np.array(ways, dtype=float) / comb(size, b)


def known_overview(heads: pd.DataFrame, scores: pd.DataFrame, nulls: pd.DataFrame) -> pd.DataFrame:
    """The table to look at: one row per kind, its heads by class beside what shuffled classes give, and the strongest."""
    cells = known_table(heads, scores, nulls)
    joined = (
        heads[[*PLACE, "head_class"]]
        .merge(scores, on=PLACE)
        .merge(known_types(scores, nulls), on=PLACE, suffixes=("", "_type"))
    )
    rows = []
    for kind, some in cells.groupby("known_type", sort=False):
        row = {"known_type": kind, "heads": int(some["of_type"].iloc[0])}
        for cell in some.to_dict("records"):
            mark = "*" if cell["verdict"] == BEYOND else ""
            row[cell["head_class"]] = f"{cell['heads']}{mark} ({cell['expected']:.1f})" if row["heads"] else "0"
        best = joined[joined[f"{kind}_type"]].nlargest(STRONGEST, kind)
        named = zip(best["layer"], best["head"], best[kind], best["head_class"], strict=True)
        row["strongest"] = ", ".join(f"{layer}:{head} {score:.2f} {name}" for layer, head, score, name in named)
        rows.append(row)
    return pd.DataFrame(rows)
