"""Heads with some frequencies only: what models still learn, and what their heads become."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rotoscope.figures.style import COLUMN_WIDTH, TEXT_WIDTH, caption, drawing_grid, top_legend
from rotoscope.maths.purity import AT_ITS_LAYER
from rotoscope.palette import CLASS_COLOURS, HOP_COLOURS
from rotoscope.results.restrictions import Restrictions


def restricted_accuracy(run: Restrictions) -> Figure:
    """Left, accuracy by restriction and hops, a point per seed and a line at the mean; right, the classes of the heads."""
    tasks = list(dict.fromkeys(run.accuracy["task"]))
    names = list(dict.fromkeys(run.accuracy["restriction"]))
    every = sorted(int(hops) for hops in run.accuracy["hops"].unique())
    watched = "heads" in run.tables
    size = (
        TEXT_WIDTH if watched else COLUMN_WIDTH,
        1.0 + len(tasks) * (0.6 + 0.3 * len(names)),
        len(tasks),
        1 + watched,
    )
    with drawing_grid(*size, sharex="col", sharey=True) as (figure, grid):
        for (axes, *rest), task in zip(grid, tasks, strict=True):
            own = run.accuracy[run.accuracy["task"] == task]
            for k, hops in enumerate(every):
                points = own[own["hops"] == hops]
                colour, off = HOP_COLOURS[k % len(HOP_COLOURS)], 0.64 * ((k + 0.5) / len(every) - 0.5)
                rows = points["restriction"].map(names.index) + off
                means = points.groupby("restriction")["accuracy"].mean()
                at = [names.index(name) + off for name in means.index]
                axes.plot(means, at, "|", color=colour, markersize=16 / (1 + len(every)), markeredgewidth=2)
                axes.plot(points["accuracy"], rows, "o", color=colour, markersize=2.5, alpha=0.7)
            axes.axvline(own["chance"].mean(), color="#999999", lw=0.8, ls=":")
            axes.set_yticks(range(len(names)), names)
            axes.set(xlim=(-0.02, 1.03), ylim=(len(names) - 0.5, -0.5))
            axes.set_title(f"{task} task", loc="left")
            for ax in rest:
                shares = run.heads[run.heads["task"] == task].groupby("restriction")["head_class"]
                wide = shares.value_counts(normalize=True).unstack(fill_value=0.0)
                at, before = [names.index(name) for name in wide.index], 0.0 * wide.iloc[:, 0]
                for kind in AT_ITS_LAYER:
                    if kind in wide:
                        ax.barh(at, wide[kind], left=before, color=CLASS_COLOURS[kind], height=0.6)
                        before = before + wide[kind]
                ax.set(xlim=(0, 1))
                ax.set_title("heads at the end", loc="left")
        grid[-1, 0].set_xlabel("accuracy on test sequences")
        words = [f"{hops} hop{'s' * (hops > 1)}" for hops in every]
        colours = [HOP_COLOURS[k % len(HOP_COLOURS)] for k in range(len(every))]
        handles: list[Any] = [
            Line2D([], [], color=c, marker="o", ms=3, ls="", label=w)
            for c, w in zip(colours, words, strict=True)
        ]
        if watched:
            grid[-1, 1].set_xlabel("share of the heads")
            handles += [Patch(color=CLASS_COLOURS[kind], label=kind) for kind in AT_ITS_LAYER]
        top_legend(figure, handles)
    s, seeds = run.run.settings, run.by_hops()["seeds"].min()
    return caption(
        figure,
        f"{s['layers']} layers, {s['steps']:,} steps of {s['batch']}, {seeds} seeds; heads with these frequency ids only (1 is the "
        "fastest); bars: means, dotted: chance",
    )
