"""The tabs of accuracy by length, of our own models and of language models."""

from __future__ import annotations

from rotoscope.experiments.ask.result import OneHopRun
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.experiments.page_data import PageRun, Tab, clean, curve


def lengths_tab(page_run: PageRun) -> Tab:
    """Accuracy by length for every model, what the heads do there, and what was predicted."""
    run = Lengths(page_run.run, page_run.tables)
    curves = []
    for (model, task), rows in run.curve().groupby(["model", "task"], sort=False):
        curves.append({"name": clean(model), "group": clean(task), **curve(rows, "length", "accuracy")})
    tables = page_run.summary_tables(run.summaries()[1:])
    return {"curves": curves, "x": "length (tokens)", "tables": tables}


def one_hop_tab(page_run: PageRun) -> Tab:
    """Accuracy by length for every task and way of scoring."""
    run = OneHopRun(page_run.run, page_run.tables)
    curves = []
    for (task, scoring), rows in run.accuracy().groupby(["task", "scoring"], sort=False):
        curves.append({"name": f"{task}, {scoring}", "group": clean(task), **curve(rows, "length", "mean")})
    tables = page_run.summary_tables(run.summaries()[:1])
    return {"curves": curves, "x": "length (facts)", "tables": tables}
