"""Scores by depth: medians over the heads of each layer, with the null beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rotoscope.experiments.depths.figures import depth_ends
from rotoscope.experiments.profile.frequency_figures import (
    frequency_grid,
    frequency_norms,
    frequency_profiles,
    frequency_summary,
    head_paths,
)
from rotoscope.experiments.profile.plane import class_labels, measured, plane
from rotoscope.experiments.profile.result import Profile
from rotoscope.plotting.palette import BLOCK, CLASS_COLOURS, INK, NULL, QUERY, SCORE_COLOURS, SWAPPED
from rotoscope.plotting.style import (
    SMALLEST,
    TEXT_WIDTH,
    around_origin,
    beside,
    blank,
    caption,
    class_patches,
    colour_map,
    drawing,
    every,
    median_band,
    named_figures,
    shade,
    token_text,
    top_legend,
    under,
)


def depth(profile: Profile, tau: float | None = None, ax: Any = None) -> Figure:
    """Median and middle half of both scores per layer; grey: the null."""
    with drawing(TEXT_WIDTH, 3.0, 1, 2, ax=ax, sharey=True) as (figure, axes):
        for panel, (score, hue) in zip(axes, SCORE_COLOURS.items(), strict=True):
            if profile.null_name is not None:
                median_band(
                    panel, profile.nulls_at(tau), "layer", f"{score}_score", NULL, f"{profile.null_name} null"
                )
            median_band(panel, profile.at(tau), "layer", f"{score}_score", hue, profile.name)
            panel.set(xlabel="layer", ylim=(-0.02, 1.02))
            panel.set_title(f"{score} score", loc="left")
            under(panel, ncols=2)
        axes[0].set_ylabel("median over heads, middle half")
    return figure if ax is not None else caption(figure, measured(profile, tau))


def by_position(profile: Profile, bins: int = 8, ax: Any = None) -> Figure:
    """Accuracy and likelihood of the answer by where the asked fact stands, beside the attention it gets."""
    table = profile.by_position(bins)
    error = (table["accuracy"] * (1 - table["accuracy"]) / table["answers"]) ** 0.5
    panels = (
        ("accuracy", table["accuracy"], error),
        ("log-likelihood of the answer", table["log_likelihood"], table["log_likelihood_sem"]),
        ("attention on the fact", table["asked_attention"], table["asked_attention_sem"]),
    )
    with drawing(TEXT_WIDTH, 2.6, 1, 3, ax=ax) as (figure, axes):
        for panel, (title, values, bars) in zip(axes, panels, strict=True):
            panel.errorbar(table["place"], values, yerr=bars, color=INK, marker="o", ms=4, capsize=2)
            panel.set(xlabel="place of the fact\n(0 first, 1 last)", xlim=(0, 1))
            panel.set_title(title, loc="left")
            if title != "log-likelihood of the answer":
                panel.set_ylim(bottom=0)
    if ax is not None:
        return figure
    return caption(figure, measured(profile) + "; bars: standard error over prompts")


# Layer x head maps: both scores, and the class, of every head where it stands.


def layer_map(profile: Profile, tau: float | None = None, ax: Any = None) -> Figure:
    """Positional score, symbolic score and class of every head, layers upward (P1 Fig. 1)."""
    heads = profile.at(tau)
    layers, width = heads["layer"].max() + 1, heads["head"].max() + 1
    tall = min(max(1.6, 0.14 * layers), 7.0)
    with drawing(TEXT_WIDTH, tall + 1.4, 1, 3, ax=ax, sharey=True) as (figure, (left, middle, right)):
        upward: dict[str, Any] = {"aspect": "auto", "origin": "lower"}
        for axes, (score, hue) in zip((left, middle), SCORE_COLOURS.items(), strict=True):
            grid = _grid(heads, f"{score}_score")
            drawn = axes.imshow(grid, cmap=colour_map(hue), vmin=0, vmax=1, **upward)
            axes.set_title(f"{score} score", loc="left")
            figure.colorbar(drawn, ax=axes, shrink=0.7, pad=0.02)
        names = list(CLASS_COLOURS)
        numbers = heads.assign(number=heads["head_class"].map({name: k for k, name in enumerate(names)}))
        colours = ListedColormap(list(CLASS_COLOURS.values()))
        right.imshow(_grid(numbers, "number"), cmap=colours, vmin=-0.5, vmax=len(names) - 0.5, **upward)
        right.set_title("class", loc="left")
        words = class_labels("input_class" in heads)
        top_legend(figure, class_patches(words), ncols=5)
        for axes in (left, middle, right):
            _ticks(axes, int(layers), int(width), tall)
        left.set_ylabel("layer")
    return figure if ax is not None else caption(figure, measured(profile, tau))


def _grid(heads: pd.DataFrame, column: str) -> np.ndarray:
    """[layers, heads]; what is missing stays empty."""
    grid: np.ndarray = heads.pivot(index="layer", columns="head", values=column).to_numpy(dtype=float)
    return grid


def _ticks(axes: Axes, layers: int, heads: int, tall: float) -> None:
    axes.set_xlabel("head")
    axes.set_xticks(range(0, heads, max(1, heads // 8)))
    axes.set_yticks(range(0, layers, every(layers, tall)))
    blank(axes)


# Single heads at work: attention under a swap, and vectors in the dominant plane.


MOST_CUT = 3
"""Peaks above the picture whose values are written."""
SWAPPED_BLOCK: dict[str, Any] = {"color": shade(BLOCK, 0, 4)}
QUERY_MARK: dict[str, Any] = {"marker": "^", "color": QUERY, "markersize": 5, "linestyle": ""}


def swap_traces(profile: Profile, ax: Any = None) -> Figure:
    """Attention over the whole prompt before and after a head's most telling swap (P1 Fig. 1).

    With `ax`, one panel for each example head is drawn into. A symbolic peak moves with the content, a positional one stays. What lies outside the blocks and rises above all that
    lies in them is cut, with its value beside it.
    """
    groups = list(profile.traces.groupby("example", sort=False))
    panel_height = 2.0 if "token" in profile.traces else 1.6
    with drawing(TEXT_WIDTH, panel_height * len(groups) + 0.9, len(groups), 1, ax=ax) as (figure, axes):
        for panel, (title, rows) in zip(axes, groups, strict=True):
            rows = rows.sort_values("position")
            first, second = int(rows["first_block"].iloc[0]), int(rows["second_block"].iloc[0])
            spans = rows[rows["block"] >= 0].groupby("block")["position"].agg(["min", "max"])
            bars = {
                block: (row["min"] - 0.45, row["max"] - row["min"] + 0.9) for block, row in spans.iterrows()
            }
            for look, blocks in (({"color": "#F1F1F1"}, [*bars]), (SWAPPED_BLOCK, [first, second])):
                place = {"transform": panel.get_xaxis_transform(), "linewidth": 0, "zorder": 0}
                panel.broken_barh([bars[block] for block in blocks], (0, 1), **place, **look)
            panel.plot(rows["position"], rows["attention"], color=INK, linewidth=1.2, label="before")
            after = rows["position"], rows["attention_swapped"]
            panel.plot(*after, "--", color=SWAPPED, linewidth=1.2, label="after the swap")
            name = f"{rows['layer'].iloc[0]}:{rows['head'].iloc[0]}, {title}"
            panel.set_title(f"{name}: {_swapped(rows, first, second)} swapped", loc="left")
            panel.set_ylabel("attention")
            _cut(panel, rows)
            _tokens(panel, rows, (first, second))
        axes[-1].set_xlabel("token" if "token" in profile.traces else "position")
        key = [
            Patch(**SWAPPED_BLOCK, label="swapped blocks"),
            Patch(color="#F1F1F1", label="other blocks"),
        ]
        handles = [*axes[0].lines[:2], *key, Line2D([], [], **QUERY_MARK, label="query")]
        if ax is None:
            top_legend(figure, handles, ncols=5)
        else:
            beside(axes[0], handles=handles)
    return figure if ax is not None else caption(figure, measured(profile) + "; first prompt")


def _swapped(rows: pd.DataFrame, first: int, second: int) -> str:
    """Both blocks as text where it is known, else by their numbers."""
    if "token" not in rows:
        return f"blocks {first} and {second}"
    texts = ("".join(rows["token"][rows["block"] == block]) for block in (first, second))
    return " and ".join(f"“{token_text(text, 24)}”" for text in texts)


def _cut(axes: Axes, rows: pd.DataFrame) -> None:
    """As high as the blocks need; what is higher outside them says how high."""
    height = rows[["attention", "attention_swapped"]].max(axis=1)
    top = max(1.2 * float(height[rows["block"] >= 0].max()), 0.05 * float(height.max()))
    axes.set(xlim=(rows["position"].min() - 0.8, rows["position"].max() + 0.8), ylim=(0, top))
    for row, value in height[height > top].nlargest(MOST_CUT).items():
        position = rows.loc[row, "position"]
        late = position > rows["position"].mean()
        axes.annotate(f"{value:.2f} ↑", (position, top), (-4 if late else 4, 0), textcoords="offset points",
                      fontsize=SMALLEST, ha="right" if late else "left", va="top", color="#555555",
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip


def _tokens(axes: Axes, rows: pd.DataFrame, swapped: tuple[int, int]) -> None:
    """Tokens under the axis: words where there is room, else those of the swapped blocks and those most looked at."""
    query = int(rows["position"].max())
    axes.plot([query], [0], clip_on=False, zorder=4, **QUERY_MARK)
    if "token" not in rows:
        return
    room = every(len(rows), TEXT_WIDTH - 0.7)
    ahead = rows["block"].isin(swapped) | (rows["position"] == query)
    shown: list[int] = []
    looked_at = rows.assign(height=rows[["attention", "attention_swapped"]].max(axis=1))
    looked_at = looked_at.sort_values("height", ascending=False, kind="stable")
    texts = rows.set_index("position")["token"]
    for position in (*rows["position"][ahead], *looked_at["position"]):
        if position != query and _is_punctuation(texts[position]):
            continue
        if all(abs(position - other) >= room for other in shown):
            shown.append(int(position))
    axes.set_xticks(sorted(shown), [token_text(texts[k]) for k in sorted(shown)], rotation=90)
    for label, position in zip(axes.get_xticklabels(), sorted(shown), strict=True):
        label.set_color(QUERY if position == query else INK)


def _is_punctuation(token: str) -> bool:
    return bool(token.strip()) and not any(letter.isalnum() for letter in token)


def vectors(profile: Profile, ax: Any = None) -> Figure:
    """Query and keys of each example head in the plane that decides (P1 Fig. 3C), un-rotated and met."""
    table = profile.vectors
    groups = list(table.groupby("example", sort=False))
    with drawing(TEXT_WIDTH, 4.9, 2, len(groups), ax=ax) as (figure, panels):
        axes = panels.reshape(2, len(groups))
        for c, (title, rows) in enumerate(groups):
            keys, query = rows[rows["kind"] == "key"], rows[rows["kind"] == "query"].iloc[0]
            for r, suffix in enumerate(("", "_met")):
                panel = axes[r, c]
                x, y = keys[f"re{suffix}"], keys[f"im{suffix}"]
                drawn = panel.scatter(x, y, c=keys["position"], cmap="cividis", s=9, zorder=2)
                reach = 1.15 * float(np.hypot(x, y).max())
                direction = np.array([query["re"], query["im"]])
                direction = direction / max(float(np.hypot(*direction)), 1e-12) * reach * 0.9
                panel.annotate("", xy=tuple(direction), xytext=(0, 0),
                            arrowprops={"arrowstyle": "-|>", "color": QUERY, "lw": 1.6}, zorder=3)  # fmt: skip
                around_origin(panel, reach)
            layer, head, number, angle = rows[["layer", "head", "frequency_id", "angle"]].iloc[0]
            of_plane = f"id {number:.0f}, {angle:.2g} rad"
            axes[0, c].set_title(f"{layer:.0f}:{head:.0f}, {title}\n{of_plane}", loc="left")
        axes[0, 0].set_ylabel("un-rotated")
        axes[1, 0].set_ylabel("as query and keys meet")
        figure.colorbar(drawn, ax=list(panels), label="key position", shrink=0.6, pad=0.02)
    if ax is not None:
        return figure
    return caption(
        figure,
        measured(profile)
        + "; first prompt\nplane whose logits vary most over the swapped tokens; red: direction of the query",
    )


ANSWERS = 24
"""Answers from which it makes sense to ask where the fact stood."""


def profile_figures(profile: Profile) -> Iterator[tuple[str, Figure]]:
    """Every figure that a profile has the data for, with the name of its file."""
    yield from named_figures(profile, plane, layer_map, depth)
    if "input_prompts" in profile.tables:
        yield from named_figures(profile, depth_ends)
    if len(profile.answers) >= ANSWERS and len(profile.by_position()) > 2:
        yield from named_figures(profile, by_position)
    if profile.has_examples:
        tables = {swap_traces: profile.traces, vectors: profile.vectors}  # none where no head sees a swap
        yield from named_figures(profile, *(draw for draw, table in tables.items() if len(table)))
    if "prompt_frequencies" in profile.tables:
        scored = set(profile.frequencies[["layer", "head"]].itertuples(index=False, name=None))
        heads = {name: head for name, head in example_heads(profile).items() if head in scored}
        heads = heads or {"first": min(scored)}
        yield from named_figures(profile, frequency_summary)
        for draw_heads in (frequency_profiles, frequency_norms, head_paths):
            yield draw_heads.__name__, draw_heads(profile, heads)
        yield from named_figures(profile, frequency_grid)


def example_heads(profile: Profile) -> dict[str, tuple[int, int]]:
    """The heads that stand as examples in the profile."""
    if not profile.has_examples:
        return {}
    rows = profile.traces.drop_duplicates("example")
    return {row.example: (int(row.layer), int(row.head)) for row in rows.itertuples()}
