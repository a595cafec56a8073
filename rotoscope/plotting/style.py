"""One look for every figure of the project."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.layout_engine import LayoutEngine
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FixedFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from rotoscope.errors import RotoscopeError
from rotoscope.plotting.palette import CLASS_COLOURS, POSITIONAL, SYMBOLIC
from rotoscope.runs.files import replace_file

DPI = 200
COLUMN_WIDTH, TEXT_WIDTH = 3.3, 7.0
"""Widths of a column and of a page of text, in inches: what figures are drawn for."""
SMALLEST = 7.0
"""The smallest letters of a figure, in points."""
FORMATS = ("pdf", "png")
KNOWN_FORMATS = ("pdf", "svg", "png")
FONT = "DejaVu Sans"
SETTINGS = {
    "font.family": FONT,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "legend.fontsize": SMALLEST,
    "legend.title_fontsize": SMALLEST,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "none",
}
LINES = ("-", "--", ":", "-.")
LETTERS = 18
"""Of the smallest letters so many stand in an inch."""
FOOTER = "footer"
"""By this name the line that says what was measured is found, to be left out of a paper's figure."""


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
        if text not in numbers:
            text.set_parse_math(False)  # type: ignore[attr-defined]


@contextmanager
def drawing_many(
    panels: int, high: float | None, margin: float, names: tuple[str, str]
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Panels of one size in rows of three or four, whichever leaves fewer places empty, with names for both axes.

    Without a height they are square, with titles of two lines.
    """
    columns = panels if panels < 4 else min((4, 3), key=lambda count: -panels % count)
    rows, width = -(-panels // columns), TEXT_WIDTH if columns > 1 else COLUMN_WIDTH
    high = (width - 0.9) / columns + 0.4 if high is None else high
    with drawing_grid(width, high * rows + margin, rows, columns, sharex=True, sharey=True) as (figure, axes):
        for empty in axes.flat[panels:]:
            empty.remove()
        for lowest in axes.flat[panels - columns : panels]:
            lowest.tick_params(labelbottom=True)
            lowest.set_xlabel(names[0])
        for leftmost in axes[:, 0]:
            leftmost.set_ylabel(names[1])
        yield figure, list(axes.flat[:panels])


@contextmanager
def drawing(
    width: float, height: float, rows: int = 1, columns: int = 1, ax: Any = None, **sharing: Any
) -> Iterator[tuple[Figure, np.ndarray]]:
    """A figure and its axes in one row or one column, or the axes of somebody's own figure."""
    if ax is not None:
        axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
        if len(axes) != rows * columns or not all(isinstance(one, Axes) for one in axes):
            raise RotoscopeError(
                f"this figure has {rows * columns} panel(s): ax must be as many matplotlib axes"
            )
        with styled():
            yield axes[0].figure, axes
        return
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
    top_legend(figure, handles, labels, **look)


def panel_width(axes: Axes) -> float:
    """Inches of a figure that one of its panels has for itself."""
    figure: Any = axes.get_figure()
    return float(axes.get_position().width * figure.get_figwidth())


def legend_for(figure: Figure, axes: Axes, *, own: bool) -> None:
    """The same; within the panel where the figure is somebody else's."""
    if own:
        shared_legend(figure, axes)
    else:
        axes.legend()


def beside(axes: Axes, **look: Any) -> None:
    """The legend of one panel to the right of it."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.04, 1), borderaxespad=0, **look)


def top_legend(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str] | None = None, ncols: int = 4, **look: Any
) -> None:
    """A legend above all panels, in as many columns as fit."""
    labels = [handle.get_label() for handle in handles] if labels is None else labels
    for columns in range(ncols, 0, -1):
        legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, **look)
        if columns == 1 or legend.get_window_extent().width < figure.bbox.width:
            return
        legend.remove()


def under(axes: Axes, **look: Any) -> None:
    """The legend of one panel under it, where numbers and the name of the axis leave off, whatever the panel's size."""
    figure: Any = axes.get_figure()
    down = ScaledTranslation(0, -0.38, figure.dpi_scale_trans)
    look = {"loc": "upper left", "bbox_to_anchor": (0, 0), "borderaxespad": 0, **look}
    axes.legend(bbox_transform=axes.transAxes + down, **look)


def axis_break(axes: Axes, at: float) -> None:
    """Two strokes across the lower axis: left and right of them it is divided differently."""
    frame = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}
    look: dict[str, Any] = {"ha": "center", "va": "center", "bbox": frame, "zorder": 5}
    axes.text(at, 0, "//", transform=axes.get_xaxis_transform(), fontsize=SMALLEST, **look)


def every(count: int, inches: float, each: float = 0.13) -> int:
    """Of so many ticks in a row, how far apart those are that have room for a label."""
    return max(1, math.ceil(count * each / inches))


@cache
def _letters() -> frozenset[int]:
    """What the font of the figures can write."""
    return frozenset(get_font(findfont(FONT)).get_charmap())


