"""Heads along training: accuracy, the plane, scores, purity, and what each hop waits for (P2 Figs. 2, 6, 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from rotoscope.figures.plane_of_heads import corners
from rotoscope.figures.style import caption, class_patches, drawing, drawing_many, shared_legend
from rotoscope.figures.words import class_labels
from rotoscope.maths.purity import AT_ITS_LAYER, GAMMA
from rotoscope.palette import CLASS_COLOURS, CLASS_MARKERS, HOP_COLOURS, SCORE_COLOURS
from rotoscope.results.dynamics import GAMMAS, Dynamics

COUNTED = "layers and heads count from 0"


def training_accuracy(*runs: Dynamics) -> Figure:
    """Accuracy by number of hops over training, one panel per run (P2 Fig. 2A)."""
    with drawing(4.6 * len(runs), 3.2, 1, len(runs), sharey=True) as (figure, panels):
        for axes, run in zip(panels, runs, strict=True):
            _hop_curves(axes, run)
            axes.set(title=f"{run.task} task", xlabel="training step")
        panels[0].set_ylabel("accuracy on held-out sequences")
        panels[-1].legend(title="hops", fontsize=8, loc="lower right")
        inputs = int(runs[0].accuracy["inputs"].iloc[0]) if runs[0].accuracy is not None else 0
    return caption(
        figure, f"{inputs} held-out sequences of each hop count; ticks: first step with at least 95 %"
    )


def _hop_curves(axes: Axes, run: Dynamics) -> None:
    assert run.accuracy is not None
    learned = run.learned()
    for hops, curve in run.accuracy.groupby("hops"):
        colour = HOP_COLOURS[(hops - 1) % len(HOP_COLOURS)]
        axes.plot(curve["step"], curve["accuracy"], color=colour, lw=1.5, label=str(hops))
        if not np.isnan(learned[hops]):
            axes.plot([learned[hops]] * 2, [1.02, 1.05], color=colour, lw=2, clip_on=False)
    axes.set_ylim(0, 1.05)
    _early(axes, run)


def _early(axes: Axes, run: Dynamics) -> None:
    """Steps on a scale that leaves room for the beginning, where everything happens."""
    last = max(run.steps)
    if last > 4000:
        axes.set_xscale("symlog", linthresh=2000, linscale=2)
        ticks = [t for t in (0, 500, 1000, 1500, 2000, 5000, 10_000, 20_000, 50_000) if t <= last]
        axes.set_xticks(ticks, [str(t) if t < 2000 else f"{t // 1000}k" for t in ticks])
        axes.minorticks_off()
    axes.set_xlim(0, last)


def plane_over_training(run: Dynamics, steps: Sequence[int] | None = None, gamma: float = GAMMA) -> Figure:
    """All heads in the plane at some steps (P2 Fig. 2B): coloured by layer, sized by entropy."""
    chosen = list(steps) if steps is not None else _telling_steps(run)
    table = run.at(gamma=gamma)
    with drawing_many(len(chosen), (2.6, 2.7), (0.8, 0.3)) as (figure, panels):
        for axes, step in zip(panels.flat, chosen, strict=False):
            now = table[table["step"] == step]
            corners(axes, gamma)
            shades: dict[str, Any] = {"cmap": "viridis", "vmin": 0, "vmax": max(run.layers - 1, 1)}
            look: dict[str, Any] = {"alpha": 0.85, "edgecolors": "white", "linewidths": 0.6}
            size, scores = 14 + 90 * now["relative_entropy"], (now["positional_score"], now["symbolic_score"])
            points = axes.scatter(*scores, s=size, c=now["layer"], **shades, **look)
            axes.set_title(f"step {step:,}" + _accuracy_then(run, step), fontsize=9)
            axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal")
        for axes in panels[-1]:
            axes.set_xlabel("positional score")
        for axes in panels[:, 0]:
            axes.set_ylabel("symbolic score")
        figure.colorbar(points, ax=panels, label="layer", shrink=0.7)
    return caption(
        figure,
        f"{run.task} task, queries: {table['queries'].iloc[0]}, tau = {table['tau'].iloc[0]:g}; larger "
        f"points: higher entropy; squares: pure at gamma = {gamma:g}; {COUNTED}",
    )


def _accuracy_then(run: Dynamics, step: int) -> str:
    if run.accuracy is None:
        return ""
    now = run.accuracy.loc[run.accuracy["step"] == step, "accuracy"]
    return f", accuracy {now.mean():.2f}" if len(now) else ""


def _telling_steps(run: Dynamics, most: int = 8) -> list[int]:
    """Steps spread evenly over how far the heads have moved, not over time."""
    track = run.at().pivot_table(
        index="step", columns=["layer", "head"], values=["positional_score", "symbolic_score"]
    )
    moved = np.concatenate(([0.0], np.abs(np.diff(track.to_numpy(), axis=0)).mean(1).cumsum()))
    goals = np.linspace(0, moved[-1], most)
    return sorted({int(track.index[int(np.argmin(np.abs(moved - goal)))]) for goal in goals} | {max(run.steps)})


def scores_over_training(run: Dynamics) -> Figure:
    """Both scores and the entropy of every head over training (P2 Fig. 6)."""
    table = run.at()
    heads = list(table.groupby(["layer", "head"]))
    with drawing_many(len(heads), (2.5, 1.6), (0.0, 0.5)) as (figure, panels):
        for axes, ((layer, head), track) in zip(panels.flat, heads, strict=False):
            for score, colour in SCORE_COLOURS.items():
                axes.plot(track["step"], track[f"{score}_score"], color=colour, lw=1.3, label=score)
            axes.plot(track["step"], track["relative_entropy"], ":", color="#555555", lw=0.9, label="entropy")
            axes.set_title(f"{layer}:{head}", fontsize=8)
            axes.set_ylim(-0.03, 1.03)
            _early(axes, run)
            axes.tick_params(labelsize=7)
            axes.tick_params("x", labelrotation=60)
        shared_legend(figure, panels.flat[0], ncols=3, fontsize=8)
    return caption(
        figure,
        f"{run.task} task; entropy relative to uniform attention; layer:head, {COUNTED}; x: training step",
    )


def purity_over_training(run: Dynamics, gammas: Sequence[float] = GAMMAS) -> Figure:
    """The class of every head at every step, for several tolerances, under the accuracy (P2 Figs. 2C and 7)."""
    colours = ListedColormap([CLASS_COLOURS[name] for name in AT_ITS_LAYER])
    height = 1.5 + 0.16 * (run.layers + 4) * len(gammas)
    has = run.accuracy is not None
    ratios = ([1.4] if has else []) + [1.0 + 0.07 * run.layers] * len(gammas)
    with drawing(7.2, height, len(ratios), 1, sharex=True, height_ratios=ratios) as (figure, panels):
        if has:
            _hop_curves(panels[0], run)
            panels[0].set_ylabel("accuracy")
            panels[0].legend(title="hops", fontsize=7, title_fontsize=7, loc="lower right", ncols=2)
        for axes, gamma in zip(panels[1 if has else 0 :], gammas, strict=True):
            table = run.at(gamma=gamma)
            grid = table.assign(code=table["head_class"].map(AT_ITS_LAYER.index)).pivot(
                index=["layer", "head"], columns="step", values="code"
            )
            steps = grid.columns.to_numpy(dtype=float)
            edges = np.concatenate((steps, [steps[-1] + (steps[-1] - steps[-2] if len(steps) > 1 else 1)]))
            axes.pcolormesh(
                edges,
                np.arange(len(grid) + 1),
                grid.to_numpy(),
                cmap=colours,
                vmin=0,
                vmax=len(AT_ITS_LAYER) - 1,
            )
            names = [f"{layer}:{head}" for layer, head in grid.index]
            axes.set_yticks(np.arange(len(grid)) + 0.5, names, fontsize=6.5)
            axes.set_title(f"gamma = {gamma:g}", fontsize=8.5, loc="left")
            axes.invert_yaxis()
            _early(axes, run)
        panels[-1].set_xlabel("training step")
        figure.legend(
            handles=class_patches(class_labels(False)), loc="outside upper center", ncols=4, fontsize=8
        )
    return caption(figure, f"{run.task} task; class of every head (layer:head) by tolerance; {COUNTED}")


def waiting(*runs: Dynamics, gamma: float = GAMMA) -> Figure:
    """When each number of hops is learned, beside when every head became pure (P2 section 3.3)."""
    with drawing(7.2, 1.0 + 2.3 * len(runs), len(runs), 1) as (figure, panels):
        for axes, run in zip(panels, runs, strict=True):
            pure = run.pure_from(gamma)
            for row in pure.dropna(subset=["first_pure"]).itertuples():
                marker, colour = CLASS_MARKERS[row.head_class], CLASS_COLOURS[row.head_class]
                axes.plot(row.first_pure, row.layer, marker, color=colour, ms=6)
            axes.set_ylim(run.layers, -5.0)
            for hops, step in run.learned().items():
                if not np.isnan(step):
                    colour = HOP_COLOURS[(hops - 1) % len(HOP_COLOURS)]
                    axes.axvline(step, color=colour, lw=1.2)
                    axes.text(step, -0.9 - 1.1 * (hops - 1), f" {hops}", color=colour, fontsize=8, va="center")
            shown = [float(s) for s in pure["first_pure"].dropna()] + list(run.learned().dropna())
            low, high = min(shown, default=0.0), max(shown, default=1.0)
            axes.set_xlim(low - 0.15 * (high - low + 1), high + 0.15 * (high - low + 1))
            axes.set_yticks(range(0, run.layers, 2))
            axes.set_title(f"{run.task} task", loc="left")
            axes.set_ylabel("layer")
        panels[-1].set_xlabel("training step")
    return caption(
        figure,
        "lines: hops learned (95 %), numbered; points: first step at which a head that ends pure was "
        f"pure at gamma = {gamma:g} (square: positional, circle: symbolic); {COUNTED}",
    )
