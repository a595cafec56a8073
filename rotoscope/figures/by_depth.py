"""Scores by depth: medians over the heads of each layer, with the null beside them."""

from __future__ import annotations

from matplotlib.figure import Figure

from rotoscope.figures.style import TEXT_WIDTH, caption, drawing, median_band, under
from rotoscope.figures.words import measured
from rotoscope.palette import INK, NULL, SCORE_COLOURS
from rotoscope.results.profile import Profile


def depth(profile: Profile, tau: float | None = None) -> Figure:
    """Median and middle half of both scores per layer; grey: the null."""
    with drawing(TEXT_WIDTH, 3.0, 1, 2, sharey=True) as (figure, axes):
        for ax, (score, hue) in zip(axes, SCORE_COLOURS.items(), strict=True):
            if profile.null_name is not None:
                median_band(
                    ax, profile.nulls_at(tau), "layer", f"{score}_score", NULL, f"{profile.null_name} null"
                )
            median_band(ax, profile.at(tau), "layer", f"{score}_score", hue, profile.name)
            ax.set(xlabel="layer", ylim=(-0.02, 1.02))
            ax.set_title(f"{score} score", loc="left")
            under(ax, ncols=2)
        axes[0].set_ylabel("median over heads, middle half")
    return caption(figure, measured(profile, tau))


def by_position(profile: Profile, bins: int = 8) -> Figure:
    """Accuracy and likelihood of the answer by where the asked fact stands, beside the attention it gets."""
    table = profile.by_position(bins)
    error = (table["accuracy"] * (1 - table["accuracy"]) / table["answers"]) ** 0.5
    panels = (
        ("accuracy", table["accuracy"], error),
        ("log-likelihood of the answer", table["log_likelihood"], table["log_likelihood_sem"]),
        ("attention on the fact", table["asked_attention"], table["asked_attention_sem"]),
    )
    with drawing(TEXT_WIDTH, 2.6, 1, 3) as (figure, axes):
        for ax, (title, values, bars) in zip(axes, panels, strict=True):
            ax.errorbar(table["place"], values, yerr=bars, color=INK, marker="o", ms=4, capsize=2)
            ax.set(xlabel="place of the fact\n(0 first, 1 last)", xlim=(0, 1))
            ax.set_title(title, loc="left")
            if title != "log-likelihood of the answer":
                ax.set_ylim(bottom=0)
    return caption(figure, measured(profile) + "; bars: standard error over prompts")
