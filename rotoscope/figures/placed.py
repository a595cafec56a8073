"""Where a model lies among those of an atlas."""

from __future__ import annotations

from matplotlib.figure import Figure

from rotoscope.figures.style import TEXT_WIDTH, caption, drawing, shared_legend
from rotoscope.palette import INK, NULL, SKY
from rotoscope.results.atlas_place import Placement


def where_it_lies(found: Placement) -> Figure:
    """Every statistic of a model with its interval, and those of the atlas's other models beside it; grey crosses: nulls."""
    table = found.table.reset_index(drop=True)
    rows = {name: row for row, name in enumerate(table["statistic"])}
    others = found.others[found.others["statistic"].isin(rows)] if len(found.others) else found.others
    with drawing(TEXT_WIDTH, 1.3 + 0.24 * max(4, len(table))) as (figure, (axes,)):
        if len(others):
            at = others["statistic"].map(rows)
            axes.plot(others["null_value"], at, "x", color=NULL, markersize=4, label="null of an atlas's model")
            axes.plot(others["value"], at, "o", color=SKY, markersize=5, alpha=0.8, label="model of the atlas")
        if table["null_value"].notna().any():
            axes.plot(
                table["null_value"], table.index, "+", color=NULL, markersize=6, label=f"null of {found.model}"
            )
        reach = [
            (table["value"] - table["low"]).clip(lower=0).fillna(0),
            (table["high"] - table["value"]).clip(lower=0).fillna(0),
        ]
        axes.errorbar(
            table["value"],
            table.index,
            xerr=reach,
            fmt="D",
            color=INK,
            markersize=5,
            capsize=2,
            label=found.model,
        )
        axes.axvline(0, color="#DDDDDD", linewidth=0.8, zorder=0)
        axes.set_yticks(table.index, table["statistic"])
        axes.set(
            ylim=(len(table) - 0.5, -0.5), xlim=(-1.03, 1.03), xlabel="value; bars: 95 % intervals over prompts"
        )
        shared_legend(figure, axes, ncols=4)
    return caption(figure, f"{found.model}; {found.task}; τ = {found.tau:g}\n{' '.join(found.words)}")
