"""The caption under a figure: what was measured, in one line that fits any of them."""

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

from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.profile.result import Profile
from rotoscope.plotting.palette import CLASS_COLOURS, CLASS_MARKERS, INK, MIXED_EDGE
from rotoscope.plotting.style import (
    COLUMN_WIDTH,
    SMALLEST,
    OneSquare,
    beside,
    caption,
    drawing,
    panel_width,
    token_text,
    under,
)
from rotoscope.scores.classes import AT_ITS_LAYER, CLASSES, pure_regions
from rotoscope.stats.aggregate import SCORES
from rotoscope.stats.statistics import class_words


def measured(run: Profile | SwapDepths, tau: float | None = None) -> str:
    """Model, task, sizes and temperature, what was swapped, and how layers and heads are counted."""
    settings = run.run.settings
    task = settings["task_settings"]
    sizes = [f"{task[key]} {key}" for key in ("pairs", "length", "tokens") if key in task]
    if "prefix" in task:
        sizes.append("no prefix" if task["prefix"] == "none" else f"{task['prefix']} prefix")
    about = ", ".join([settings["task"], *sizes])
    tolerances = f"τ = {run.taus[0] if tau is None else tau:g}, γ = {run.gamma:g}"
    return (
        f"{run.name}; {about}; {settings['prompts']} prompts; {tolerances}; {swapped_words(run)}\n"
        f"{null_words(run)}; layers and heads are counted from 0, frequency ids from 1 (fastest)"
    )


def swapped_words(run: Profile | SwapDepths) -> str:
    """Where blocks changed places beside each head's own layer, and in how many swaps of a prompt."""
    settings = run.run.settings
    if isinstance(run, SwapDepths):
        return f"at most {settings['swaps']} swaps of a prompt at every depth"
    if "input_prompts" in run.tables:
        return f"{settings['input_swaps']} swaps of a prompt itself"
    return "the prompt itself was not permuted"


def class_labels(permuted: bool) -> dict[str, str]:
    """The classes that could be told apart, each in words."""
    return {name: name if permuted else class_words(name) for name in (CLASSES if permuted else AT_ITS_LAYER)}


def null_words(run: Profile | SwapDepths) -> str:
    """Which null is drawn, and how often it was drawn."""
    if run.null_name is None:
        return "no null"
    draws = run.null_prompts["draw"].nunique() if isinstance(run, SwapDepths) else run.nulls["draw"].nunique()
    return f"null: {run.null_name}, {draws} draw{'s' if draws > 1 else ''}"


# The positional-symbolic plane: one point per head.


NULL_SHADES = ("#E4E4E4", "#C6C6C6")
NULL_SHARES = (0.9, 0.5)
"""Parts of the null's heads that lie within each shade."""
PALE, FULL = 0.3, 0.9
"""How strongly heads with little and with something at stake are drawn."""


WIDE = COLUMN_WIDTH + OneSquare.BESIDE
"""Inches from which on a legend has room beside the plane."""


def plane(profile: Profile, tau: float | None = None, ax: Any = None, *, width: float = WIDE) -> Figure:
    """Every head by its two scores (P1 Fig. 1): (1, 0) positional, (0, 1) symbolic, (1, 1) uniform.

    Heads with little at stake are faded; the null is a grey area. With `ax`, matplotlib axes of your own are drawn into. In a
    figure of less than 5.2 inches `width`, as in a paper's column of 3.3, the legend stands under the plane.
    """
    heads, summary = profile.at(tau), profile.summary(tau)
    handles: list[Patch | Line2D] = []
    with drawing(width, 6.0, ax=ax) as (figure, [axes]):
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
            words = textwrap.fill(label, 26)
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
        is_wide = (ax is None and width >= WIDE) or (ax is not None and panel_width(axes) >= WIDE)
        stakes = textwrap.fill(f"{summary.stake_words} (faded)", 30 if is_wide else 50)
        (beside if is_wide else under)(axes, handles=handles, title=stakes, alignment="left")
    return figure if ax is not None else OneSquare(is_wide).fit(caption(figure, measured(profile, tau)))


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
