"""Heads by frequency: scores and logit norm per plane, the path of a head, the grid of all heads."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from rotoscope.experiments.profile.plane import measured
from rotoscope.experiments.profile.result import Profile
from rotoscope.plotting.palette import INK, NULL, QUERY, SCORE_COLOURS
from rotoscope.plotting.style import (
    COLUMN_WIDTH,
    LINES,
    TEXT_WIDTH,
    caption,
    drawing,
    every,
    legend_for,
    median_band,
    under,
)


def frequency_summary(profile: Profile, tau: float | None = None, ax: Any = None) -> Figure:
    """Both scores against frequency id: median over all heads and middle half, with the null."""
    real, null = _at(profile, tau)
    with drawing(TEXT_WIDTH, 3.0, 1, 2, ax=ax, sharey=True) as (figure, axes):
        for panel, (score, hue) in zip(axes, SCORE_COLOURS.items(), strict=True):
            for rows, colour, label in ((null, NULL, f"{profile.null_name} null"), (real, hue, profile.name)):
                if len(rows):
                    planes = rows[rows["frequency_id"] > 0]
                    median_band(panel, planes, "frequency_id", f"{score}_score", colour, label)
            panel.set(xlabel="frequency id (1 = fastest)", ylim=(-0.02, 1.02))
            panel.set_title(f"{score} score, one frequency kept", loc="left")
            under(panel, ncols=2)
        axes[0].set_ylabel("median over heads, middle half")
    return figure if ax is not None else caption(figure, measured(profile, tau))


def frequency_profiles(
    profile: Profile, heads: dict[str, tuple[int, int]], tau: float | None = None, ax: Any = None
) -> Figure:
    """Scores against frequency id for single heads (P1 Fig. 1), over the null's middle 90 % there."""
    real, null = _at(profile, tau)
    with drawing(TEXT_WIDTH, 2.9, 1, len(heads), ax=ax, sharey=True) as (figure, axes):
        for panel, (title, (layer, head)) in zip(axes, heads.items(), strict=True):
            rows = _rows_of(real, layer, head)
            for score, hue in SCORE_COLOURS.items():
                if len(null):
                    band = null.groupby("frequency_id")[f"{score}_score"].quantile([0.05, 0.95]).unstack()
                    panel.fill_between(band.index, band[0.05], band[0.95], color=hue, alpha=0.13, linewidth=0)
                line = rows["frequency_id"], rows[f"{score}_score"]
                panel.plot(*line, color=hue, linewidth=1.5, label=f"{score} score")
            panel.set(xlabel="frequency id (1 = fastest)", ylim=(-0.03, 1.03))
            panel.set_title(f"{layer}:{head}, {title}", loc="left")
        axes[0].set_ylabel("score with one frequency kept")
        legend_for(figure, axes[0], own=ax is None)
    note = "; bands: middle 90 % of the null's heads" if len(null) else ""
    return figure if ax is not None else caption(figure, measured(profile, tau) + note)


