"""Accuracy of a language model on one-hop questions, by length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import pandas as pd
from matplotlib.figure import Figure

from rotoscope.experiments.ask.result import TABLE_3, OneHopRun
from rotoscope.plotting.palette import NULL
from rotoscope.plotting.palette import TASK_COLOURS as HUES
from rotoscope.plotting.style import (
    COLUMN_WIDTH,
    LINES,
    TEXT_WIDTH,
    caption,
    drawing,
    plain_steps,
    shared_legend,
)

TITLES = {"number": "number task (positional)", "letter": "letter task (symbolic)"}
SHOWN = (12, 24, 48, 100, 300)


def one_hop_accuracy(run: OneHopRun, printed: pd.DataFrame | None = None) -> Figure:
    """Accuracy against length, a panel per task: own answers, restricted scoring where there is one, chance.

    `printed` holds a paper's figures, to be drawn behind: task, length, and a column for every model.
    """
    table = run.accuracy()
    tasks = [task for task in HUES if task in set(table["task"])]
    with drawing(TEXT_WIDTH if len(tasks) > 1 else COLUMN_WIDTH, 3.4, 1, len(tasks), sharey=True) as (
        figure,
        axes,
    ):
        for ax, task in zip(axes, tasks, strict=True):
            rows = table[table["task"] == task]
            reference = pd.DataFrame() if printed is None else printed[printed["task"] == task]
            for name, style in zip(reference.columns[2:], cycle(LINES), strict=False):
                line = reference["length"], reference[name]
                ax.plot(*line, style, color="#B5B5B5", linewidth=0.9, label=f"{name} (P2)")
            free = rows[rows["scoring"] == "free"]
            ax.plot(free["length"], free["chance"], color=NULL, linewidth=0.9, linestyle="-.", label="chance")
            for scoring, line in rows.groupby("scoring"):
                own = scoring == "free"
                below, above = line["mean"] - line["low"], line["high"] - line["mean"]
                ax.errorbar(
                    line["length"],
                    line["mean"],
                    yerr=[below.clip(lower=0), above.clip(lower=0)],
                    color=HUES[task],
                    marker="o" if own else "s",
                    markerfacecolor=None if own else "white",
                    linestyle="-" if own else "--",
                    linewidth=1.3,
                    markersize=4,
                    capsize=2,
                    label="own answer" if own else "most likely candidate",
                )
            plain_steps(ax, SHOWN)
            ends = {*free["length"], SHOWN[0], SHOWN[-1]}
            ax.set(xlim=(min(ends) * 0.9, max(ends) * 1.1), ylim=(-0.03, 1.03), xlabel="length of the sequence")
            ax.set_title(TITLES[task], loc="left")
        axes[0].set_ylabel("accuracy")
        shared_legend(figure, axes[0])
    runs, questions = int(table["runs"].max()), int(table["questions"].max())
    return caption(
        figure,
        f"{run.name}; {runs} runs, {questions} questions per point; Wilson 95 % intervals over questions",
    )


def one_hop_figures(run: OneHopRun) -> Iterator[tuple[str, Figure]]:
    """Accuracy by length, with P2's Table 3 behind it."""
    yield "one_hop_accuracy", one_hop_accuracy(run, TABLE_3)
