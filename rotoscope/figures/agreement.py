"""The same heads on several tasks: how many keep their class, and where the differences come from."""

from __future__ import annotations

from matplotlib.figure import Figure

from rotoscope.figures.style import TEXT_WIDTH, caption, drawing, shared_legend
from rotoscope.palette import AMBER, INK, NULL, ROSE, SKY, VIOLET
from rotoscope.results.agreement import Agreement
from rotoscope.results.components import COMPONENTS

COLOURS = dict(zip(COMPONENTS, (ROSE, AMBER, SKY, VIOLET, NULL), strict=True))
SCORE_NAMES = {"positional_score": "positional", "symbolic_score": "symbolic"}


def task_agreement(run: Agreement) -> Figure:
    """Left, the share of heads with the same class on two tasks beside shuffled labels; right, variance by its source."""
    pairs, components = run.pairs, run.components
    rows = range(len(pairs))
    with drawing(TEXT_WIDTH, 1.8 + 0.28 * max(4, len(pairs)), 1, 2) as (figure, (left, right)):
        left.hlines(rows, pairs["null_low"], pairs["null_high"], color=NULL, linewidth=6, alpha=0.6)
        left.plot(pairs["share"], rows, "o", color=INK, markersize=5)
        left.set_yticks(rows, [f"{row.task}, {row.other_task}" for row in pairs.itertuples()])
        left.set(xlim=(-0.02, 1.02), xlabel="share of heads with the same class", ylim=(len(pairs) - 0.5, -0.5))
        left.set_title("classes on two tasks", loc="left")
        right.set_title("variance of a score", loc="left")
        right.set(xlim=(0, 1), xlabel="share of the variance")
        if len(components):
            wide = components.pivot(index="score", columns="component", values="share")[list(COMPONENTS)]
            before = 0.0 * wide[COMPONENTS[0]]
            for name, colour in COLOURS.items():
                right.barh(range(len(wide)), wide[name], left=before, color=colour, label=name, height=0.6)
                before = before + wide[name]
            right.set_yticks(range(len(wide)), [SCORE_NAMES[score] for score in wide.index])
            right.set_ylim(1.6, -0.6)
            shared_legend(figure, right, ncols=5)
        else:
            right.remove()
    prompts = ", ".join(f"{row.task} ({row.prompts} prompts)" for row in run.tasks.itertuples())
    return caption(
        figure,
        f"{run.name}; {prompts}\ngrey: where 95 % of labels shuffled among the heads of a layer lie; negative estimates of a "
        "variance are drawn as none",
    )
