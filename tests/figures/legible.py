"""What a printer would send back: text that is cut, too small or written over other text, and empty panels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from rotoscope.plotting.palette import MIXED
from rotoscope.plotting.style import SMALLEST, TEXT_WIDTH


def faults(figure: Figure) -> list[str]:
    """Everything that keeps a figure out of a paper, in words."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    found = [f"{figure.get_figwidth():.2f} in wide"] if figure.get_figwidth() > TEXT_WIDTH else []
    panels = [axes for axes in figure.axes if axes.get_visible()]
    ticks = [labels for axes in panels for axis in (axes.xaxis, axes.yaxis) for labels in _ticks(axis)]
    legends = [one for legend in figure.legends for one in (legend.get_title(), *legend.get_texts())]
    words = [text for text in (*figure.texts, *legends) if _written(text)]
    words += [text for axes in panels for text in _texts(axes)]
    for text in (*words, *(label for labels in ticks for label in labels)):
        if text.get_fontsize() < SMALLEST:
            found.append(f"{text.get_text()!r} is {text.get_fontsize():.1f} pt")
        if not _inside(text.get_window_extent(), figure.bbox):
            found.append(f"{text.get_text()!r} is cut")
    for labels in ticks:
        found += _overlapping([(repr(label.get_text()), label.get_window_extent()) for label in labels])
    found += _overlapping([*_furniture(figure, panels)])
    for k, axes in enumerate(panels):
        found += [f"panel {k} {what}" for what in _drawn_wrong(axes)]
    return found


def _drawn_wrong(axes: Axes) -> Iterator[str]:
    if not (axes.has_data() or axes.texts):
        yield "is empty"
    if any(to_hex(line.get_color()).upper() == MIXED for line in axes.lines if line.get_linestyle() != "None"):
        yield "has a line in the pale colour of mixed heads"
    if "layer" in axes.get_ylabel() and axes.yaxis_inverted():
        yield "has layer 0 above"


def _written(text: Text) -> bool:
    return text.get_visible() and bool(text.get_text().strip())


def _texts(axes: Axes) -> Iterator[Text]:
    """Titles, labels, annotations and legends; of an axis that is switched off only the first and third."""
    legend = axes.get_legend()
    yield from filter(_written, (axes.title, axes._left_title, axes._right_title, *axes.texts))  # type: ignore[attr-defined]
    if axes.axison:
        yield from filter(_written, (axes.xaxis.label, axes.yaxis.label))
    if legend is not None:
        yield from filter(_written, (legend.get_title(), *legend.get_texts()))


def _ticks(axis: Axis) -> Iterator[list[Text]]:
    """The labels that are drawn: ticks outside what is shown are not."""
    if not axis.get_visible() or not axis.axes.axison:
        return
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    shown = [tick for tick in axis.get_major_ticks() if low - slack <= tick.get_loc() <= high + slack]
    yield [label for tick in shown for label in (tick.label1, tick.label2) if _written(label)]


def _furniture(figure: Figure, panels: list[Axes]) -> Iterator[tuple[str, Bbox]]:
    """Titles, labels of axes, rows of tick labels, legends outside the axes and the footer: none may lie on another."""
    for text in (figure._suptitle, figure._supxlabel):  # type: ignore[attr-defined]
        if text is not None and _written(text):
            yield "the footer", text.get_window_extent()
    for k, axes in enumerate(panels):
        for text in filter(_written, (axes.title, axes._left_title, axes._right_title)):  # type: ignore[attr-defined]
            yield f"title {text.get_text()!r}", text.get_window_extent()
        for axis in (axes.xaxis, axes.yaxis):
            if axes.axison and _written(axis.label):
                yield f"label {axis.label.get_text()!r} of panel {k}", axis.label.get_window_extent()
            for labels in _ticks(axis):
                for label in labels:
                    yield f"tick {label.get_text()!r} of panel {k}", label.get_window_extent()
        legend = axes.get_legend()
        if legend is not None:
            yield f"legend of panel {k}", legend.get_window_extent()
    for legend in figure.legends:
        yield "legend of the figure", legend.get_window_extent()


def _inside(box: Bbox, canvas: Bbox) -> bool:
    ends = np.array([box.x0 - canvas.x0, box.y0 - canvas.y0, canvas.x1 - box.x1, canvas.y1 - box.y1])
    return bool((ends > -1).all())


def _overlapping(boxes: list[tuple[str, Bbox]]) -> list[str]:
    """Pairs of boxes that share more than a pixel either way."""
    found = []
    for (one, a), (other, b) in combinations(boxes, 2):
        shared = Bbox.intersection(a, b)
        if shared is not None and shared.width > 1 and shared.height > 1:
            found.append(f"{one} lies on {other}")
    return found
