"""Accuracy of a language model on one-hop questions, by length."""

from __future__ import annotations

from matplotlib.figure import Figure

from rotoscope.figures.style import NULL, POSITIONAL, SYMBOLIC, caption, new_figure, styled
from rotoscope.results.onehop import PAPER, PAPER_MODELS, OneHopRun

__all__ = ["one_hop_accuracy"]

HUES = {"number": POSITIONAL, "letter": SYMBOLIC}
TITLES = {"number": "number task (positional)", "letter": "letter task (symbolic)"}
PAPER_STYLES = dict(zip(PAPER_MODELS, ("-", "--", ":"), strict=True))


def one_hop_accuracy(run: OneHopRun) -> Figure:
    """Accuracy against length, a panel per task: own answers, restricted scoring where there is one, chance, and behind
    them the models of P2's Table 3."""
    table = run.accuracy()
    tasks = [task for task in HUES if task in set(table["task"])]
    figure = new_figure(3.7 * len(tasks), 3.6)
    with styled():
        axes = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
        for ax, task in zip(axes, tasks, strict=True):
            rows = table[table["task"] == task]
            reference = PAPER[PAPER["task"] == task]
            for name, style in PAPER_STYLES.items():
                ax.plot(
                    reference["length"],
                    reference[name],
                    style,
                    color="#B5B5B5",
                    linewidth=0.9,
                    label=f"{name} (P2)",
                )
            free = rows[rows["scoring"] == "free"]
            ax.plot(free["length"], free["chance"], color=NULL, linewidth=0.9, linestyle="-.", label="chance")
            for scoring, line in rows.groupby("scoring"):
                own = scoring == "free"
                ax.errorbar(
                    line["length"],
                    line["mean"],
                    yerr=[
                        (line["mean"] - line["low"]).clip(lower=0),
                        (line["high"] - line["mean"]).clip(lower=0),
                    ],
                    color=HUES[task],
                    marker="o" if own else "s",
                    markerfacecolor=None if own else "white",
                    linestyle="-" if own else "--",
                    linewidth=1.3,
                    markersize=4,
                    capsize=2,
                    label="own answer" if own else "most likely candidate",
                )
            ax.set_xscale("log")
            ends = {*free["length"], 12, 300}
            shown = [12, 24, 48, 100, 300]
            ax.set_xticks(shown, [str(length) for length in shown])
            ax.minorticks_off()
            ax.set_xlim(min(ends) * 0.9, max(ends) * 1.1)
            ax.set_ylim(-0.03, 1.03)
            ax.set_xlabel("length of the sequence")
            ax.set_title(TITLES[task], loc="left")
        axes[0].set_ylabel("accuracy")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=7.5)
    runs, questions = int(table["runs"].max()), int(table["questions"].max())
    caption(
        figure,
        f"{run.name}; {runs} runs, {questions} questions per point; Wilson 95 % intervals over questions",
    )
    return figure
