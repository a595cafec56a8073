"""Which frequencies a multi-hop model uses, and its vectors in the plane it uses most (P2 Figs. 4B, 4C, 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from rotoscope.figures.style import (
    COLUMN_WIDTH,
    TEXT_WIDTH,
    around_origin,
    caption,
    colour_map,
    drawing,
    drawing_grid,
    shared_legend,
)
from rotoscope.palette import AMBER, INK, SKY
from rotoscope.results.geometry import Geometry


def frequency_use(*runs: Geometry, printed: Mapping[str, Sequence[float]] | None = None) -> Figure:
    """The largest logit of every plane in every layer (P2 Fig. 8), with the weighted-average ids.

    `printed` gives ids per layer of a paper by task, to be drawn beside ours.
    """
    with drawing(TEXT_WIDTH if len(runs) > 1 else COLUMN_WIDTH, 3.3, 1, len(runs)) as (figure, panels):
        for axes, run in zip(panels, runs, strict=True):
            grid = run.use.pivot_table(index=["layer", "head"], columns="frequency_id", values="max_logit")
            # Layers differ in size; what matters is which planes stand out.
            scaled = grid.div(grid.max(axis=1), axis=0)
            extent = (0.5, grid.columns.max() + 0.5, -0.5, len(grid) - 0.5)
            look = {"cmap": colour_map(INK), "vmin": 0, "vmax": 1, "aspect": "auto", "origin": "lower"}
            image = axes.imshow(scaled, extent=extent, **look)
            ids = run.weighted_ids()["product_weighted_id"]
            axes.plot(ids, range(len(ids)), "o", color=AMBER, ms=4, label="weighted average")
            theirs = (printed or {}).get(run.task, ())
            if len(theirs) == len(ids):
                axes.plot(theirs, range(len(ids)), "x", color=SKY, ms=5, mew=1.6, label="P2 Table 1")
            axes.set(title=f"{run.task} task", xlabel="frequency id (1: fastest)", ylabel="layer")
        shared_legend(figure, panels[-1], ncols=2)
        figure.colorbar(image, ax=panels, label="largest logit of the layer = 1", shrink=0.8)
    return caption(
        figure,
        "largest logit over keys, mean over inputs at the last token; average weighted by the softmax of unscaled products; "
        "layers count from 0",
    )


def dominant_planes(run: Geometry, layers: Sequence[int] | None = None) -> Figure:
    """Mean query and key vector of every token in the plane each layer uses most (P2 Figs. 4B and 4C)."""
    ids = run.weighted_ids()
    chosen = list(layers) if layers is not None else list(ids["layer"].unique()[:4])
    with drawing_grid(TEXT_WIDTH, 1.0 + 2 * 5.6 / max(len(chosen), 3), 2, len(chosen)) as (figure, panels):
        for column, layer in enumerate(chosen):
            top = ids[ids["layer"] == layer].iloc[0]
            rows = run.vectors[(run.vectors["layer"] == layer) & (run.vectors["head"] == top["head"])]
            reach = float(np.hypot(rows["re"], rows["im"]).max()) * 1.08
            for axes, kind in zip(panels[:, column], ("query", "key"), strict=True):
                points = rows[rows["kind"] == kind]
                order, label = _ordered(run.task, kind, points["token"].tolist())
                known, rest = points[order >= 0], points[order < 0]
                axes.plot(rest["re"], rest["im"], ".", color="#CFCFCF", ms=3)
                values = order[order >= 0]
                shown = axes.scatter(known["re"], known["im"], c=values, cmap="turbo", s=9)
                if run.task == "letter":
                    for letter, group in known.groupby(np.array([chr(ord("a") + k) for k in values])):
                        _letter(axes, letter, group["re"].mean(), group["im"].mean())
                around_origin(axes, reach)
                if kind == "query":
                    title = f"layer {layer}, id {int(top['dominant_id'])}\nangle {top['dominant_angle']:.3g}"
                    axes.set_title(title)
                if column == 0:
                    axes.set_ylabel({"query": "queries", "key": "keys"}[kind])
                if column == len(chosen) - 1:
                    bar = figure.colorbar(shown, ax=axes, label=label, shrink=0.9)
                    if run.task == "letter":
                        bar.set_ticks(
                            np.unique(values).tolist(), labels=[chr(ord("a") + k) for k in np.unique(values)]
                        )
    return caption(
        figure,
        f"{run.task} task; mean un-rotated vectors by token; grey: tokens of the other kind; ids count "
        "from 1, layers from 0",
    )


def _letter(axes: Axes, letter: str, x: float, y: float) -> None:
    """A letter in the middle of its vectors, readable over them."""
    halo = [withStroke(linewidth=2, foreground="white")]
    axes.annotate(letter, (x, y), ha="center", va="center", fontweight="bold", path_effects=halo)


def _ordered(task: str, kind: str, tokens: Sequence[str]) -> tuple[np.ndarray, str]:
    """What a token says to a query or a key: the integer, or the letter looked for or offered; -1: nothing."""
    if task == "number":
        return np.array([int(t) if t.isdigit() else -1 for t in tokens]), "integer"
    if kind == "query":
        return np.array([-1 if t[1:].isdigit() else ord(t[1]) - ord("a") for t in tokens]), "letter looked for"
    return np.array([ord(t[0]) - ord("a") for t in tokens]), "first letter"
