"""P1's canonical experiments drawn: accuracy by frequency, over training, by position; vectors; scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rotoscope.experiments.canonical.result import Canonical
from rotoscope.plotting.palette import EXPERIMENT_COLOURS as HUES
from rotoscope.plotting.palette import INK, QUERY, SCORE_COLOURS
from rotoscope.plotting.style import (
    COLUMN_WIDTH,
    TEXT_WIDTH,
    axis_break,
    caption,
    drawing,
    shade,
    shared_legend,
    top_legend,
    under,
)

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MARKERS = {"index": "s", "retrieval": "o", "induction": "^", "induction, two angles": "D"}


def _caption(run: Canonical) -> str:
    s = run.run.settings
    return (
        f"{s['keys']} keys, {s['symbols']} symbols, {s['entities']} entities, {s['seeds']} seeds, {s['steps']} "
        f"steps of {s['batch']}; {s['tested']} fresh test samples"
    )


def _width(panels: Sequence[object]) -> float:
    return TEXT_WIDTH if len(panels) > 1 else COLUMN_WIDTH


def _title(experiment: str) -> str:
    """In two lines where one is too long for a panel."""
    return experiment.replace(", ", ",\n")


def _angle_axis(axes: Axes, thetas: np.ndarray, label: bool = True) -> None:
    """Logarithmic, fast angles right, with NoPE (0) set apart at the left, beyond a break of the axis."""
    least, most = thetas[thetas > 0].min(), thetas.max()
    axes.set_xscale("log")
    powers = range(math.ceil(np.log10(least)), math.floor(np.log10(most)) + 1)
    ticks = {10.0**k: f"10{str(k).translate(RAISED)}" for k in powers[:: -1 if len(powers) < 4 else -2]}
    if (thetas == 0).any():
        axis_break(axes, least / 2)
        ticks = {least / 4: "NoPE"} | {at: label for at, label in ticks.items() if at > 2 * least}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    if label:
        axes.set_xlabel("angle θ per position")


def _x(theta: pd.Series, thetas: np.ndarray) -> pd.Series:
    return theta.where(theta > 0, thetas[thetas > 0].min() / 4)


def _band(axes: Axes, x: Any, mean: pd.Series, spread: pd.Series, **look: Any) -> None:
    axes.fill_between(x, mean - spread, mean + spread, linewidth=0, **look)


def canonical_accuracy(run: Canonical) -> Figure:
    """Accuracy against frequency at the end of training, band over seeds (P1 Fig. 2A-C)."""
    table = run.final()
    thetas = table["theta"].unique()
    with drawing(COLUMN_WIDTH, 3.3) as (figure, [axes]):
        for name in run.experiments:
            rows = table[table["experiment"] == name].sort_values("theta")
            x, spread = _x(rows["theta"], thetas), rows["std"].fillna(0)
            _band(axes, x, rows["mean"], spread, color=HUES[name], alpha=0.18)
            axes.plot(x, rows["mean"], color=HUES[name], marker=MARKERS[name], markersize=4, label=name)
        _angle_axis(axes, thetas)
        axes.set(ylabel="accuracy", ylim=(-0.02, 1.03))
        shared_legend(figure, axes, ncols=2)
    return caption(figure, _caption(run))


def canonical_steps(run: Canonical) -> Figure:
    """Accuracy by angle and training step, mean over seeds."""
    names = run.experiments
    # Panels share their rows: an angle that one experiment leaves out stays empty there.
    thetas = np.sort(run.accuracy["theta"].unique())
    ticks = list(range(0, len(thetas), max(1, len(thetas) // 7)))
    with drawing(_width(names), 2.9, 1, len(names), sharey=True) as (figure, axes):
        for ax, name in zip(axes, names, strict=True):
            rows = run.accuracy[run.accuracy["experiment"] == name]
            grid = rows.pivot_table(index="theta", columns="step", values="accuracy").reindex(thetas)
            drawn = ax.imshow(grid.to_numpy(), aspect="auto", origin="lower", cmap="cividis", vmin=0, vmax=1)
            ax.set_yticks(ticks, ["NoPE" if thetas[k] == 0 else f"{thetas[k]:.2g}" for k in ticks])
            steps = range(0, len(grid.columns), max(1, (len(grid.columns) - 1) // 2))
            ax.set_xticks(list(steps), [str(grid.columns[k]) for k in steps])
            ax.set_title(_title(name), loc="left")
            ax.set_xlabel("training step")
        axes[0].set_ylabel("angle θ")
        figure.colorbar(drawn, ax=list(axes), label="accuracy", pad=0.01)
    return caption(figure, _caption(run))


def canonical_positions(run: Canonical) -> Figure:
    """By answer position at the end (P1 Fig. 3A): Retrieval's accuracy is an inverse U, Index's weight a U."""
    last = run.positions[run.positions["step"] == run.positions["step"].max()]
    panels_of = [
        (n, c) for n, c in (("index", "target_weight"), ("retrieval", "accuracy")) if n in run.experiments
    ]
    panels_of = panels_of or [(run.experiments[0], "accuracy")]
    with drawing(_width(panels_of), 3.1, 1, len(panels_of)) as (figure, axes):
        for ax, (name, column) in zip(axes, panels_of, strict=True):
            rows = last[(last["experiment"] == name) & (last["theta"] > 0)]
            thetas = np.sort(rows["theta"].unique())
            middle = [t for t in thetas if 0.003 <= t <= 0.11]
            shown = middle[:: max(1, len(middle) // 5)]
            for k, theta in enumerate(shown):
                groups = rows[rows["theta"] == theta].groupby("position")[column]
                colour = shade(HUES[name], k, len(shown))
                mean, std = groups.mean(), groups.std().fillna(0)
                _band(ax, mean.index + 1, mean, std, color=colour, alpha=0.15)
                ax.plot(mean.index + 1, mean, color=colour, label=f"θ = {theta:.2g}")
            shown_as = {"target_weight": "weight on the target"}.get(column, column)
            ax.set(xlabel="position of the answer", ylabel=shown_as)
            ax.set_ylim(bottom=0)
            ax.set_title(name, loc="left")
            under(ax, ncols=3)
    return caption(figure, _caption(run) + "; band: standard deviation over seeds")


def canonical_vectors(run: Canonical, experiment: str | None = None, theta: float = 0.1) -> Figure:
    """Keys and queries along training (P1 Fig. 3B): Index's keys collapse, its query counts positions."""
    name = experiment or run.experiments[0]
    table = run.vectors[run.vectors["experiment"] == name]
    nearest = min(table["theta"].unique(), key=lambda value: abs(np.log10(value) - np.log10(theta)))
    table = table[table["theta"] == nearest]
    steps = sorted(table["step"].unique())
    shown = [steps[0], steps[len(steps) // 4], steps[-1]]
    with drawing(TEXT_WIDTH, 2.5, 1, len(shown) + 1) as (figure, axes):
        for ax, step in zip(axes, shown, strict=False):
            rows = table[table["step"] == step]
            for kind, colour, marker in (("query", QUERY, "x"), ("key", INK, "o")):
                part = rows[rows["kind"] == kind]
                size = np.hypot(part["re"], part["im"]).clip(lower=1e-9)
                look: dict[str, Any] = {"s": 14, "marker": marker, "color": colour, "alpha": 0.7}
                ax.scatter(part["re"] / size, part["im"] / size, label=f"{kind} directions", **look)
            ax.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal", xticks=[], yticks=[])
            ax.set_title(f"step {step}", loc="left")
        final = table[table["step"] == steps[-1]]
        keys, query = final[final["kind"] == "key"], final[final["kind"] == "query"]
        shared = np.arctan2(keys["im"].mean(), keys["re"].mean())
        position = query["row"].to_numpy() + 1
        expected = position * nearest
        # How far each query is from turning by theta per position, around the direction most of them agree on.
        off = np.exp(1j * (np.arctan2(query["im"], query["re"]).to_numpy() - shared - expected))
        off = np.angle(off / np.exp(1j * np.angle(np.median(off.real) + 1j * np.median(off.imag))))
        axes[-1].plot(position, expected, color="#999999", lw=1, label="θ · j")
        axes[-1].plot(position, expected + off, "x", ms=4, color=QUERY, label="query, relative to keys")
        axes[-1].set(xlabel="named position j" if name == "index" else "asked entity", ylabel="angle")
        axes[-1].set_title("angle of the query", loc="left")
        top_legend(figure, [*axes[0].get_legend_handles_labels()[0], *axes[-1].lines])
    return caption(figure, f"{name}, θ = {nearest:.2g}, seed 0; " + _caption(run))


def canonical_scores(run: Canonical) -> Figure:
    """The metric on heads whose mechanism is known; open: swaps between equal entities alone."""
    names = run.experiments
    with drawing(_width(names), 2.8, 1, len(names), sharey=True) as (figure, axes):
        thetas = run.scores["theta"].unique()
        for ax, name in zip(axes, names, strict=True):
            rows = run.scores[run.scores["experiment"] == name]
            means = rows.groupby("theta").mean(numeric_only=True).reset_index()
            x = _x(means["theta"], thetas)
            for score, hue in SCORE_COLOURS.items():
                ax.plot(x, means[f"{score}_score"], color=hue, marker=".", label=f"{score} score")
                column = f"equal_symbol_{score}_score"
                if column in means and means[column].notna().any():
                    label = f"{score}, equal entities"
                    ax.plot(x, means[column], ".--", color=hue, mfc="white", lw=0.9, label=label)
            _angle_axis(ax, thetas)
            ax.set_title(_title(name), loc="left")
        axes[0].set_ylabel("score (τ = 1e-4)")
        shared_legend(figure, axes[-1])
    return caption(figure, _caption(run))


def canonical_figures(run: Canonical) -> Iterator[tuple[str, Figure]]:
    """Every figure of trained toy heads."""
    draws = {
        "accuracy": canonical_accuracy,
        "steps": canonical_steps,
        "positions": canonical_positions,
        "scores": canonical_scores,
    }
    for name, draw in draws.items():
        yield name, draw(run)
    if len(run.vectors):
        yield "vectors", canonical_vectors(run)
