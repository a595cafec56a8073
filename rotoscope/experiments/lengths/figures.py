"""How far multi-hop models generalise (P2 Fig. 5): accuracy, discrepancy, attention by length; prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rotoscope.experiments.lengths.result import Lengths
from rotoscope.plotting.palette import BROWN, INK, LINE_COLOURS
from rotoscope.plotting.palette import TASK_COLOURS as HUES
from rotoscope.plotting.style import (
    COLUMN_WIDTH,
    TEXT_WIDTH,
    caption,
    drawing,
    drawing_grid,
    named_figures,
    plain_steps,
    shared_legend,
    top_legend,
)
from rotoscope.scores.discrepancy import index_worst, index_worst_bound

LACKING = {
    "attention": "attention on the\ntoken pointed at",
    "gap_loss": "−log p lost to the\nbest competitor",
    "dispersion_loss": "−log p lost to\ndispersion",
}


def length_accuracy(run: Lengths) -> Figure:
    """Accuracy by length over all hop counts, with intervals (P2 Fig. 5B)."""
    with drawing(COLUMN_WIDTH, 2.9) as (figure, [axes]):
        curves = run.curve()
        budgets = training_budgets(run)
        for (model, task), rows in curves.groupby(["model", "task"], sort=False):
            label = " ".join(filter(None, (task, budgets.get(model, ("", "-"))[0])))
            first = label not in axes.get_legend_handles_labels()[1]
            look = {"color": HUES[task], "ms": 3, "lw": 1.2, "alpha": 0.8, "label": label if first else None}
            axes.plot(rows["length"], rows["accuracy"], f"o{budgets.get(model, ('', '-'))[1]}", **look)
            axes.fill_between(rows["length"], rows["low"], rows["high"], color=HUES[task], alpha=0.12, lw=0)
        axes.axvline(int(curves["length"].min()), color="#999999", lw=0.8, ls=":")
        plain_steps(axes, _few(curves["length"]))
        axes.set(ylim=(-0.02, 1.03), xlabel="length of the input in tokens", ylabel="accuracy")
        shared_legend(figure, axes)
        models = curves["model"].nunique()
    return caption(
        figure,
        f"{models} models, 95 % intervals; dotted: length in training; longer inputs have more target "
        "tokens in front",
    )


def training_budgets(run: Lengths) -> dict[str, tuple[str, str]]:
    """Words and line style for the training of every model, where a run holds trainings of several lengths."""
    if "trained_steps" not in run.classes or run.classes["trained_steps"].nunique() < 2:
        return {}
    steps = run.classes.groupby("model")["trained_steps"].first()
    styles = dict(zip(sorted(steps.unique(), reverse=True), ("-", "--", ":", "-."), strict=False))
    return {model: (f"({count:,} steps)", styles.get(count, ":")) for model, count in steps.items()}


def length_discrepancy(run: Lengths) -> Figure:
    """Largest minus second-largest logit by length, layer by layer, beside the theory's 1/n^2 (P2 Fig. 5A).

    Mean over queries, the least tenth of them, and the worst one.
    """
    gaps = run.gaps()
    classes = run.classes.set_index(["model", "layer", "head"])["head_class"]
    tasks = [t for t in HUES if t in set(gaps["task"])]
    shown = {"discrepancy": "mean", "low": "10 % quantile", "worst": "worst query"}
    size = (TEXT_WIDTH if len(tasks) > 1 else COLUMN_WIDTH, 1.8 * len(shown) + 1.6, len(shown), len(tasks))
    with drawing_grid(*size, sharex="col", sharey=True) as (figure, grid):
        for column, task in zip(grid.T, tasks, strict=True):
            own_task = gaps[gaps["task"] == task].sort_values("length")
            for axes, name in zip(column, shown, strict=True):
                for key, rows in own_task.groupby(["model", "layer", "head"]):
                    relative = rows[name] / rows["discrepancy"].iloc[0]
                    axes.plot(rows["length"], relative, color=LINE_COLOURS[classes[key]], lw=1.0, alpha=0.6)
                _theory(axes, run, task, np.array(sorted(own_task["length"].unique()), dtype=float))
                axes.set(yscale="log", ylim=(0.0003, 6))
            column[0].set_title(f"{task} task")
            column[-1].set_xlabel("length of the input in tokens")
            plain_steps(column[-1], _few(own_task["length"]))
        for axes, words in zip(grid[:, 0], shown.values(), strict=True):
            axes.set_ylabel(f"discrepancy, {words}")
        drawn = [name for name in LINE_COLOURS if name in set(classes)]
        heads = [Line2D([], [], color=LINE_COLOURS[name], lw=1.2, label=f"{name} head") for name in drawn]
        theory, labels = grid[0, 0].get_legend_handles_labels()
        top_legend(figure, [*heads, *theory], [*(f"{name} head" for name in drawn), *labels], ncols=3)
    return caption(
        figure,
        "relative to the mean at the length of training; one line per layer and model, coloured by the head's class at "
        "that length",
    )


def _few(lengths: pd.Series) -> list[int]:
    """Lengths to be named along a logarithmic axis: at least a factor of 1.9 apart."""
    shown: list[int] = []
    for length in sorted(set(lengths)):
        if not shown or length >= 1.9 * shown[-1]:
            shown.append(int(length))
    return shown


def _theory(axes: Axes, run: Lengths, task: str, n: np.ndarray) -> None:
    """The constructions' discrepancy on their worst inputs, relative to the shortest length."""
    bound = np.array([index_worst_bound(int(k)) for k in n])
    axes.plot(n, bound / bound[0], "--", color="black", lw=1.2, label="T_Index, worst input at any angle")
    positional = run.classes.query("task == @task and head_class == 'positional'")
    for angle in sorted({round(a, 4) for a in positional["dominant_angle"]}):
        own = np.array([index_worst(angle, int(k)) for k in n])
        label = f"T_Index at the heads' own angle {angle:.3g}"
        axes.plot(n, own / own[0], "-.", color=BROWN, lw=1.0, label=label)
    axes.axhline(1.0, color="#777777", lw=1.2, ls=":", label="T_Retrieval at θ = 0: constant")


