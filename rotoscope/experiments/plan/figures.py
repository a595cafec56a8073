"""What plans cost: loss by budget and ranking, and what each plan keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rotoscope.experiments.plan.result import ANY, PLAN, CachePlan, Plan, RotationPlan
from rotoscope.experiments.plan.settings import RANDOM
from rotoscope.plotting.palette import NULL, SERIES
from rotoscope.plotting.style import COLUMN_WIDTH, TEXT_WIDTH, caption, colour_map, drawing, shared_legend

MARKERS = "osD^vP*X"


def plan_frontier(plan: Plan) -> Figure:
    """Loss by budget, a panel per source: the plan, every ranking, and random choices with the spread of their draws."""
    table, settings = plan.frontier, plan.run.settings
    names = [name for name in settings["rankings"] if name != RANDOM]
    with drawing(TEXT_WIDTH, 3.6, 1, len(plan.sources)) as (figure, panels):
        for axes, source in zip(panels, plan.sources, strict=True):
            rows = table[table["source"] == source]
            for k, name in enumerate(names):
                look = {"color": SERIES[k % len(SERIES)], "marker": MARKERS[k % len(MARKERS)]}
                _draw_line(axes, plan, rows, name, markersize=3, linewidth=0.8, alpha=0.8, **look)
            random = _draw_line(axes, plan, rows, RANDOM, color=NULL, linestyle="--", linewidth=1.2)
            axes.fill_between(
                random[plan.budget_column], random["loss_low"], random["loss_high"], color=NULL, alpha=0.2, lw=0
            )
            line = _line(plan, rows, PLAN)
            errors = np.abs(line[["loss_low", "loss_high"]].sub(line["loss"], axis=0).to_numpy().T)
            axes.errorbar(line[plan.budget_column], line["loss"], yerr=np.nan_to_num(errors), color="black", linewidth=2, elinewidth=0.9, capsize=2, label="the plan")  # fmt: skip
            axes.set_title(source, loc="left")
            axes.set_xlabel(plan.budget_words)
            axes.xaxis.set_major_formatter(lambda budget, _: plan.column_name(budget))
        panels[0].set_ylabel("loss")
        shared_legend(figure, panels[0], ncols=4)
    prompts = int(table["prompts"].max())
    note = f"; bars: 95 % intervals over {prompts} prompts of each source"
    if plan.random_draws:
        fewest = int(table["prompts"].min())
        note += f"; band: 95 % of {plan.random_draws} random choices, each on {fewest} prompts"
    return caption(figure, f"{plan.name}; {plan.decision()}{note}")


def _draw_line(axes: Axes, plan: Plan, rows: pd.DataFrame, name: str, **look: Any) -> pd.DataFrame:
    line = _line(plan, rows, name)
    axes.plot(line[plan.budget_column], line["loss"], label=name.replace("_", " "), **look)
    return line


def _line(plan: Plan, rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """A ranking's points, with the ends that all have in common."""
    points = rows[rows["ranking"].isin((name, ANY))]
    return points.drop_duplicates(plan.budget_column).sort_values(plan.budget_column)


def cache_map(plan: CachePlan) -> Figure:
    """Layer by key head: dark where the plan keeps everything, and how early each is given up."""
    heads = plan.heads
    ranks = heads.pivot(index="layer", columns="key_head", values="place").to_numpy(dtype=float)
    keeps = ~heads.pivot(index="layer", columns="key_head", values="streams").to_numpy(dtype=bool)
    with drawing(COLUMN_WIDTH, 4.2) as (figure, [axes]):
        shade = 1 - ranks / max(1.0, np.nanmax(ranks))
        image = axes.imshow(shade, aspect="auto", origin="lower", cmap="Greys", vmin=0, vmax=1.4)
        for layer, head in np.argwhere(keeps):
            axes.plot(head, layer, marker="o", color="white", markersize=4)
        axes.set_xlabel("key head")
        axes.set_ylabel("layer")
        axes.set_xticks(range(ranks.shape[1]))
        axes.yaxis.get_major_locator().set_params(integer=True)
        bar = figure.colorbar(image, ax=axes, label="place in the ranking", boundaries=np.linspace(0, 1, 40))
        bar.set_ticks([0, 1], labels=["streams first", "streams last"])
    by = "" if plan.ranking == ANY else f"; ranking: {plan.ranking.replace('_', ' ')}"
    return caption(figure, f"{plan.name}; dots: key heads that keep everything ({plan.keep:.0%}){by}")


def rotation_map(plan: RotationPlan) -> Figure:
    """How many key heads of every layer keep the rotation of each frequency."""
    counts = plan.heads_per_plane()
    with drawing(TEXT_WIDTH, 0.9 + 0.09 * len(counts) + 0.8) as (figure, [axes]):
        heads = int(plan.plan["key_head"].max()) + 1
        look: dict[str, Any] = {"aspect": "auto", "origin": "lower", "interpolation": "nearest"}
        extent = (0.5, counts.shape[1] + 0.5, -0.5, len(counts) - 0.5)
        image = axes.imshow(counts, cmap=colour_map("#B4500A"), vmin=0, vmax=heads, extent=extent, **look)
        axes.set(xlabel="frequency id (1 = fastest)", ylabel="layer")
        label = "key heads that keep it"
        figure.colorbar(image, ax=axes, label=label, ticks=range(heads + 1), fraction=0.04, pad=0.02)
    by = "" if plan.ranking == ANY else f", by {plan.ranking}"
    return caption(figure, f"{plan.name}; {plan.decision()}{by}")


def cache_figures(plan: CachePlan) -> Iterator[tuple[str, Figure]]:
    """Losses by the share that is kept, and which key heads keep everything."""
    yield "cache_frontier", plan_frontier(plan)
    yield "cache_map", cache_map(plan)


def rotation_figures(plan: RotationPlan) -> Iterator[tuple[str, Figure]]:
    """Losses by the planes that rotate, and which they are."""
    yield "rotation_frontier", plan_frontier(plan)
    yield "rotation_map", rotation_map(plan)
