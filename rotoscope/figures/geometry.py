"""Which frequencies a multi-hop model uses, and its vectors in the plane it uses most (P2 Figs. 4B, 4C, 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.figure import Figure

from rotoscope.figures.style import caption, colour_map, new_figure, styled
from rotoscope.results.geometry import Geometry

__all__ = ["dominant_planes", "frequency_use"]


def frequency_use(*runs: Geometry) -> Figure:
    """The largest logit of every plane in every layer (P2 Fig. 8), with the weighted-average ids of Table 1."""
    figure = new_figure(4.6 * len(runs), 3.4)
    with styled():
        panels = figure.subplots(1, len(runs), squeeze=False)[0]
        for axes, run in zip(panels, runs, strict=True):
            grid = run.use.pivot_table(index=["layer", "head"], columns="frequency_id", values="max_logit")
            scaled = grid.div(
                grid.max(axis=1), axis=0
            )  # layers differ in size; what matters is which planes stand out
            image = axes.imshow(
                scaled,
                cmap=colour_map("#222222"),
                vmin=0,
                vmax=1,
                aspect="auto",
                extent=(0.5, grid.columns.max() + 0.5, len(grid) - 0.5, -0.5),
            )
            ids = run.weighted_ids()
            axes.plot(
                ids["product_weighted_id"],
                range(len(ids)),
                "o",
                color="#D55E00",
                ms=4,
                label="weighted average",
            )
            if ids["paper_id"].notna().all():
                axes.plot(
                    ids["paper_id"].astype(float),
                    range(len(ids)),
                    "x",
                    color="#0072B2",
                    ms=5,
                    label="P2 Table 1",
                )
            axes.set_title(f"{run.task} task")
            axes.set_xlabel("frequency id (1: fastest)")
            axes.set_ylabel("layer")
        handles, labels = panels[-1].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize=8, loc="outside upper center", ncols=2)
        figure.colorbar(
            image, ax=panels, label="largest logit over keys,\nrelative to the layer's largest", shrink=0.8
        )
        caption(
            figure,
            "mean over inputs at the last token; average weighted by the softmax of unscaled products; layers count from 0",
        )
    return figure


def dominant_planes(run: Geometry, layers: Sequence[int] | None = None) -> Figure:
    """Mean query and key vector of every token in the plane each layer uses most (P2 Figs. 4B and 4C)."""
    ids = run.weighted_ids()
    chosen = list(layers) if layers is not None else list(ids["layer"].unique()[:4])
    figure = new_figure(2.7 * len(chosen) + 0.7, 5.2)
    with styled():
        panels = figure.subplots(2, len(chosen), squeeze=False)
        for column, layer in enumerate(chosen):
            top = ids[ids["layer"] == layer].iloc[0]
            of = run.vectors[(run.vectors["layer"] == layer) & (run.vectors["head"] == top["head"])]
            reach = float(np.hypot(of["re"], of["im"]).max()) * 1.08
            for axes, kind in zip(panels[:, column], ("query", "key"), strict=True):
                points = of[of["kind"] == kind]
                order, label = _ordered(run.task, kind, points["token"])
                known = order >= 0
                rest = points[~known]
                axes.plot(rest["re"], rest["im"], ".", color="#CFCFCF", ms=3)
                shown = axes.scatter(
                    points["re"][known], points["im"][known], c=order[known], cmap="turbo", s=14
                )
                axes.axhline(0, color="#DDDDDD", lw=0.6, zorder=0)
                axes.axvline(0, color="#DDDDDD", lw=0.6, zorder=0)
                axes.set_xlim(-reach, reach)
                axes.set_ylim(-reach, reach)
                axes.set_aspect("equal")
                axes.tick_params(labelsize=6.5)
                if kind == "query":
                    axes.set_title(
                        f"layer {layer}, id {int(top['dominant_id'])}\nangle {top['dominant_angle']:.3g}",
                        fontsize=8.5,
                    )
                if column == 0:
                    axes.set_ylabel({"query": "queries", "key": "keys"}[kind])
                if column == len(chosen) - 1:
                    figure.colorbar(shown, ax=axes, label=label, shrink=0.8)
        caption(
            figure,
            f"{run.task} task; mean un-rotated vectors by token; grey: tokens of the other kind; ids count from 1, layers from 0",
        )
    return figure


def _ordered(task: str, kind: str, tokens: Iterable[str]) -> tuple[np.ndarray, str]:
    """What a token says to a query or a key: the integer, or the letter looked for or offered; -1: nothing."""
    if task == "number":
        return np.array([int(t) if t.isdigit() else -1 for t in tokens]), "integer"
    if kind == "query":
        return np.array([-1 if t[1:].isdigit() else ord(t[1]) - ord("a") for t in tokens]), "letter looked for"
    return np.array([ord(t[0]) - ord("a") for t in tokens]), "first letter"