def token_text(token: str, longest: int = 9) -> str:
    """A token on one short line: white space as signs, and what the font cannot write as boxes."""
    shown = token.strip() or token.replace(" ", "␣")
    shown = shown.replace("\n", "⏎").replace("\t", "⇥")
    shown = "".join(one if ord(one) in _letters() else "□" for one in shown)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def shade(hue: str, k: int, count: int) -> tuple[float, float, float]:
    """The k-th of so many tints of a hue, the last the hue itself."""
    light = 0.6 * (1 - (k + 1) / count)
    return tuple(channel + (1 - channel) * light for channel in to_rgb(hue))  # type: ignore[return-value]


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
    axes.xaxis.set_major_locator(MaxNLocator(3, symmetric=True))
    axes.yaxis.set_major_locator(MaxNLocator(3, symmetric=True))


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
    # Lines are broken here: matplotlib's own breaks come out otherwise at every resolution.
    letters = int(LETTERS * figure.get_figwidth())
    lines = "\n".join(textwrap.fill(line, letters) for line in text.splitlines())
    look = {"fontsize": SMALLEST, "color": "#444444", "x": 0.01, "ha": "left", "gid": FOOTER}
    figure.supxlabel(lines, **look, parse_math=False)
    return figure


class OneSquare(LayoutEngine):  # type: ignore[misc]
    """One square panel over the whole width with the legend under it, or `BESIDE` inches less wide with the legend there, and
    the footer under that: no room is left over.

    Constrained layout leaves room above and below a square, and lets what stands under it run into the footer.
    """

    _adjust_compatible, _colorbar_gridspec = True, False
    LEFT, RIGHT, TITLE, NUMBERS = 0.48, 0.1, 0.36, 0.46
    """Inches beside, above and directly under the panel."""
    BESIDE = 1.9
    """Inches for a legend beside it."""

    def __init__(self, legend_beside: bool = False) -> None:
        super().__init__()
        self.beside = legend_beside

    def _side(self, figure: Figure) -> float:
        return float(figure.get_figwidth()) - self.LEFT - self.RIGHT - self.beside * self.BESIDE

    def execute(self, fig: Figure) -> None:
        width, height = fig.get_size_inches()
        side, below = self._side(fig), self._below(fig)
        fig.axes[0].set_position((self.LEFT / width, below / height, side / width, side / height))

    def fit(self, figure: Figure) -> Figure:
        """The figure as high as all this needs."""
        figure.set_layout_engine(self)
        figure.set_figheight(self._side(figure) + self.TITLE + self._below(figure))
        return figure

    def _below(self, figure: Figure) -> float:
        shown = [text for text in figure.texts if text.get_visible()]
        legend = [] if self.beside else [figure.axes[0].get_legend()]
        return self.NUMBERS + _height(figure, *legend, *shown)


def _height(figure: Figure, *parts: Any) -> float:
    """Of some texts and legends together, in inches; texts would remember the resolution they were last drawn at."""
    renderer = figure._get_renderer()  # type: ignore[attr-defined]
    return float(sum(one.get_window_extent(renderer).height for one in parts)) / figure.dpi


def save(
    figure: Figure, path: str | Path, *, footer: bool = True, formats: Sequence[str] | None = None
) -> list[Path]:
    """Write a figure, as vector PDF and as PNG if nothing else is said; returns the files.

    `formats` are some of pdf, svg and png. `footer=False` leaves out the lines under the figure that say what was
    measured and makes the figure shorter by them: in a paper the caption says it.
    """
    chosen = FORMATS if formats is None else tuple(formats)
    unknown = [name for name in chosen if name not in KNOWN_FORMATS]
    if unknown or not chosen:
        found = repr(unknown[0]) if unknown else "none"
        raise RotoscopeError(
            f"found {found} as format of a figure, expected some of {', '.join(KNOWN_FORMATS)}"
        )
    stem = Path(path).with_suffix("")
    files = [stem.with_name(f"{stem.name}.{name}") for name in chosen]
    with _footer(figure, footer):
        for file, name in zip(files, chosen, strict=True):
            # Drawn first, then written: matplotlib hides that a disk is full behind errors of its own.
            drawn = BytesIO()
            with styled():
                figure.savefig(drawn, format=name, dpi=DPI)
            content = drawn.getvalue()
            replace_file(file, lambda scratch, content=content: scratch.write_bytes(content))  # type: ignore[misc]
    return files


@contextmanager
def _footer(figure: Figure, shown: bool) -> Iterator[None]:
    """The figure with its footer or, shorter, without, and afterwards as it was."""
    hidden = [] if shown else [text for text in figure.texts if text.get_gid() == FOOTER]
    height = figure.get_figheight()
    figure.set_figheight(height - _height(figure, *hidden))
    for text in hidden:
        text.set(visible=False, in_layout=False)
    try:
        yield
    finally:
        figure.set_figheight(height)
        for text in hidden:
            text.set(visible=True, in_layout=True)


def named_figures(run: Any, *figures: Callable[[Any], Figure]) -> Iterator[tuple[str, Figure]]:
    """Figures of a run, each with its function's name for its file."""
    for draw in figures:
        yield draw.__name__, draw(run)