def length_attention(run: Lengths, model: str | None = None) -> Figure:
    """What the attention on the right token lacks: to its best competitor, and to the crowd."""
    gaps = run.gaps()
    chosen = model or str(gaps["model"].iloc[0])
    rows = gaps[gaps["model"] == chosen]
    with drawing(TEXT_WIDTH, 2.9, 1, 3) as (figure, panels):
        for axes, (name, label) in zip(panels, LACKING.items(), strict=True):
            grid = rows.pivot_table(index="layer", columns="length", values=name)
            colours = "viridis" if name == "attention" else "magma_r"
            image = axes.imshow(grid, aspect="auto", cmap=colours, vmin=0, origin="lower")
            axes.set_xticks(range(len(grid.columns)), [f"{n:,}" for n in grid.columns], rotation=90)
            axes.set_yticks(range(0, len(grid), 2), [str(k) for k in grid.index[::2]])
            axes.set_title(label)
            axes.set_xlabel("length")
            figure.colorbar(image, ax=axes, shrink=0.85)
        panels[0].set_ylabel("layer")
    return caption(figure, f"{chosen}; mean over the pointing positions of the path; layers count from 0")


def length_prediction(run: Lengths) -> Figure:
    """Predicted against measured lengths at which accuracy falls below 90 % and 50 %."""
    table = run.predictions()
    table = table[np.isfinite(table["predicted"]) & np.isfinite(table["measured"])]
    with drawing(COLUMN_WIDTH, 4.2) as (figure, [axes]):
        for row in table.itertuples():
            filled = row.level == 0.5
            high = row.measured_high if math.isfinite(row.measured_high) else row.measured
            expected = (row.expected_low, row.expected_high)
            axes.plot(expected, (row.predicted, row.predicted), color=HUES[row.task], lw=4, alpha=0.15)
            axes.errorbar(
                row.measured,
                row.predicted,
                xerr=_reach(row.measured, row.measured_low, high),
                yerr=_reach(row.predicted, row.inputs_low, min(row.inputs_high, 1e5)),
                fmt="o" if filled else "s",
                mfc=HUES[row.task] if filled else "white",
                color=HUES[row.task],
                ms=4,
                lw=0.8,
            )
        measured_and_predicted = [float(x) for x in (*table["measured"], *table["predicted"])] or [10.0, 100.0]
        ends = (min(measured_and_predicted) / 1.5, max(measured_and_predicted) * 1.5)
        axes.plot(ends, ends, color="#777777", lw=0.8)
        axes.set(xscale="log", yscale="log")
        axes.set(xlabel="measured length", ylabel="length predicted from training length alone")
        top_legend(figure, _prediction_key([task for task in HUES if task in set(table["task"])]), ncols=2)
    return caption(
        figure,
        "thin bars: 95 % intervals over inputs; broad ones: where the errors for other trainings let one expect the "
        "measured length",
    )


def _prediction_key(tasks: list[str]) -> list[Line2D]:
    dots: dict[str, Any] = {"linestyle": "", "markersize": 5}
    return [
        *(Line2D([], [], marker="o", color=HUES[task], label=f"{task} task", **dots) for task in tasks),
        Line2D([], [], marker="o", color=INK, label="accuracy below 50 %", **dots),
        Line2D([], [], marker="s", color=INK, mfc="white", label="accuracy below 90 %", **dots),
        Line2D([], [], color="#777777", lw=0.8, label="equality"),
        Line2D([], [], color=INK, lw=4, alpha=0.15, label="expected"),
    ]


def _reach(value: float, low: float, high: float) -> list[list[float]]:
    """How far an interval reaches below and above a value."""
    return [[max(value - low, 0)], [max(high - value, 0)]]


def length_figures(run: Lengths) -> Iterator[tuple[str, Figure]]:
    """Every figure of accuracy and heads by length."""
    yield from named_figures(run, length_accuracy)
    if "heads" in run.tables:
        yield from named_figures(run, length_discrepancy, length_attention)
    yield from named_figures(run, length_prediction)
