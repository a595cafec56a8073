"""What a cache plan costs: loss against the share of key heads that keep everything, and who keeps it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rotoscope.experiments.plan.cache_result import NOTHING, PLAN, RANDOM, CachePlan
from rotoscope.plotting.palette import NULL, SERIES
from rotoscope.plotting.style import COLUMN_WIDTH, TEXT_WIDTH, caption, drawing, shared_legend

MARKERS = "osD^vP*X"


def cache_frontier(plan: CachePlan) -> Figure:
    """Loss by the share of key heads that keep everything: the plan, every ranking, and random choices, by source."""
    table, sources = plan.frontier, plan.run.settings["sources"]
    names = [name for name in plan.run.settings["rankings"] if name != RANDOM]
    with drawing(TEXT_WIDTH, 3.6, 1, len(sources)) as (figure, panels):
        for ax, source in zip(panels, sources, strict=True):
            rows = table[table["source"] == source]
            ends = rows[rows["ranking"] == NOTHING]
            for k, name in enumerate(names):
                line = _line(rows[rows["ranking"] == name], ends)
                colour, marker = SERIES[k % len(SERIES)], MARKERS[k % len(MARKERS)]
                ax.plot(line["kept_share"], line["loss"], color=colour, marker=marker, markersize=3, linestyle="-" if k < len(SERIES) else ":", linewidth=0.8, alpha=0.8, label=name.replace("_", " "))  # fmt: skip
            drawn = _line(rows[rows["ranking"] == RANDOM], ends)
            ax.plot(
                drawn["kept_share"], drawn["loss"], color=NULL, linestyle="--", linewidth=1.2, label="random"
            )
            own = _line(rows[rows["ranking"] == PLAN], ends)
            apart = np.abs(own[["loss_low", "loss_high"]].sub(own["loss"], axis=0).to_numpy().T)
            ax.errorbar(own["kept_share"], own["loss"], yerr=np.nan_to_num(apart), color="black", linewidth=2, elinewidth=0.9, capsize=2, label="the plan")  # fmt: skip
            ax.set_title(source, loc="left")
            ax.set_xlabel("key heads that keep everything")
            ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        panels[0].set_ylabel("loss")
        shared_legend(figure, panels[0], ncols=4)
    settings = plan.run.settings
    return caption(
        figure,
        f"{plan.name}; the others keep {settings['sinks']} + {settings['window']} tokens; ranked on {settings['task']}; {settings['prompts']} prompts of each source, "
        "95 % intervals over prompts",
    )  # fmt: skip


def cache_map(plan: CachePlan) -> Figure:
    """Layer by key head: dark where the plan keeps everything, and how early each is given up."""
    heads = plan.heads
    place = heads.pivot(index="layer", columns="key_head", values="place").to_numpy(dtype=float)
    keeps = ~heads.pivot(index="layer", columns="key_head", values="streams").to_numpy(dtype=bool)
    with drawing(COLUMN_WIDTH, 4.2) as (figure, [ax]):
        shade = 1 - place / max(1.0, np.nanmax(place))
        drawn = ax.imshow(shade, aspect="auto", origin="lower", cmap="Greys", vmin=0, vmax=1.4)
        for layer, head in np.argwhere(keeps):
            ax.plot(head, layer, marker="o", color="white", markersize=4)
        ax.set_xlabel("key head")
        ax.set_ylabel("layer")
        ax.set_xticks(range(place.shape[1]))
        ax.yaxis.get_major_locator().set_params(integer=True)
        bar = figure.colorbar(drawn, ax=ax, label="place in the ranking", boundaries=np.linspace(0, 1, 40))
        bar.set_ticks([0, 1], labels=["streams first", "streams last"])
    by = "" if plan.ranking == NOTHING else f"; ranking: {plan.ranking.replace('_', ' ')}"
    return caption(figure, f"{plan.name}; dots: key heads that keep everything ({plan.keep:.0%}){by}")


def _line(rows: pd.DataFrame, ends: pd.DataFrame) -> pd.DataFrame:
    """A ranking's points, with the ends that all have in common."""
    return pd.concat([rows, ends]).drop_duplicates("kept_share").sort_values("kept_share")
