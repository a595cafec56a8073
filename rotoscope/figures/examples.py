"""Single heads at work: attention under a swap, and vectors in the dominant plane."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from rotoscope.figures.style import around_origin, caption, drawing, drawing_grid
from rotoscope.figures.words import measured
from rotoscope.palette import INK, QUERY, SWAPPED
from rotoscope.results.profile import Profile


def swap_traces(profile: Profile) -> Figure:
    """Attention before and after a head's most telling swap (P1 Fig. 1).

    A symbolic peak moves with the content, a positional one stays.
    """
    table = profile.traces
    groups = list(table.groupby("example", sort=False))
    with drawing(7.2, 1.75 * len(groups) + 0.7, len(groups), 1, sharex=True) as (figure, axes):
        for ax, (title, rows) in zip(axes, groups, strict=True):
            swapped = rows[rows["block"] >= 0]
            first, second = int(rows["first_block"].iloc[0]), int(rows["second_block"].iloc[0])
            for block in (first, second):
                inside = swapped[swapped["block"] == block]["position"]
                ax.axvspan(inside.min() - 0.5, inside.max() + 0.5, color="#F2E6A0", linewidth=0, zorder=0)
            ax.plot(swapped["position"], swapped["attention"], color=INK, linewidth=1.2, label="before")
            after = swapped["position"], swapped["attention_swapped"]
            ax.plot(*after, "--", color=SWAPPED, linewidth=1.2, label="after the swap")
            name = f"{rows['layer'].iloc[0]}:{rows['head'].iloc[0]}, {title}"
            ax.set_title(f"{name}: blocks {first} and {second} swapped", loc="left", fontsize=9)
            ax.set_ylabel("attention")
            ax.set_ylim(bottom=0)
        axes[0].legend(loc="upper left", fontsize=7.5, ncols=2)
        axes[-1].set_xlabel("position (swapped blocks shaded)")
    return caption(figure, measured(profile) + "; first prompt")


def vectors(profile: Profile) -> Figure:
    """Query and keys of each example head in the plane that decides (P1 Fig. 3C), un-rotated and met."""
    table = profile.vectors
    groups = list(table.groupby("example", sort=False))
    with drawing_grid(2.6 * max(len(groups), 2) + 0.8, 5.4, 2, len(groups)) as (figure, axes):
        for c, (title, rows) in enumerate(groups):
            keys, query = rows[rows["kind"] == "key"], rows[rows["kind"] == "query"].iloc[0]
            for r, suffix in enumerate(("", "_met")):
                ax = axes[r, c]
                x, y = keys[f"re{suffix}"], keys[f"im{suffix}"]
                drawn = ax.scatter(x, y, c=keys["position"], cmap="cividis", s=9, zorder=2)
                reach = 1.15 * float(np.hypot(x, y).max())
                direction = np.array([query["re"], query["im"]])
                direction = direction / max(float(np.hypot(*direction)), 1e-12) * reach * 0.9
                ax.annotate("", xy=tuple(direction), xytext=(0, 0),
                            arrowprops={"arrowstyle": "-|>", "color": QUERY, "lw": 1.6}, zorder=3)  # fmt: skip
                around_origin(ax, reach)
            layer, head, number, angle = rows[["layer", "head", "frequency_id", "angle"]].iloc[0]
            plane = f"id {number:.0f}, {angle:.2g} rad"
            axes[0, c].set_title(f"{layer:.0f}:{head:.0f}, {title}\n{plane}", loc="left", fontsize=8)
        axes[0, 0].set_ylabel("un-rotated")
        axes[1, 0].set_ylabel("as query and keys meet")
        figure.colorbar(drawn, ax=axes, label="key position", shrink=0.6, pad=0.02)
    return caption(
        figure,
        measured(profile)
        + "; first prompt\nplane whose logits vary most over the swapped tokens; red: direction of the query",
    )
