"""The positional-symbolic plane: one point per head."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from scipy.ndimage import gaussian_filter

from rotoscope.figures.style import COLUMN_WIDTH, SMALLEST, OneSquare, caption, drawing, token_text, under
from rotoscope.figures.words import measured
from rotoscope.maths.purity import pure_regions
from rotoscope.palette import CLASS_COLOURS, CLASS_MARKERS, INK, MIXED_EDGE
from rotoscope.results.aggregate import SCORES
from rotoscope.results.profile import Profile

NULL_SHADES = ("#E4E4E4", "#C6C6C6")
NULL_SHARES = (0.9, 0.5)
"""Parts of the null's heads that lie within each shade."""
PALE, FULL = 0.3, 0.9
"""How strongly heads with little and with something at stake are drawn."""


def plane(profile: Profile, tau: float | None = None) -> Figure:
    """Every head by its two scores (P1 Fig. 1): (1, 0) positional, (0, 1) symbolic, (1, 1) uniform.

    Heads with little at stake are faded; the null is a grey area.
    """
    heads, summary = profile.at(tau), profile.summary(tau)
    handles: list[Patch | Line2D] = []
    with drawing(COLUMN_WIDTH, 6.0) as (figure, [axes]):
        corners(axes, profile.gamma)
        corner_words(axes, profile.gamma, carried="carried" in summary.classes)
        if profile.null_name is not None:
            density(axes, profile.nulls_at(tau))
            handles.append(Patch(color=NULL_SHADES[1], label=f"{profile.null_name} null: half of its heads"))
            handles.append(Patch(color=NULL_SHADES[0], label="90 % of them"))
        for name, label in summary.counted.items():
            group = heads[heads["head_class"] == name]
            edge = MIXED_EDGE if name == "mixed" else "white"
            axes.scatter(
                group["positional_score"],
                group["symbolic_score"],
                s=16,
                color=CLASS_COLOURS[name],
                marker=CLASS_MARKERS[name],
                alpha=_strength(group) if len(group) else None,
                linewidths=0.4,
                edgecolors=edge,
                label=label,
                clip_on=False,
                zorder=3,
            )
            words = label.replace(" at their layer", "\nat their layer")
            look: dict[str, Any] = {
                "color": CLASS_COLOURS[name],
                "markeredgecolor": edge,
                "markeredgewidth": 0.4,
            }
            handles.append(
                Line2D([], [], linestyle="", marker=CLASS_MARKERS[name], markersize=5, label=words, **look)
            )
        square(axes)
        r = "undefined" if summary.correlation is None else f"{summary.correlation:.2f}"
        axes.set_title(
            f"{token_text(profile.name, 34)}\n{summary.heads - summary.missing} heads, r = {r}", loc="left"
        )
        stakes = textwrap.fill(f"{summary.stake_words} (faded)", 50)
        under(axes, handles=handles, title=stakes, alignment="left")
    return OneSquare().fit(caption(figure, measured(profile, tau)))


def _strength(heads: pd.DataFrame) -> np.ndarray:
    return np.where(heads["little_at_stake"].fillna(False).astype(bool), PALE, FULL)


def square(axes: Axes) -> None:
    """Both scores from 0 to 1, the same length either way."""
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axes.set(xlabel="positional score", ylabel="symbolic score")


def corners(axes: Axes, gamma: float) -> None:
    """The pure regions, lightly shaded."""
    for name, corner in pure_regions(gamma).items():
        axes.add_patch(
            Rectangle(corner, gamma, gamma, color=CLASS_COLOURS[name], alpha=0.12, linewidth=0, zorder=1)
        )


def corner_words(axes: Axes, gamma: float, *, carried: bool) -> None:
    """What a head in each corner does, beside the shaded square and away from where heads mostly lie."""
    apart = gamma + 0.02
    for words, place, across, along in (
        ("stays put", (1 - apart, 0), "right", "bottom"),
        ("follows\nthe fact" + ("\nor is carried" if carried else ""), (0, 1 - apart), "left", "top"),
        ("looks at\neverything", (1 - apart, 1), "right", "top"),
    ):
        axes.annotate(words, place, ha=across, va=along, fontsize=SMALLEST, color=INK, style="italic", zorder=4)


def density(axes: Axes, heads: pd.DataFrame) -> None:
    """Where heads lie, as areas that hold given shares of them."""
    known = heads[SCORES].dropna().to_numpy(dtype=float)
    if not len(known):
        return
    bins, reach = 104, (-0.02, 1.02)
    counts, edges, _ = np.histogram2d(known[:, 0], known[:, 1], bins=bins, range=(reach, reach))
    smooth = gaussian_filter(counts, 3.0, mode="nearest")
    ordered = np.sort(smooth.ravel())[::-1]
    held = ordered.cumsum() / ordered.sum()
    low, high = (float(ordered[np.searchsorted(held, share)]) for share in NULL_SHARES)
    high = max(high, low * (1 + 1e-6))  # levels have to rise
    levels = [low, high, max(float(ordered[0]), high * (1 + 1e-6))]
    middles = (edges[1:] + edges[:-1]) / 2
    axes.contourf(middles, middles, smooth.T, levels=levels, colors=NULL_SHADES, zorder=0)
