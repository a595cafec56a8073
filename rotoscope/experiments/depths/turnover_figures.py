"""Where place turns into symbol: heads that stay and heads that follow, by layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.depths.turnover import FOUND, TurnoverStudy
from rotoscope.plotting.palette import CARRIED, INK, POSITIONAL, SYMBOLIC
from rotoscope.plotting.style import TEXT_WIDTH, caption, drawing, shared_legend

BARS = {
    "place": (POSITIONAL, "stay with their place"),
    "context": (CARRIED, "stay with the fact before"),
    "stay": ("#C4C4C4", "stay, with either"),
    "follows": (SYMBOLIC, "follow the fact"),
}


def turnover_figures(run: TurnoverStudy) -> Iterator[tuple[str, Figure]]:
    """All figures of a run."""
    if any(len(run.by_layer(size)) for size in run.sizes):
        yield "turnover_layers", turnover_layers(run)


def turnover_layers(run: TurnoverStudy) -> Figure:
    """How many heads are pure symbolic in each layer, and what they follow with the prompt permuted; a panel for every list length."""
    sizes = [size for size in run.sizes if len(run.by_layer(size))]
    if not sizes:
        raise RotoscopeError(
            "no head is pure symbolic at its own layer, so there is nothing that could turn over"
        )
    with drawing(TEXT_WIDTH, 1.4 + 1.3 * len(sizes), len(sizes), 1, sharex=True) as (figure, panels):
        for axes, size in zip(panels, sizes, strict=True):
            _panel(axes, run, size)
        panels[-1].set_xlabel("layer")
        shared_legend(figure, panels[0])
    return caption(
        figure, "heads that are pure symbolic at their own layer; band: 95 % over prompts of the turnover layer"
    )


def _panel(axes: Axes, run: TurnoverStudy, size: int) -> None:
    table = run.by_layer(size).set_index("layer").reindex(range(max(run.layers, 1)), fill_value=0)
    table["stay"] = table["heads"] - table[["follows", "place", "context"]].sum(axis=1)
    bottom = np.zeros(len(table))
    for name, (hue, label) in BARS.items():
        axes.bar(table.index, table[name], bottom=bottom, color=hue, width=0.8, label=label)
        bottom += table[name].to_numpy()
    row = run.turnovers.set_index("size").loc[size]
    answers = run.tasks.query("task == 'binding' and size == @size")["accuracy"]
    accuracy = f", accuracy {answers.iloc[0]:.2f}" if len(answers) else ""
    axes.set_title(f"{run.name}: {size} facts{accuracy}: {row['verdict']}", loc="left")
    axes.set_ylabel("heads")
    if row["verdict"] == FOUND:
        axes.axvspan(row["layer_low"] - 0.5, row["layer_high"] - 0.5, color=INK, alpha=0.08, linewidth=0)
        axes.axvline(row["turnover_layer"] - 0.5, color=INK, linewidth=1.0, linestyle=":")
