"""What stands in a picture, as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def line(axes: Axes, label: str) -> np.ndarray:
    """Points [n, 2] of the line with this label."""
    found = [one for one in axes.lines if one.get_label() == label]
    assert len(found) == 1, [one.get_label() for one in axes.lines]
    return np.column_stack([np.asarray(values, dtype=float) for values in found[0].get_data()])


def points(axes: Axes, which: int = 0) -> np.ndarray:
    """Offsets [n, 2] of a scatter."""
    return np.asarray(axes.collections[which].get_offsets(), dtype=float)


def image(axes: Axes) -> np.ndarray:
    """The numbers behind an image [rows, columns], lowest row first where it is drawn so."""
    return np.ma.filled(np.ma.masked_invalid(axes.images[0].get_array()), np.nan)


def ticks(axes: Axes, which: str) -> dict[float, str]:
    """What is written where along an axis."""
    axis: Any = getattr(axes, f"{which}axis")
    places = axis.get_ticklocs()
    return dict(zip(map(float, places), axis.get_major_formatter().format_ticks(places), strict=True))


def bars(axes: Axes, which: int = 0) -> np.ndarray:
    """Points [n, 2] that stand between error bars."""
    return np.column_stack(
        [np.asarray(values, dtype=float) for values in axes.containers[which].lines[0].get_data()]
    )


def names(axes: Axes) -> tuple[str, str]:
    return axes.get_xlabel(), axes.get_ylabel()


def footer(figure: Figure) -> str:
    """The lines under a figure as one."""
    return " ".join(figure.get_supxlabel().split())
