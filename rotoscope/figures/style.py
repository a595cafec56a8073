"""One look for every figure of the project."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from rotoscope.results.folder import replace_file

__all__ = ["CLASS_COLOURS", "caption", "colour_map", "new_figure", "save_figure"]

# From the Okabe-Ito palette, which stays apart under the common kinds of colour blindness.
POSITIONAL, SYMBOLIC, UNIFORM, MIXED = "#D55E00", "#0072B2", "#8A8A8A", "#CC79A7"
NULL = "#9A9A9A"
DPI = 200
CLASS_COLOURS = {"positional": POSITIONAL, "symbolic": SYMBOLIC, "uniform": UNIFORM, "mixed": MIXED}
CLASS_MARKERS = {"positional": "s", "symbolic": "o", "uniform": "D", "mixed": "^"}

SETTINGS = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
}


def new_figure(width: float, height: float, **layout: Any) -> Figure:
    """A figure of its own: nothing is shown, no global state is touched."""
    with styled():
        return Figure(figsize=(width, height), layout="constrained", **layout)


def styled() -> Any:
    """Use as `with styled():` around drawing."""
    return mpl.rc_context(SETTINGS)


def colour_map(hue: str) -> LinearSegmentedColormap:
    """White to one hue, for a score from 0 to 1."""
    return LinearSegmentedColormap.from_list(f"white-{hue}", ["#FFFFFF", hue])


def caption(figure: Figure, text: str) -> None:
    """What was measured, under the picture, where constrained layout makes room for it."""
    figure.supxlabel(text, fontsize=7.5, color="#444444", x=0.01, ha="left", wrap=True)


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Write a figure as vector PDF and as PNG; returns the files."""
    stem = Path(path).with_suffix("")
    files = []
    for suffix in (".pdf", ".png"):
        file = stem.with_name(stem.name + suffix)
        with styled():
            replace_file(file, partial(figure.savefig, format=suffix[1:], dpi=DPI))
        files.append(file)
    return files
