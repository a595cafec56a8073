"""Heads along training: accuracy, the plane, scores, purity, and what each hop waits for (P2 Figs. 2, 6, 7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from rotoscope.experiments.profile.plane import class_labels, corners
from rotoscope.experiments.train.dynamics import GAMMAS, Dynamics
from rotoscope.lab.checkpoints import Training
from rotoscope.plotting.palette import CLASS_COLOURS, CLASS_MARKERS, HOP_COLOURS, INK, NULL, SCORE_COLOURS
from rotoscope.plotting.style import (
    COLUMN_WIDTH,
    SMALLEST,
    TEXT_WIDTH,
    axis_break,
    caption,
    class_patches,
    drawing,
    drawing_many,
    every,
    named_figures,
    shared_legend,
    top_legend,
)
from rotoscope.scores.classes import AT_ITS_LAYER, GAMMA

LONG, LINEAR, TENTH = 4000, 2000, 10
"""Trainings of more steps than the first have an axis that is linear up to the second, if a tenth of what was looked at is there."""
SELDOM = 8
"""Steps are on a logarithmic axis if half of them lie in the first of so many parts of the training."""
MOVED = 0.02
"""By so much of a score heads move, on average, between a step that is shown and the last: else it is the same picture."""
COUNTED = "layers and heads count from 0"
MOST_HEADS = 24
"""Heads with panels of their own; of more, those that moved furthest."""
HIGHEST = 9.0
"""Inches of a figure that fits a page."""
ON_PROMPTS = "accuracy on the prompts"


def training_accuracy(*runs: Dynamics) -> Figure:
    """Accuracy by number of hops over training, one panel per run (P2 Fig. 2A)."""
    with drawing(TEXT_WIDTH if len(runs) > 1 else COLUMN_WIDTH, 2.9, 1, len(runs), sharey=True) as (
        figure,
        panels,
    ):
        for axes, run in zip(panels, runs, strict=True):
            _hop_curves(axes, run)
            axes.set(title=f"{run.task} task", xlabel="training step")
        hops = [axes for axes, run in zip(panels, runs, strict=True) if run.has_hops]
        panels[0].set_ylabel("accuracy on held-out sequences" if hops else ON_PROMPTS)
        if hops:
            shared_legend(figure, hops[-1], ncols=8, title="hops")
        inputs = int(runs[0].accuracy["inputs"].iloc[0]) if runs[0].accuracy is not None else 0
        noun = "held-out sequences of each hop count" if hops else "prompts"
    words = f"{inputs} {noun}; strokes above: first step with at least 95 %"
    return caption(figure, words + _scale_words(*runs))


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
    """Steps on a scale that leaves room for the beginning, where everything happens: where it changes, the axis is broken."""
    last, linear = max(run.steps), _linear_up_to(run)
    axes.set_xlim(0, max(last, 1))
    if linear == LINEAR:
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=2)
        ticks = [t for t in (0, 1000, LINEAR, 5000, 20_000, 100_000, 1_000_000) if t <= last]
    elif linear is not None:
        axes.set_xscale("symlog", linthresh=linear, linscale=0.5)
        ticks = [0, *(10**k for k in range(7) if linear <= 10**k <= last)]
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        return
    axes.set_xticks(ticks, [f"{t // 1000}k" if t >= 1000 else str(t) for t in ticks])
    axes.minorticks_off()
    axis_break(axes, linear)


def _linear_up_to(run: Dynamics) -> int | None:
    """Where a logarithmic axis begins: early where steps were looked at more and more seldom; None for a plain one."""
    steps = [step for step in run.steps if step > 0]
    if len(steps) > 3 and steps[len(steps) // 2] < steps[-1] / SELDOM:
        return steps[0]
    early = sum(step <= LINEAR for step in run.steps)
    return LINEAR if max(run.steps) > LONG and TENTH * early >= len(run.steps) else None


def _scale_words(*runs: Dynamics) -> str:
    linear = {f"{end:,}" for end in map(_linear_up_to, runs) if end is not None}
    words = " and ".join(sorted(linear))
    return f"; steps: linear up to {words}, logarithmic from there (//)" if words else ""


def plane_over_training(run: Dynamics, steps: Sequence[int] | None = None, gamma: float = GAMMA) -> Figure:
    """All heads in the plane at some steps (P2 Fig. 2B): coloured by layer, sized by entropy."""
    chosen = list(steps) if steps is not None else _telling_steps(run)
    table = run.at(gamma=gamma)
    names, margin = ("positional score", "symbolic score"), 0.5 if len(chosen) > 1 else 0.9
    with drawing_many(len(chosen), None, margin, names) as (figure, panels):
        for axes, step in zip(panels, chosen, strict=True):
            now = table[table["step"] == step]
            corners(axes, gamma)
            shades: dict[str, Any] = {"cmap": "viridis", "vmin": 0, "vmax": max(run.layers - 1, 1)}
            look: dict[str, Any] = {"alpha": 0.85, "edgecolors": "white", "linewidths": 0.6}
            x, y, size = now["positional_score"], now["symbolic_score"], 8 + 45 * now["relative_entropy"]
            points = axes.scatter(x, y, s=size, c=now["layer"], **shades, **look)
            axes.set_title(f"step {step:,}" + _accuracy_then(run, step))
            axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), aspect="equal")
            axes.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        bar = figure.colorbar(points, ax=panels, label="layer", shrink=0.7)
        bar.locator = MaxNLocator(6, integer=True)
    return caption(
        figure,
        f"{run.task} task, queries: {table['queries'].iloc[0]}, tau = {table['tau'].iloc[0]:g}; larger "
        f"points: higher entropy; squares: pure at gamma = {gamma:g}; {COUNTED}",
    )


def _accuracy_then(run: Dynamics, step: int) -> str:
    if run.accuracy is None:
        return ""
    now = run.accuracy.loc[run.accuracy["step"] == step, "accuracy"]
    return f"\naccuracy {now.mean():.2f}" if len(now) else ""


def _telling_steps(run: Dynamics, most: int = 8) -> list[int]:
    """Steps spread evenly over how far the heads have moved, not over time."""
    track = run.at().pivot_table(
        index="step", columns=["layer", "head"], values=["positional_score", "symbolic_score"]
    )
    moved = np.concatenate(([0.0], np.abs(np.diff(track.to_numpy(), axis=0)).mean(1).cumsum()))
    goals = np.linspace(0, moved[-1], most)
    places = sorted({int(np.argmin(np.abs(moved - goal))) for goal in goals} | {len(moved) - 1})
    chosen = [place for place in places if moved[-1] - moved[place] >= MOVED] + places[-1:]
    # Rows of three or four that are full: of five and seven one is left out, the last but one.
    chosen = [*chosen[:-2], chosen[-1]] if len(chosen) in (5, 7) else chosen
    return [int(track.index[place]) for place in chosen]


def scores_over_training(run: Dynamics) -> Figure:
    """Both scores and the entropy of every head over training (P2 Fig. 6); of many heads, those that moved furthest."""
    table = run.at().sort_values("step")
    heads = list(table.groupby(["layer", "head"]))
    note = ""
    if len(heads) > MOST_HEADS:
        note = f"{MOST_HEADS} of {len(heads)} heads: those that moved furthest from where they began; "
        furthest = sorted(range(len(heads)), key=lambda k: -_furthest(heads[k][1]))[:MOST_HEADS]
        heads = [heads[k] for k in sorted(furthest)]
    with drawing_many(len(heads), 1.3, 1.0, ("training step", "")) as (figure, panels):
        for axes, ((layer, head), track) in zip(panels, heads, strict=True):
            for score, colour in SCORE_COLOURS.items():
                axes.plot(track["step"], track[f"{score}_score"], color=colour, lw=1.3, label=score)
            axes.plot(track["step"], track["relative_entropy"], ":", color="#555555", lw=0.9, label="entropy")
            axes.set_title(f"{layer}:{head}")
            axes.set_ylim(-0.03, 1.03)
            _early(axes, run)
        shared_legend(figure, panels[0])
    return caption(
        figure,
        f"{run.task} task; {note}entropy relative to uniform attention; layer:head, {COUNTED}"
        + _scale_words(run),
    )


def _furthest(track: pd.DataFrame) -> float:
    """The largest distance of a head from where it was at its first step."""
    scores = track[["positional_score", "symbolic_score"]].to_numpy(dtype=float)
    return float(np.nan_to_num(np.hypot(*(scores - scores[0]).T)).max())


def purity_over_training(run: Dynamics, gammas: Sequence[float] = GAMMAS) -> Figure:
    """The class of every head at every step, for several tolerances, under the accuracy (P2 Figs. 2C and 7)."""
    colours = ListedColormap([CLASS_COLOURS[name] for name in AT_ITS_LAYER])
    height = min(0.14 * (run.layers + 4), (HIGHEST - 1.5) / len(gammas))
    has = run.accuracy is not None
    ratios = ([1.4] if has else []) + [1.0 + 0.07 * run.layers] * len(gammas)
    with drawing(TEXT_WIDTH, 1.5 + height * len(gammas), len(ratios), 1, sharex=True, height_ratios=ratios) as (
        figure,
        panels,
    ):
        if has:
            _hop_curves(panels[0], run)
            panels[0].set_ylabel("accuracy")
            if run.has_hops:
                panels[0].legend(title="hops", loc="lower right", ncols=2)
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
            step = every(len(grid), max(height - 0.56, 0.14))
            names = [f"{layer}:{head}" for layer, head in grid.index]
            axes.set_yticks(np.arange(len(grid))[::step] + 0.5, names[::step])
            axes.set_title(f"gamma = {gamma:g}", loc="left")
            _early(axes, run)
        panels[-1].set_xlabel("training step")
        top_legend(figure, class_patches(class_labels(False)))
    words = f"{run.task} task; class of every head (layer:head) by tolerance; {COUNTED}"
    return caption(figure, words + _scale_words(run))


def separation_over_training(run: Dynamics, gamma: float = GAMMA) -> Figure:
    """How far heads separate as accuracy rises: `|positional - symbolic|` and the share of pure heads, beside a null's draws."""
    apart, has = run.separation(gamma), run.accuracy is not None
    names = {"separation": "mean |positional\n− symbolic|", "pure_share": "share of\npure heads"}
    with drawing(COLUMN_WIDTH, 1.2 + 1.15 * (2 + has), 2 + has, 1, sharex=True) as (figure, panels):
        if has:
            _hop_curves(panels[0], run)
            panels[0].set_ylabel("accuracy")
            if run.has_hops:
                panels[0].legend(title="hops", loc="lower right", ncols=2)
        for axes, (column, label) in zip(panels[int(has) :], names.items(), strict=True):
            axes.plot(apart["step"], apart[column], color=INK, lw=1.5, label="heads")
            if f"{column}_null_low" in apart:
                ends = (apart[f"{column}_null_{end}"] for end in ("low", "high"))
                axes.fill_between(
                    apart["step"],
                    *ends,
                    color=NULL,
                    alpha=0.6,
                    lw=1,
                    label="null, least to most of its draws (no verdict)",
                )
            axes.set(ylim=(-0.03, 1.03), ylabel=label)
            _early(axes, run)
        panels[-1].set_xlabel("training step")
        if len(run.null_scores):
            shared_legend(figure, panels[-1])
    draws = f"; null: {run.null_scores['draw'].nunique()} draws" if len(run.null_scores) else "; no null"
    words = f"{run.task} task; means over {len(run.pure_from(gamma))} heads; pure at gamma = {gamma:g}{draws}"
    return caption(figure, words + _scale_words(run))


