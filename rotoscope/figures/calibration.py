"""How often random models are called beyond the null."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rotoscope.figures.style import TEXT_WIDTH, caption, drawing
from rotoscope.palette import INK, NULL
from rotoscope.results.calibration import Calibration
from rotoscope.results.verdict import LEVEL


def false_verdicts(run: Calibration) -> Figure:
    """Shares of random subjects beyond the null with their intervals: in any statistic, and in each by itself."""
    errors, each = run.errors(), run.by_statistic()
    cells = [f"scale {row.scale:g}, {row.prompts} prompts" for row in errors.itertuples()]
    with drawing(TEXT_WIDTH, 3.2, 1, 2, sharex=True) as (figure, axes):
        _shares(axes[0], errors, cells)
        axes[0].set_title("any statistic", loc="left")
        _shares(axes[1], each, each["statistic"].tolist())
        axes[1].set_title("each by itself, all subjects", loc="left")
    settings = run.run.settings
    return caption(
        figure,
        f"{settings['repetitions']} random subjects a row (left), {settings['null_draws']} draws of the null each; bars: 95 % "
        f"intervals (Wilson); dashed: the {LEVEL:.0%} that any statistic together may reach",
    )


def _shares(ax: Axes, table: pd.DataFrame, names: list[str]) -> None:
    rows = range(len(table))
    reach = [(table["share"] - table["low"]).clip(0), (table["high"] - table["share"]).clip(0)]
    ax.errorbar(table["share"], rows, xerr=reach, fmt="o", color=INK, markersize=4, capsize=2)
    ax.axvline(LEVEL, color=NULL, linestyle="--", linewidth=1)
    ax.set_yticks(rows, names)
    ax.invert_yaxis()
    ax.set(xlabel="share beyond the null", xlim=(-0.01, max(0.25, 1.05 * table["high"].max())))
