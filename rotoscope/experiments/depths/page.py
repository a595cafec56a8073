"""The tabs of swaps at depths: scores by depth, and who writes the place that carried heads read."""

from __future__ import annotations

import pandas as pd

from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.depths.writers_result import NOBODY, ONE, READER, writers_in_words
from rotoscope.experiments.page_data import PageRun, Tab, column, packed, table
from rotoscope.stats.aggregate import ENDS, SCORES


def depths_tab(page_run: PageRun) -> Tab | None:
    """Both scores of every head at every depth, with intervals, and the heads that turn."""
    run = SwapDepths(page_run.run, page_run.tables)
    depths = run.depths
    if not depths:
        return None
    tab: Tab = {"depths": depths, "at": []}
    for tau in run.taus:
        heads = run.by_leaning(tau)[["layer", "head"]]
        curves = run.curves[~run.curves["own"] & (run.curves["tau"] == tau)]
        wide = curves.pivot(index=["layer", "head"], columns="depth")
        wide = wide.reindex(pd.MultiIndex.from_frame(heads))
        tab_at_tau: Tab = {name: column(heads[name]) for name in heads}
        for name in (*SCORES, *ENDS, "covered_share"):
            tab_at_tau[name] = packed(wide[name].reindex(columns=depths).to_numpy(dtype=float).ravel(), 16)
        title = "Heads that follow at their own layer and stay in place below it"
        note = "Positional and symbolic score by the layer at which words are swapped."
        named = {f"k = {depth}": f"layer {depth}" if depth else "in the prompt" for depth in depths}
        turning = run.turning(tau).rename(columns=named | {"own": "own layer"})
        tab["at"].append(tab_at_tau | {"turning": table(turning, title, note, most=None)})
    return tab


def writers_tab(page_run: PageRun) -> Tab | None:
    """Every positional head that was silenced and every carried head that was asked, with the effect between them."""
    run = SwapDepths(page_run.run, page_run.tables)
    if "writers" not in page_run.tables:
        return None
    summary = run.writers_summary()
    if not len(summary):
        return {"nobody": NOBODY}
    words = writers_in_words(summary)
    single, edges = summary[summary["condition"] == ONE], run.writer_graph()
    names = {"writer": ["layer", "head"], "reader": READER}
    pairs = {
        name: [f"{layer}:{head}" for layer, head in single[keys].to_numpy()] for name, keys in names.items()
    }
    edge_keys = set(map(tuple, edges[[*READER, "layer", "head"]].to_numpy()))
    beyond = [tuple(row) in edge_keys for row in single[[*READER, "layer", "head"]].to_numpy()]
    title = "What carried heads lose of their place without positional heads below them"
    note = (
        "Effect: what the positional score loses and the symbolic score gains with the prompt permuted, in the mean; 1: the head "
        "follows what was moved. Controls: as many other heads of the same layers, drawn at random."
    )
    return {
        **pairs,
        "effect": column(single["effect"]),
        "beyond": beyond,
        "readers": list(dict.fromkeys(words["reader"])),
        "table": table(words, title, note, most=None),
    }
