"""The positional-symbolic plane: one point per head."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rotoscope.figures.style import caption, drawing
from rotoscope.figures.words import measured
from rotoscope.maths.purity import pure_regions
from rotoscope.palette import CLASS_COLOURS, CLASS_MARKERS
from rotoscope.results.profile import Profile


def plane(profile: Profile, tau: float | None = None) -> Figure:
    """Every head by its two scores (P1 Fig. 1): (1, 0) positional, (0, 1) symbolic, (1, 1) uniform."""
    with drawing(5.2, 5.5) as (figure, [axes]):
        heads, summary = profile.at(tau), profile.summary(tau)
        corners(axes, profile.gamma)
        if profile.null_name is not None:
            null = profile.nulls_at(tau)
            axes.scatter(
                null["positional_score"],
                null["symbolic_score"],
                s=30,
                color="#C8C8C8",
                marker=".",
                linewidths=0,
                label=f"{profile.null_name} null",
                clip_on=False,
                zorder=2,
            )
        for name, label in summary.counted.items():
            group = heads[heads["head_class"] == name]
            axes.scatter(
                group["positional_score"],
                group["symbolic_score"],
                s=22,
                color=CLASS_COLOURS[name],
                marker=CLASS_MARKERS[name],
                alpha=0.75,
                linewidths=0.4,
                edgecolors="white",
                label=label,
                clip_on=False,
                zorder=3,
            )
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
        axes.set(xlabel="positional score", ylabel="symbolic score")
        r = "undefined" if summary.correlation is None else f"{summary.correlation:.2f}"
        axes.set_title(f"{profile.name}: {summary.heads - summary.missing} heads, r = {r}", loc="left")
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.11),
            ncols=2,
            handletextpad=0.1,
            columnspacing=1,
            title=summary.stake_words,
            title_fontsize="small",
        )
    return caption(figure, measured(profile, tau))


def corners(axes: Axes, gamma: float) -> None:
    """The pure regions, lightly shaded and named."""
    for name, corner in pure_regions(gamma).items():
        axes.add_patch(
            Rectangle(corner, gamma, gamma, color=CLASS_COLOURS[name], alpha=0.12, linewidth=0, zorder=1)
        )
