"""What the layers of a multi-hop model do (P2 Fig. 3): where the answer is, what can be read, one input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke

from rotoscope.experiments.roles.result import ARRIVED, EQUAL_WEIGHTS, TABLE_1, Geometry, Roles
from rotoscope.plotting.palette import AMBER, HOP_COLOURS, INK, SKY, TASK_COLOURS
from rotoscope.plotting.style import (
    COLUMN_WIDTH,
    SMALLEST,
    TEXT_WIDTH,
    around_origin,
    blank,
    caption,
    colour_map,
    drawing,
    drawing_grid,
    every,
    named_figures,
    shared_legend,
)
from rotoscope.tasks.multihop_frames import MultiHop

DRAWN = 0.25
"""Attention from which an arrow is drawn."""


@runtime_checkable
class Traced(Protocol):
    """One input as `experiments.roles.run.trace` gives it."""

    @property
    def sequence(self) -> MultiHop: ...
    @property
    def answered(self) -> str: ...
    @property
    def cells(self) -> pd.DataFrame: ...
    @property
    def attention(self) -> Any: ...


def _hops(count: int) -> str:
    return "1 hop" if count == 1 else f"{count} hops"


def information_flow(trace: Traced) -> Figure:
    """One input: which token each state decodes to at every layer and position, and what attends to what.

    A state is labelled with the token farthest along its pointers that a linear probe reads there.
    """
    sequence, layers, n = trace.sequence, trace.attention.shape[0], len(trace.sequence.tokens)
    shades = colour_map(TASK_COLOURS[sequence.task])
    most = max(sequence.hops, 1)
    with drawing(TEXT_WIDTH, 0.36 * (layers + 1) + 1.3) as (figure, [axes]):
        for cell in trace.cells.itertuples():
            unread = pd.isna(cell.ahead)
            face = "#FFFFFF" if unread else shades(0.08 + 0.75 * min(cell.ahead, most) / most)
            on_path = cell.position in sequence.path
            edge, width = (INK, 1.4) if on_path else ("#CCCCCC", 0.5)
            corner = (cell.position - 0.42, cell.layer - 0.3)
            axes.add_patch(Rectangle(corner, 0.84, 0.6, facecolor=face, edgecolor=edge, lw=width, zorder=3))
            dark = not unread and cell.ahead / most > 0.6
            axes.text(
                cell.position, cell.layer, "?" if unread else cell.token,
                ha="center", va="center", fontsize=SMALLEST, color="white" if dark else INK, zorder=4,
                fontweight="bold" if on_path else "normal",
            )  # fmt: skip
        weights = trace.attention.mean(1).numpy()  # over heads
        for layer in range(layers):
            for looking in sequence.path[:-1]:
                for target in np.flatnonzero(weights[layer, looking] >= DRAWN):
                    share = float(weights[layer, looking, target])
                    arrow = FancyArrowPatch(
                        (float(target), layer + 0.3), (looking, layer + 0.7), arrowstyle="-|>", mutation_scale=6,
                        lw=0.4 + 1.6 * share, color="#555555", alpha=0.25 + 0.6 * share, zorder=2,
                    )  # fmt: skip
                    axes.add_patch(arrow)
        axes.set(xlim=(-0.7, n - 0.3), ylim=(-0.6, layers + 0.6))
        axes.set_xticks(range(n), sequence.tokens)
        axes.set_yticks(range(layers + 1), ["input", *(f"after {k}" for k in range(layers))])
        blank(axes)
        right = "right" if trace.answered == sequence.answer else "wrong"
        axes.set_title(
            f"{sequence.task} task, {_hops(sequence.hops)}: answer {sequence.answer}, the model says {trace.answered} ({right})"
        )
    return caption(
        figure,
        "each state shows the token farthest along its pointers that a linear probe reads there (darker: "
        f"more hops ahead; ?: none); framed: the path; arrows: attention of at least {DRAWN:g} from "
        "places on the path; layers count from 0",
    )


def answer_arrival(roles: Roles) -> Figure:
    """Accuracy when one place on the path may look only at itself from a layer on."""
    kinds = sorted(int(hops) for hops in roles.arrival["hops"].unique())
    with drawing(TEXT_WIDTH if len(kinds) > 1 else COLUMN_WIDTH, 2.7, 1, len(kinds), sharey=True) as (
        figure,
        panels,
    ):
        for axes, hops in zip(panels, kinds, strict=True):
            rows = roles.arrival[roles.arrival["hops"] == hops]
            for step, curve in rows.groupby("path_index"):
                label = "last token" if step == 0 else f"{_hops(int(step))} on"
                colour = HOP_COLOURS[step % len(HOP_COLOURS)]
                axes.plot(curve["layer"], curve["accuracy"], ".-", color=colour, ms=4, lw=1.3, label=label)
            axes.axhline(ARRIVED, color="#999999", lw=0.7, ls="--")
            axes.set(ylim=(0, 1.03), title=_hops(hops), xlabel="attends to itself only\nfrom this layer on")
            last = int(rows["layer"].max())
            axes.set_xticks(range(0, last + 1, every(last + 1, 1.3, 0.2)))
        panels[0].set_ylabel("accuracy")
        shared_legend(figure, panels[-1], ncols=6, title="blocked place")
    return caption(
        figure,
        f"{roles.task} task; dashed: 95 %; a curve that is high everywhere: nothing passes through that "
        "place alone",
    )


def decodable_flow(roles: Roles) -> Figure:
    """How often a probe reads each token along the path, at every place and after every layer."""
    places = roles.flow[["hops", "path_index"]].drop_duplicates()
    most = int(places["hops"].max())
    longest = roles.flow[roles.flow["hops"] == most]
    shades = colour_map(TASK_COLOURS[roles.task])
    with drawing(TEXT_WIDTH if most > 1 else COLUMN_WIDTH, 2.9, 1, most, sharey=True) as (figure, panels):
        for axes, step in zip(panels, reversed(range(most)), strict=True):
            grid = longest[longest["path_index"] == step].pivot(
                index="layer", columns="ahead", values="accuracy"
            )
            image = axes.imshow(grid, cmap=shades, vmin=0, vmax=1, aspect="auto", origin="lower")
            axes.set_xticks(range(len(grid.columns)), ["itself", *(f"+{k}" for k in grid.columns[1:])])
            axes.set_title("last token" if step == 0 else f"{_hops(step)} on")
            axes.set_xlabel("token read")
        panels[0].set_ylabel("layers passed")
        figure.colorbar(image, ax=panels, label="probe accuracy", shrink=0.8)
    return caption(
        figure,
        f"{roles.task} task, {most} hops; columns within a panel: hops ahead along the path; held-out inputs",
    )


def role_attention(*runs: Roles) -> Figure:
    """Where every layer's head looks from positions that point on."""
    with drawing(TEXT_WIDTH if len(runs) > 1 else COLUMN_WIDTH, 3.1, 1, len(runs), sharey=True) as (
        figure,
        panels,
    ):
        for axes, run in zip(panels, runs, strict=True):
            table = run.table()
            names = [
                f"{row.layer}:{row.head}" if table["head"].any() else str(row.layer)
                for row in table.itertuples()
            ]
            further = [name for name in table if name.endswith("_ahead")]
            pieces = [
                ("itself", table["on_self"], "#777777"),
                ("token pointed at", table["on_pointed"], HOP_COLOURS[0]),
                ("further along the path", table[further].sum(axis=1), HOP_COLOURS[2]),
                ("elsewhere", 1 - table["along_path"], "#E5E5E5"),
            ]
            floor = np.zeros(len(table))
            for label, share, colour in pieces:
                axes.bar(names, share, bottom=floor, color=colour, label=label, width=0.85)
                floor = floor + share.to_numpy()
            for x, role in enumerate(table["role"]):
                if role != "none":
                    axes.text(x, 1.02, role[:3], ha="center", fontsize=SMALLEST)
            axes.set(ylim=(0, 1.1), title=f"{run.task} task", xlabel="layer")
        panels[0].set_ylabel("share of attention")
        shared_legend(figure, panels[0], ncols=4)
    return caption(
        figure,
        "mean over the positions of the path that point on; Ind, Ret, Ref: heads with at least .9 on one "
        "place; layers count from 0",
    )