def waiting(*runs: Dynamics, gamma: float = GAMMA) -> Figure:
    """When each number of hops is learned, beside when every head became pure (P2 section 3.3)."""
    kinds: dict[str, Line2D] = {}
    with drawing(TEXT_WIDTH, 1.1 + 2.1 * len(runs), len(runs), 1) as (figure, panels):
        for axes, run in zip(panels, runs, strict=True):
            pure = run.pure_from(gamma).dropna(subset=["first_pure"])
            for row in pure.itertuples():
                look: dict[str, Any] = {"color": CLASS_COLOURS[row.head_class], "ms": 5, "ls": "", "zorder": 3}
                [mark] = axes.plot(row.first_pure, row.layer, CLASS_MARKERS[row.head_class], **look)
                kinds.setdefault(f"head that ends {row.head_class}, first pure", mark)
            learned = run.learned().dropna()[lambda steps: steps.index > 0]
            for hops, step in learned.items():
                colour = HOP_COLOURS[(hops - 1) % len(HOP_COLOURS)]
                line = axes.axvline(step, color=colour, lw=1.2)
                axes.text(step, run.layers + hops - 0.8, f" {hops}", color=colour, fontsize=8, va="center")
                kinds.setdefault("hops learned (95 %), numbered", line)
            axes.set_ylim(-0.7, run.layers + max(learned.index, default=0))
            steps = [*pure["first_pure"].astype(float), *learned]
            low, high = min(steps, default=0.0), max(steps, default=1.0)
            axes.set_xlim(low - 0.15 * (high - low + 1), high + 0.15 * (high - low + 1))
            axes.set_yticks(range(0, run.layers, max(1, run.layers // 6)))
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
            axes.ticklabel_format(axis="x", useOffset=False)
            axes.set_title(f"{run.task} task", loc="left")
            axes.set_ylabel("layer")
            if not steps:
                words = f"no number of hops learned,\nno head that ends pure at gamma = {gamma:g}"
                axes.text(
                    0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=SMALLEST
                )
                axes.set_xticks([])
        panels[-1].set_xlabel("training step")
        if kinds:
            top_legend(figure, list(kinds.values()), list(kinds))
    return caption(figure, f"pure at gamma = {gamma:g}; {COUNTED}")


def training_figures(run: Dynamics) -> Iterator[tuple[str, Figure]]:
    """Every figure of a model in training."""
    yield from named_figures(run, plane_over_training)
    if len(run.steps) > 1:
        yield from named_figures(run, scores_over_training, purity_over_training, separation_over_training)
    if run.accuracy is not None and run.accuracy["step"].nunique() > 1:
        yield from named_figures(run, training_accuracy)
    if run.has_hops and (run.learned().notna().any() or run.pure_from()["first_pure"].notna().any()):
        yield from named_figures(run, waiting)


def figures_of_training(run: Training) -> Iterator[tuple[str, Figure]]:
    """Those of what was watched in a training."""
    yield from training_figures(Dynamics.of_training(run))
