"""Trainings that favour a kind of heads: how right their models are where they were trained, and beyond."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rotoscope.figures.style import COLUMN_WIDTH, TEXT_WIDTH, caption, drawing_grid, plain_steps, top_legend
from rotoscope.palette import INK, SCORE_COLOURS
from rotoscope.results.steering import Steering

STYLES = ("-", "--", ":", "-.")


def steered_accuracy(run: Steering) -> Figure:
    """Accuracy by length for each task and order of the letters: a point per seed, a line at their mean."""
    table = run.accuracy
    panels = table[["task", "order"]].drop_duplicates()
    tasks, orders = (list(dict.fromkeys(panels[name])) for name in ("task", "order"))
    strengths = sorted(table.loc[table["favour"] != "none", "strength"].unique())
    colours = {"none": INK, **SCORE_COLOURS}
    width = TEXT_WIDTH if len(orders) > 1 else COLUMN_WIDTH
    with drawing_grid(width, 0.9 + 1.7 * len(tasks), len(tasks), len(orders), sharey=True) as (figure, grid):
        for row, task in enumerate(tasks):
            for column, order in enumerate(orders):
                axes, own = grid[row, column], table[(table["task"] == task) & (table["order"] == order)]
                if own.empty:
                    axes.remove()
                    continue
                for (favour, strength), lines in own.groupby(["favour", "strength"], sort=False):
                    style = "-" if favour == "none" else STYLES[strengths.index(strength) % len(STYLES)]
                    means = lines.groupby("length")["accuracy"].mean()
                    axes.plot(means.index, means, style, color=colours[favour], lw=1.2)
                    axes.plot(lines["length"], lines["accuracy"], "o", color=colours[favour], ms=2.2, alpha=0.6)
                plain_steps(axes, sorted(own["length"].unique()))
                axes.set(ylim=(-0.02, 1.05))
                axes.set_title(f"{task}, {order}" if len(orders) > 1 else f"{task} task", loc="left")
            grid[row, 0].set_ylabel("accuracy")
        for axes in grid[-1]:
            if axes in figure.axes:
                axes.set_xlabel("length of the input in tokens")
        handles = [Line2D([], [], color=colours["none"], label="nothing favoured")] + [
            Line2D([], [], color=colours[kind], ls=STYLES[k % len(STYLES)], label=f"{kind}, {strength:g}")
            for kind in SCORE_COLOURS
            for k, strength in enumerate(strengths)
            if ((table["favour"] == kind) & (table["strength"] == strength)).any()
        ]
        top_legend(figure, handles, ncols=3)
    seeds, inputs = run.overview()["seeds"].min(), int(table["inputs"].min())
    return caption(
        figure,
        f"{seeds} seeds (points; lines: means), at least {inputs:,} inputs each; the number is the strength of the penalty; longer "
        "inputs have more tokens in front",
    )
