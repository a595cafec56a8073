"""What scalings of the angles do by length: losses, and the classes that heads go to."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from rotoscope.figures.style import TEXT_WIDTH, caption, drawing_grid, plain_steps, shared_legend
from rotoscope.maths.purity import AT_ITS_LAYER
from rotoscope.palette import CLASS_COLOURS, INK, MIXED_EDGE, SERIES
from rotoscope.results.context_plan import AS_IT_IS, CONTROL, ContextPlan

MARKERS = ("o", "s", "D", "^", "v")


def context_losses(plan: ContextPlan) -> Figure:
    """Loss by length under every scaling, on each source, and on text by place in the longest input."""
    sources = list(dict.fromkeys(plan.losses["source"]))
    by_place = "positions" in plan.tables
    with drawing_grid(TEXT_WIDTH, 3.2, 1, len(sources) + by_place) as (figure, [axes]):
        for k, setting in enumerate(plan.settings):
            colour = INK if setting == AS_IT_IS else SERIES[k - 1]
            look = {
                "color": colour,
                "marker": MARKERS[k % len(MARKERS)],
                "ms": 3.5,
                "lw": 1.2,
                "label": setting,
            }
            for ax, source in zip(axes, sources, strict=False):
                rows = plan.summary[(plan.summary["source"] == source) & (plan.summary["setting"] == setting)]
                ax.plot(rows["length"], rows["loss"], **look)
            if by_place:
                rows = plan.positions[plan.positions["setting"] == setting]
                rows = rows[rows["length"] == plan.to].groupby("position")["loss"].mean()
                axes[-1].plot(rows.index, rows, **look)
        for ax, source in zip(axes, sources, strict=False):
            ax.set(title=source, xlabel="length of the input in tokens", ylabel="loss")
            ax.axvline(plan.trained, color="#999999", lw=0.8, ls=":")
            plain_steps(ax, plan.lengths)
        if by_place:
            axes[-1].set(title=f"text, {plan.to:,} tokens", xlabel="position")
            axes[-1].axvline(plan.trained, color="#999999", lw=0.8, ls=":")
        shared_legend(figure, axes[0], ncols=len(plan.settings))
    count = plan.run.settings["prompts"]
    return caption(
        figure, f"{plan.name}; means over {count} prompts of each source; dotted: length in training"
    )


def context_classes(plan: ContextPlan) -> Figure:
    """How many heads there are of each class, by setting and length; above, how many have another class than before."""
    heads = plan.heads
    columns = [(CONTROL, plan.trained), *((s, n) for s in plan.settings for n in plan.lengths)]
    counts = heads.groupby(["setting", "length"])["head_class"].value_counts().unstack(fill_value=0)
    changed = plan.changes.groupby(["setting", "length"])["changed"].sum()
    places = np.arange(len(columns), dtype=float)
    with drawing_grid(TEXT_WIDTH, 3.6, 1, 1) as (figure, [[axes]]):
        bottom = np.zeros(len(columns))
        for name in AT_ITS_LAYER:
            high = np.array([float(counts.get(name, {}).get(key, 0)) for key in columns])
            look = {"color": CLASS_COLOURS[name], "edgecolor": MIXED_EDGE, "linewidth": 0.3, "label": name}
            axes.bar(places, high, 0.8, bottom=bottom, **look)
            bottom += high
        for place, key, top in zip(places, columns, bottom, strict=True):
            axes.text(place, top, str(int(changed.get(key, 0))), ha="center", va="bottom", fontsize=7)
        words = [f"{'other prompts' if s == CONTROL else s}, {n:,}" for s, n in columns]
        axes.set_xticks(places, words, rotation=60, ha="right")
        axes.set(ylabel="heads", ylim=(0, 1.1 * bottom.max()))
        shared_legend(figure, axes, ncols=4)
    return caption(
        figure,
        f"{plan.name}, repeated tokens; numbers: heads of another class than in the model as it is at {plan.trained:,} tokens; "
        "first: what changes on other prompts by chance",
    )
