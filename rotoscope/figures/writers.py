"""Who writes the place that carried heads read: a small graph."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rotoscope.errors import RotoscopeError
from rotoscope.figures.style import SMALLEST, TEXT_WIDTH, blank, caption, drawing, top_legend
from rotoscope.figures.words import measured
from rotoscope.palette import CARRIED, INK, NULL, POSITIONAL
from rotoscope.results.depths import SwapDepths
from rotoscope.results.verdict import BEYOND
from rotoscope.results.writers import ALL, NOBODY, ONE, READER

WIDEST = 6.0
"""Width of the line of an effect of 1."""
APART = 0.24
"""Between the heads of a layer."""


def writer_graph(run: SwapDepths) -> Figure:
    """Positional heads on the left, the carried heads that were asked on the right, both at the height of their layer.

    A line is as wide as the effect of silencing that one head; grey where the same layer's other heads do as much. Beside a
    reader stands what silencing all positional heads below it does.
    """
    found = run.writers_summary()
    if not len(found):
        raise RotoscopeError(
            NOBODY if "writers" in run.tables else "who writes a place was not asked: depths(..., writers=True)"
        )
    single = found[found["condition"] == ONE]
    edges = set(run.writer_graph()[[*READER, "layer", "head"]].itertuples(index=False, name=None))
    writers = single[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
    left = {
        (layer, head): (-APART * place, float(layer))
        for layer, rows in writers.groupby("layer")
        for place, head in enumerate(rows["head"][::-1])
    }
    readers = found[READER].drop_duplicates().itertuples(index=False, name=None)
    right = {reader: (3.0, height) for reader, height in _spread(sorted(readers)).items()}
    tall = max(height for _, height in (*left.values(), *right.values()))
    with drawing(TEXT_WIDTH, max(3.2, 0.24 * tall + 1.6)) as (figure, [axes]):
        for row in single.sort_values("effect").to_dict("records"):
            reader, writer = (row[READER[0]], row[READER[1]]), (row["layer"], row["head"])
            (x0, y0), (x1, y1) = left[writer], right[reader]
            told = (*reader, *writer) in edges
            axes.plot(
                [x0, x1],
                [y0, y1],
                color=POSITIONAL if told else NULL,
                linewidth=max(0.4, WIDEST * max(row["effect"], 0.0)),
                alpha=0.8 if told else 0.3,
                zorder=2 if told else 1,
                solid_capstyle="round",
                gid="{}:{} to {}:{}".format(*writer, *reader),
            )
        axes.scatter(*zip(*left.values(), strict=True), marker="s", s=26, color=POSITIONAL, zorder=3)
        axes.scatter(*zip(*right.values(), strict=True), marker="P", s=44, color=CARRIED, zorder=3)
        for (layer, head), place in left.items():
            if any((layer, head) == edge[2:] for edge in edges):
                axes.annotate(
                    f"{layer}:{head}", place, (0, 5), textcoords="offset points", fontsize=SMALLEST, ha="center"
                )
        for reader, place in right.items():
            text = "{}:{}".format(*reader) + _all_below(found, reader)
            axes.annotate(
                text, place, (8, 0), textcoords="offset points", fontsize=SMALLEST, va="center", color=INK
            )
        layers = sorted({layer for layer, _ in left})
        axes.set_yticks(layers, [str(layer) for layer in layers])
        axes.set(xlim=(min(x for x, _ in left.values()) - 0.3, 5.6), ylim=(min(layers) - 0.8, tall + 1))
        axes.set_xticks([0, 3], ["positional heads", "carried heads"])
        axes.set_ylabel("layer")
        axes.set_title(f"{run.name}: who writes the place that carried heads read?", loc="left")
        blank(axes)
        lines = [
            Line2D([], [], color=POSITIONAL, lw=3, label="takes more of the place than other heads there"),
            Line2D([], [], color=NULL, lw=1.5, label="does not"),
        ]
        top_legend(figure, lines, ncols=2)
    return caption(figure, measured(run) + "; width: effect of silencing one head")


def _spread(readers: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """A height for every reader: its layer, moved up where another stands there."""
    heights: dict[tuple[int, int], float] = {}
    for reader in readers:
        heights[reader] = max([float(reader[0]), *(height + 0.9 for height in heights.values())])
    return heights


def _all_below(found: pd.DataFrame, reader: tuple[int, int]) -> str:
    rows = found[
        (found["condition"] == ALL) & (found[READER[0]] == reader[0]) & (found[READER[1]] == reader[1])
    ]
    if not len(rows):
        return ""
    row = rows.iloc[0]
    sign = ", beyond" if row["verdict"] == BEYOND else ""
    return f": all {row['silenced']} below {row['effect']:.2f} (controls {row['null_value']:.2f}{sign})"
