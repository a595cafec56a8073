"""How far multi-hop models generalise (P2 Fig. 5): accuracy, discrepancy, attention by length; prediction."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from rotoscope.figures.style import caption, drawing, plain_steps, shared_legend
from rotoscope.maths.head_discrepancy import index_worst, index_worst_bound
from rotoscope.palette import BROWN, CLASS_COLOURS
from rotoscope.palette import TASK_COLOURS as HUES
from rotoscope.results.lengths import Lengths

LACKING = {
    "attention": "attention on the token pointed at",
    "gap_loss": "-log p lost to the best competitor",
    "dispersion_loss": "-log p lost to dispersion",
}


def length_accuracy(run: Lengths) -> Figure:
    """Accuracy by length over all hop counts, with intervals (P2 Fig. 5B)."""
    with drawing(5.6, 3.5) as (figure, [axes]):
        curves = run.curve()
        for (_, task), rows in curves.groupby(["model", "task"], sort=False):
            first = task not in axes.get_legend_handles_labels()[1]
            look = {"color": HUES[task], "ms": 3, "lw": 1.2, "alpha": 0.8, "label": task if first else None}
            axes.plot(rows["length"], rows["accuracy"], "o-", **look)
            axes.fill_between(rows["length"], rows["low"], rows["high"], color=HUES[task], alpha=0.12, lw=0)
        axes.axvline(int(curves["length"].min()), color="#999999", lw=0.8, ls=":")
        plain_steps(axes, curves["length"], fontsize=7)
        axes.set(ylim=(-0.02, 1.03), xlabel="length of the input in tokens", ylabel="accuracy")
        axes.legend(title="task")
        models = curves["model"].nunique()
    return caption(
        figure,
        f"{models} models, 95 % intervals; dotted: length in training; longer inputs have more target "
        "tokens in front",
    )


def length_discrepancy(run: Lengths) -> Figure:
    """Largest minus second-largest logit by length, layer by layer, beside the theory's 1/n^2 (P2 Fig. 5A)."""
    gaps = run.gaps()
    classes = run.classes.set_index(["model", "layer", "head"])["head_class"]
    tasks = [t for t in HUES if t in set(gaps["task"])]
    with drawing(4.6 * len(tasks), 3.6, 1, len(tasks), sharey=True) as (figure, panels):
        for axes, task in zip(panels, tasks, strict=True):
            own_task = gaps[gaps["task"] == task]
            for (model, layer, head), rows in own_task.sort_values("length").groupby(
                ["model", "layer", "head"]
            ):
                relative = rows["discrepancy"] / rows["discrepancy"].iloc[0]
                colour = CLASS_COLOURS[classes[(model, layer, head)]]
                axes.plot(rows["length"], relative, color=colour, lw=1.0, alpha=0.6)
            n = np.array(sorted(own_task["length"].unique()), dtype=float)
            bound = np.array([index_worst_bound(int(k)) for k in n])
            worst = "T_Index, worst input at any angle"
            axes.plot(n, bound / bound[0], "--", color="black", lw=1.2, label=worst)
            positional = run.classes.query("task == @task and head_class == 'positional'")
            for angle in sorted({round(a, 4) for a in positional["dominant_angle"]}):
                own = np.array([index_worst(angle, int(k)) for k in n])
                label = f"T_Index at the heads' own angle {angle:.3g}"
                axes.plot(n, own / own[0], "-.", color=BROWN, lw=1.0, label=label)
            axes.axhline(1.0, color="#777777", lw=1.2, ls=":", label="T_Retrieval at θ = 0: constant")
            axes.set(yscale="log", ylim=(0.003, 6))
            plain_steps(axes, own_task["length"], fontsize=7)
            axes.set(title=f"{task} task", xlabel="length of the input in tokens")
        panels[0].set_ylabel("mean discrepancy,\nrelative to training length")
        shared_legend(figure, panels[0], ncols=2)
    return caption(
        figure,
        "one line per layer and model, coloured by the head's class at training length (orange "
        "positional, blue symbolic, pink mixed)",
    )


def length_attention(run: Lengths, model: str | None = None) -> Figure:
    """What the attention on the right token lacks: to its best competitor, and to the crowd."""
    gaps = run.gaps()
    chosen = model or str(gaps["model"].iloc[0])
    rows = gaps[gaps["model"] == chosen]
    with drawing(8.2, 3.3, 1, 3) as (figure, panels):
        for axes, (name, label) in zip(panels, LACKING.items(), strict=True):
            grid = rows.pivot_table(index="layer", columns="length", values=name)
            colours = "viridis" if name == "attention" else "magma_r"
            image = axes.imshow(grid, aspect="auto", cmap=colours, vmin=0)
            axes.set_xticks(range(len(grid.columns)), [f"{n:,}" for n in grid.columns], fontsize=7, rotation=60)
            axes.set_yticks(range(0, len(grid), 2), [str(k) for k in grid.index[::2]])
            axes.set_title(label, fontsize=8.5)
            axes.set_xlabel("length")
            figure.colorbar(image, ax=axes, shrink=0.85)
        panels[0].set_ylabel("layer")
    return caption(figure, f"{chosen}; mean over the pointing positions of the path; layers count from 0")


def length_prediction(run: Lengths) -> Figure:
    """Predicted against measured lengths at which accuracy falls below 90 % and 50 %."""
    table = run.predictions()
    table = table[np.isfinite(table["predicted"]) & np.isfinite(table["measured"])]
    with drawing(4.4, 4.2) as (figure, [axes]):
        for row in table.itertuples():
            filled = row.level == 0.5
            high = row.measured_high if math.isfinite(row.measured_high) else row.measured
            axes.errorbar(
                row.measured,
                row.predicted,
                xerr=_reach(row.measured, row.measured_low, high),
                yerr=_reach(row.predicted, row.predicted_low, min(row.predicted_high, 1e5)),
                fmt="o" if filled else "s",
                mfc=HUES[row.task] if filled else "white",
                color=HUES[row.task],
                ms=5,
                lw=0.8,
            )
        both = [float(x) for x in (*table["measured"], *table["predicted"])] or [10.0, 100.0]
        ends = (min(both) / 1.5, max(both) * 1.5)
        axes.plot(ends, ends, color="#777777", lw=0.8)
        axes.set(xscale="log", yscale="log")
        axes.set(xlabel="measured length", ylabel="length predicted from training length alone")
    return caption(
        figure,
        "orange: number, blue: letter; filled: accuracy below 50 %, open: below 90 %; 95 % intervals; "
        "line: equality",
    )


def _reach(value: float, low: float, high: float) -> list[list[float]]:
    """How far an interval reaches below and above a value."""
    return [[max(value - low, 0)], [max(high - value, 0)]]