# Which frequencies a multi-hop model uses, and its vectors in the plane it uses most (P2 Figs. 4B, 4C, 8).


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
            ids = run.weighted_ids()["weighted_id"]
            defined = run.weight_entropy().to_numpy() < EQUAL_WEIGHTS
            axes.plot(ids[defined], np.flatnonzero(defined), "o", color=AMBER, ms=4, label="weighted average")
            printed_ids = (printed or {}).get(run.task, ())
            if len(printed_ids) == len(ids):
                axes.plot(printed_ids, range(len(ids)), "x", color=SKY, ms=5, mew=1.6, label="P2 Table 1")
            axes.set(title=f"{run.task} task", xlabel="frequency id (1: fastest)", ylabel="layer")
        shared_legend(figure, panels[-1], ncols=2)
        figure.colorbar(image, ax=panels, label="largest logit of the layer = 1", shrink=0.8)
    return caption(
        figure,
        "largest logit over keys, mean over inputs at the last token; average weighted by the softmax of the logits as the model "
        "scales them, not drawn where all frequencies weigh alike; layers count from 0",
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


def role_figures(run: Roles) -> Iterator[tuple[str, Figure]]:
    """What the layers do, and the way of the answer."""
    yield from named_figures(run, role_attention, answer_arrival, decodable_flow)


def geometry_figures(run: Geometry) -> Iterator[tuple[str, Figure]]:
    """Frequencies in use, beside P2's Table 1, and the planes used most."""
    yield "frequency_use", frequency_use(run, printed=TABLE_1)
    yield "dominant_planes", dominant_planes(run)
