"""One look for every figure of the project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter

from rotoscope.palette import CLASS_COLOURS, POSITIONAL, SYMBOLIC
from rotoscope.results.files import replace_file

DPI = 200
FORMATS = ("pdf", "png")
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
LINES = ("-", "--", ":", "-.")
CAPTION: dict[str, Any] = {"fontsize": 7.5, "color": "#444444", "x": 0.01, "ha": "left"}


@contextmanager
def drawing_grid(
    width: float, height: float, rows: int = 1, columns: int = 1, **sharing: Any
) -> Iterator[tuple[Figure, np.ndarray]]:
    """A figure of its own and its axes [rows, columns]: nothing is shown, no global state is touched."""
    with styled():
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **sharing)
        _no_formulas(figure)


def _no_formulas(figure: Figure) -> None:
    """A dollar sign in a name or a token is a dollar sign; formulas are left to matplotlib's own numbers on axes."""
    numbers: set[Any] = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        ticks = list(axis.get_minor_ticks())
        if not isinstance(axis.get_major_formatter(), FixedFormatter):
            ticks += axis.get_major_ticks()
        numbers |= {axis.get_offset_text(), *(label for tick in ticks for label in (tick.label1, tick.label2))}
    for text in figure.findobj(Text):
        if text not in numbers and not text.get_wrap():  # type: ignore[attr-defined]
            text.set_parse_math(False)  # type: ignore[attr-defined]


@contextmanager
def drawing_many(
    panels: int, each: tuple[float, float], margin: tuple[float, float]
) -> Iterator[tuple[Figure, np.ndarray]]:
    """A figure of panels of one size, four in a row; places that are left over stay empty."""
    columns = min(4, panels)
    rows = -(-panels // columns)
    width, height = (one * count + more for one, count, more in zip(each, (columns, rows), margin, strict=True))
    with drawing_grid(width, height, rows, columns, sharex=True, sharey=True) as (figure, axes):
        for empty in axes.flat[panels:]:
            empty.set_visible(False)
        yield figure, axes


@contextmanager
def drawing(
    width: float, height: float, rows: int = 1, columns: int = 1, **sharing: Any
) -> Iterator[tuple[Figure, np.ndarray]]:
    """A figure and its axes in one row or one column."""
    with drawing_grid(width, height, rows, columns, **sharing) as (figure, axes):
        yield figure, axes.ravel()


def styled() -> Any:
    """Use as `with styled():` around drawing."""
    return mpl.rc_context(SETTINGS)


def blank(axes: Axes) -> None:
    """No ticks, and no frame where there are labels."""
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def shared_legend(figure: Figure, axes: Axes, **look: Any) -> None:
    """One legend for all panels, outside them, of what is drawn in one of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, **{"loc": "outside upper center", "fontsize": 7.5, **look})


def class_patches(words: Mapping[str, str]) -> list[Patch]:
    """What the colours of some classes mean, in words, for a legend."""
    return [Patch(color=CLASS_COLOURS[name], label=label) for name, label in words.items()]


def median_band(axes: Axes, rows: pd.DataFrame, by: str, column: str, colour: str, label: str) -> None:
    """Median and middle half of a column."""
    spread = rows.groupby(by)[column].quantile([0.25, 0.5, 0.75]).unstack()
    axes.fill_between(spread.index, spread[0.25], spread[0.75], color=colour, alpha=0.2, linewidth=0)
    axes.plot(spread.index, spread[0.5], color=colour, linewidth=1.6, label=label)


def around_origin(axes: Axes, reach: float) -> None:
    """A square of the plane of one frequency, with its axes."""
    axes.axhline(0, color="#DDDDDD", linewidth=0.6, zorder=0)
    axes.axvline(0, color="#DDDDDD", linewidth=0.6, zorder=0)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.tick_params(labelsize=6.5)


def plain_steps(axes: Axes, ticks: Iterable[int], **look: Any) -> None:
    """Whole numbers along a logarithmic axis, and no others."""
    shown = sorted({int(tick) for tick in ticks})
    axes.set_xscale("log")
    axes.set_xticks(shown, [f"{tick:,}" for tick in shown], **look)
    axes.minorticks_off()


def colour_map(hue: str) -> LinearSegmentedColormap:
    """White to one hue, for a score from 0 to 1."""
    return LinearSegmentedColormap.from_list(f"white-{hue}", ["#FFFFFF", hue])


def diverging() -> LinearSegmentedColormap:
    """From symbolic over pale to positional, for the difference of the two scores."""
    return LinearSegmentedColormap.from_list("symbolic-positional", [SYMBOLIC, "#F4F1EC", POSITIONAL])


def caption(figure: Figure, text: str) -> Figure:
    """The figure with what was measured under it, where constrained layout makes room for it."""
    # Where lines are wrapped, matplotlib takes dollar signs for formulas whatever it is told, unless they are escaped.
    figure.supxlabel(text.replace("$", r"\$"), **CAPTION, wrap=True)
    return figure


def headline(figure: Figure, text: str) -> Figure:
    """The same above the picture, where a legend stands under it."""
    figure.suptitle(text, **CAPTION, parse_math=False)
    return figure


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Write a figure as vector PDF and as PNG; returns the files."""
    stem = Path(path).with_suffix("")
    files = [stem.with_name(f"{stem.name}.{name}") for name in FORMATS]
    for file, name in zip(files, FORMATS, strict=True):
        drawn = (
            BytesIO()
        )  # drawn first, then written: matplotlib hides that a disk is full behind errors of its own
        with styled():
            figure.savefig(drawn, format=name, dpi=DPI)
        content = drawn.getvalue()
        replace_file(file, lambda scratch, content=content: scratch.write_bytes(content))  # type: ignore[misc]
    return files