def frequency_norms(
    profile: Profile, heads: dict[str, tuple[int, int]], tau: float | None = None, ax: Any = None
) -> Figure:
    """Which planes matter: L2 norm over keys of each plane's logits."""
    real, _ = _at(profile, tau)
    with drawing(TEXT_WIDTH, 3.3, 1, 2, ax=ax) as (figure, (left, right)):
        grid = real.pivot_table(index="layer", columns="frequency_id", values="logit_norm")
        drawn = left.imshow(np.log10(grid.to_numpy() + 1e-3), aspect="auto", origin="lower", cmap="cividis")
        ids = grid.columns.to_numpy()
        ticks = range(0, len(ids), max(1, len(ids) // 8))
        left.set_xticks(list(ticks), [str(ids[k]) for k in ticks])
        left.set(xlabel="frequency id (1 = fastest)", ylabel="layer")
        left.set_title("logit norm, mean over heads", loc="left")
        figure.colorbar(drawn, ax=left, label="log10 of the norm", pad=0.02)
        for style, (title, (layer, head)) in zip(cycle(LINES), heads.items(), strict=False):
            rows, label = _rows_of(real, layer, head), f"{layer}:{head}, {title}"
            right.plot(rows["frequency_id"], rows["logit_norm"], style, color=INK, label=label)
        right.set(xlabel="frequency id (1 = fastest)", ylabel="L2 norm over keys")
        right.set_title("single heads", loc="left")
        under(right)
    return figure if ax is not None else caption(figure, measured(profile, tau))


def head_paths(
    profile: Profile, heads: dict[str, tuple[int, int]], tau: float | None = None, ax: Any = None
) -> Figure:
    """A head's path through the plane as single frequencies are kept, fastest to slowest."""
    real, _ = _at(profile, tau)
    all_frequencies = profile.at(tau)
    with drawing(TEXT_WIDTH, 3.0, 1, len(heads), ax=ax, sharey=True) as (figure, axes):
        for panel, (title, (layer, head)) in zip(axes, heads.items(), strict=True):
            rows = _rows_of(real[real["frequency_id"] > 0], layer, head)
            path = rows["positional_score"], rows["symbolic_score"]
            panel.plot(*path, color="#BBBBBB", linewidth=0.8, zorder=1)
            drawn = panel.scatter(*path, c=rows["frequency_id"], cmap="cividis", s=18, zorder=2)
            own = _rows_of(all_frequencies, layer, head)
            panel.scatter(own["positional_score"], own["symbolic_score"], marker="*", s=130, color=QUERY,
                       edgecolors="white", linewidths=0.6, zorder=3, label="all frequencies")  # fmt: skip
            panel.set(xlim=(-0.05, 1.05), ylim=(-0.05, 1.05), aspect="equal", xlabel="positional score")
            panel.set_title(f"{layer}:{head}, {title}", loc="left")
        axes[0].set_ylabel("symbolic score")
        legend_for(figure, axes[0], own=ax is None)
        figure.colorbar(drawn, ax=list(axes), label="frequency id (1 = fastest)", pad=0.01, shrink=0.8)
    return figure if ax is not None else caption(figure, measured(profile, tau))


def frequency_grid(profile: Profile, tau: float | None = None, ax: Any = None) -> Figure:
    """Profiles of all heads, layers upward (P1 Fig. 5): orange positional, blue symbolic."""
    real, _ = _at(profile, tau)
    layers, heads = sorted(real["layer"].unique()), sorted(real["head"].unique())
    row_of, column_of = ({value: k for k, value in enumerate(values)} for values in (layers, heads))
    last = int(real["frequency_id"].max())
    lines: dict[str, list[np.ndarray]] = {score: [] for score in SCORE_COLOURS}
    for (layer, head), rows in real.groupby(["layer", "head"]):
        x = column_of[head] + 0.06 + 0.88 * rows["frequency_id"].to_numpy() / max(last, 1)
        for score in lines:
            y = row_of[layer] + 0.1 + 0.8 * rows[f"{score}_score"].to_numpy()
            lines[score].append(np.column_stack((x, y)))
    width = TEXT_WIDTH if len(heads) > 2 else COLUMN_WIDTH
    tall = min(max(1.4, 0.27 * len(layers)), 7.6)
    with drawing(width, tall + 1.3, ax=ax) as (figure, [panel]):
        for score, hue in SCORE_COLOURS.items():
            panel.add_collection(
                LineCollection(lines[score], colors=hue, linewidths=0.8, label=f"{score} score")
            )
        for k in range(len(heads) + 1):
            panel.axvline(k, color="#DDDDDD", linewidth=0.6, zorder=0)
        for k in range(len(layers) + 1):
            panel.axhline(k, color="#DDDDDD", linewidth=0.6, zorder=0)
        panel.set(xlim=(0, len(heads)), ylim=(0, len(layers)), xlabel="head", ylabel="layer")
        for setting, names, inches in (
            (panel.set_xticks, heads, width - 0.6),
            (panel.set_yticks, layers, tall),
        ):
            step = every(len(names), inches, 0.2)
            setting(np.arange(len(names))[::step] + 0.5, [str(name) for name in names[::step]])
        panel.tick_params(length=0)
        legend_for(figure, panel, own=ax is None)
    note = f"; in every cell scores (0 to 1 upward) against frequency id (1 to {last} rightward)"
    return figure if ax is not None else caption(figure, measured(profile, tau) + note)


def _at(profile: Profile, tau: float | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    value, real, null = profile.tau_or_first(tau), profile.frequencies, profile.null_frequencies
    return real[real["tau"] == value], null[null["tau"] == value] if len(null) else null


def _rows_of(table: pd.DataFrame, layer: int, head: int) -> pd.DataFrame:
    return table[(table["layer"] == layer) & (table["head"] == head)]
