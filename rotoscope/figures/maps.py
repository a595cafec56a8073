"""Layer x head maps: both scores, and the class, of every head where it stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from rotoscope.figures.style import (
    TEXT_WIDTH,
    blank,
    caption,
    class_patches,
    colour_map,
    drawing,
    every,
    top_legend,
)
from rotoscope.figures.words import class_labels, measured
from rotoscope.palette import CLASS_COLOURS, SCORE_COLOURS
from rotoscope.results.profile import Profile


def layer_map(profile: Profile, tau: float | None = None) -> Figure:
    """Positional score, symbolic score and class of every head, layers upward (P1 Fig. 1)."""
    heads = profile.at(tau)
    layers, width = heads["layer"].max() + 1, heads["head"].max() + 1
    tall = min(max(1.6, 0.14 * layers), 7.0)
    with drawing(TEXT_WIDTH, tall + 1.4, 1, 3, sharey=True) as (figure, (left, middle, right)):
        upward: dict[str, Any] = {"aspect": "auto", "origin": "lower"}
        for axes, (score, hue) in zip((left, middle), SCORE_COLOURS.items(), strict=True):
            grid = _grid(heads, f"{score}_score")
            drawn = axes.imshow(grid, cmap=colour_map(hue), vmin=0, vmax=1, **upward)
            axes.set_title(f"{score} score", loc="left")
            figure.colorbar(drawn, ax=axes, shrink=0.7, pad=0.02)
        names = list(CLASS_COLOURS)
        numbers = heads.assign(number=heads["head_class"].map({name: k for k, name in enumerate(names)}))
        colours = ListedColormap(list(CLASS_COLOURS.values()))
        right.imshow(_grid(numbers, "number"), cmap=colours, vmin=-0.5, vmax=len(names) - 0.5, **upward)
        right.set_title("class", loc="left")
        words = class_labels("input_class" in heads)
        top_legend(figure, class_patches(words), ncols=5)
        for axes in (left, middle, right):
            _ticks(axes, int(layers), int(width), tall)
        left.set_ylabel("layer")
    return caption(figure, measured(profile, tau))


def _grid(heads: pd.DataFrame, column: str) -> np.ndarray:
    """[layers, heads]; what is missing stays empty."""
    grid: np.ndarray = heads.pivot(index="layer", columns="head", values=column).to_numpy(dtype=float)
    return grid


def _ticks(axes: Axes, layers: int, heads: int, tall: float) -> None:
    axes.set_xlabel("head")
    axes.set_xticks(range(0, heads, max(1, heads // 8)))
    axes.set_yticks(range(0, layers, every(layers, tall)))
    blank(axes)
