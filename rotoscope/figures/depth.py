"""Scores by depth: medians over the heads of each layer, with the null beside them."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rotoscope.figures.style import NULL, POSITIONAL, SYMBOLIC, caption, new_figure, styled
from rotoscope.figures.words import measured
from rotoscope.results.profile import Profile

__all__ = ["by_position", "depth"]


def depth(profile: Profile, tau: float | None = None) -> Figure:
    """Median and middle half of both scores per layer; grey: the null."""
    figure = new_figure(7.2, 3.6)
    value = profile.taus[0] if tau is None else tau
    with styled():
        axes = figure.subplots(1, 2, sharey=True)
        for ax, (score, hue) in zip(axes, (("positional", POSITIONAL), ("symbolic", SYMBOLIC)), strict=True):
            if profile.null_name is not None:
                null = profile.nulls[profile.nulls["tau"] == value]
                _band(ax, null, f"{score}_score", NULL, f"{profile.null_name} null")
            _band(ax, profile.at(tau), f"{score}_score", hue, profile.name)
            ax.set(xlabel="layer", ylim=(-0.02, 1.02))
            ax.set_title(f"{score} score", loc="left")
            ax.legend(loc="upper left", bbox_to_anchor=(0, -0.2), fontsize=7.5, ncols=2)
        axes[0].set_ylabel("median over heads, middle half")
    caption(figure, measured(profile, tau))
    return figure


def _band(axes: Axes, heads: pd.DataFrame, column: str, colour: str, label: str) -> None:
    layers = heads.groupby("layer")[column].quantile([0.25, 0.5, 0.75]).unstack()
    axes.fill_between(layers.index, layers[0.25], layers[0.75], color=colour, alpha=0.2, linewidth=0)
    axes.plot(layers.index, layers[0.5], color=colour, linewidth=1.6, label=label)


def by_position(profile: Profile, bins: int = 8) -> Figure:
    """Likelihood of the answer by where the asked fact stands, beside the attention it gets."""
    table = profile.by_position(bins)
    figure = new_figure(7.2, 3.1)
    with styled():
        left, right = figure.subplots(1, 2)
        left.errorbar(
            table["place"],
            table["log_likelihood"],
            yerr=table["log_likelihood_sem"],
            color="#333333",
            marker="o",
            ms=4,
            capsize=2,
        )
        left.set(
            xlabel="place of the asked fact (0 first, 1 last)",
            ylabel="log-likelihood of the answer",
            xlim=(0, 1),
        )
        right.errorbar(
            table["place"],
            table["asked_attention"],
            yerr=table["asked_attention_sem"],
            color="#333333",
            marker="o",
            ms=4,
            capsize=2,
        )
        right.set(
            xlabel="place of the asked fact (0 first, 1 last)",
            ylabel="attention it gets, mean over heads",
            xlim=(0, 1),
        )
        right.set_ylim(bottom=0)
        for k, row in enumerate(table.itertuples()):
            left.annotate(f"{row.accuracy:.0%}", (row.place, row.log_likelihood), xytext=(0, 7 if k % 2 else -13),
                          textcoords="offset points", ha="center", fontsize=6.5, color="#666666")  # fmt: skip
        left.set_title("answers (accuracy beside each point)", loc="left")
        right.set_title("attention", loc="left")
        left.margins(y=0.2)
    caption(figure, measured(profile) + "; bars: standard error over prompts")
    return figure
