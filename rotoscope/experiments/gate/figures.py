"""What a model loses when only one band of frequencies is kept."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from rotoscope.experiments.gate.result import UNGATED, Gating
from rotoscope.plotting.palette import GATE_COLOURS, SLATE
from rotoscope.plotting.style import TEXT_WIDTH, caption, drawing_grid, named_figures, shared_legend

MARKERS = {"all": "o", "positional": "s", "symbolic": "D"}


def gate_bands(gating: Gating) -> Figure:
    """Loss against the band that is kept, and that is removed, on the task and on plain text; dashed: random heads."""
    table, settings = gating.summary, gating.run.settings
    with drawing_grid(TEXT_WIDTH, 5.2, 2, 2, sharey="row", sharex=True) as (figure, axes):
        for r, source in enumerate(("task", "text")):
            rows = table[table["source"] == source]
            ungated = rows[rows["condition"] == UNGATED]["loss"].iloc[0]
            for c, action in enumerate(("keep", "remove")):
                ax = axes[r, c]
                ax.axhline(ungated, color="#999999", linewidth=0.9, linestyle=":", label=UNGATED)
                chosen = rows[(rows["action"] == action) & (rows["first_id"] > 0)]
                for (group, control), line in chosen.groupby(["head_group", "control"], sort=False):
                    heads = line["gated_heads"].iloc[0]
                    ax.errorbar(
                        (line["first_id"] + line["last_id"]) / 2,
                        line["loss"],
                        yerr=[line["loss"] - line["loss_low"], line["loss_high"] - line["loss"]],
                        color=GATE_COLOURS.get(group, SLATE),
                        marker=MARKERS.get(group, "^"),
                        markerfacecolor="white" if control else None,
                        linestyle="--" if control else "-",
                        linewidth=1.2,
                        markersize=4,
                        capsize=2,
                        alpha=0.7 if control else 1,
                        label=f"{heads} random heads, layers of {group}"
                        if control
                        else f"{group} ({heads} heads)",
                    )
                if r == 0:
                    ax.set_title(f"one band {'kept' if action == 'keep' else 'removed'}", loc="left")
                if r == 1:
                    ax.set_xlabel("middle of the band, frequency id (1 = fastest)")
            axes[r, 0].set_ylabel(f"loss, {settings['task'] if source == 'task' else 'plain text'}")
        shared_legend(figure, axes[0, 0], ncols=3)
    draws = int(table["draws"].max())
    shown = table.loc[table["control"], "prompts"].max()
    note = (
        f"; of random heads 95 % of {draws} draws, on {shown} of the prompts" if table["control"].any() else ""
    )
    return caption(
        figure,
        f"{gating.name}; {settings['task']}, {settings['prompts']} prompts, {settings['passages']} passages; bars: 95 % intervals over "
        f"prompts{note}",
    )


def gate_figures(gating: Gating) -> Iterator[tuple[str, Figure]]:
    """Of a sweep over bands; one gate is a table."""
    if gating.sweep:
        yield from named_figures(gating, gate_bands)
