"""Swaps at every depth: what heads follow, by the layer at whose input blocks changed places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.depths.writers import ALL, NOBODY, ONE, READER
from rotoscope.experiments.profile.plane import class_labels, corner_words, corners, measured, square
from rotoscope.experiments.profile.result import Profile
from rotoscope.plotting.palette import (
    CARRIED,
    CLASS_COLOURS,
    CLASS_MARKERS,
    INK,
    NULL,
    POSITIONAL,
    SCORE_COLOURS,
)
from rotoscope.plotting.style import (
    COLUMN_WIDTH,
    SMALLEST,
    TEXT_WIDTH,
    OneSquare,
    beside,
    blank,
    caption,
    class_patches,
    diverging,
    drawing,
    drawing_many,
    every,
    legend_for,
    named_figures,
    shared_legend,
    token_text,
    top_legend,
    under,
)
from rotoscope.stats.aggregate import HEAD, INPUT_SCORES, SCORES
from rotoscope.stats.statistics import class_words
from rotoscope.stats.verdict import BEYOND

TELLING = 6
THIN = "#C4C4C4"
"""Where the swaps that were run hold too little of a head's weight."""
ROW, LEAST, MOST = 0.029, 2.4, 7.6
"""Height of a head's row in inches, and of the whole map."""
LABEL = 0.115
"""Height of a head's name beside the map, in inches."""


def depth_map(run: SwapDepths, tau: float | None = None) -> Figure:
    """Every head against depth, layers upward: orange where it stays in place, blue where it follows what was moved.

    A black bar stands at the upper end of a head's carry depth: below it the head stays in place, above it follows.
    """
    heads, curves = run.by_leaning(tau), _at(run, tau)
    rows = pd.MultiIndex.from_frame(heads[HEAD])
    below = curves[~curves["own"]].set_index([*HEAD, "depth"])
    own = curves[curves["own"]].set_index(HEAD).reindex(rows)
    leaning = (below["positional_score"] - below["symbolic_score"]).unstack().reindex(rows, columns=run.depths)
    covered = below["covered_share"].unstack().reindex(rows, columns=run.depths)
    tall = min(max(ROW * len(heads), LEAST), MOST)
    wide = max(3.0, min(4.6, 0.34 * len(run.depths)))
    ratios = {"width_ratios": [wide, 0.34, 0.2], "wspace": 0.02}
    with drawing(wide + 2.4, tall + 1.6, 1, 3, sharey=True, gridspec_kw=ratios) as (
        figure,
        (left, middle, right),
    ):
        look: dict[str, Any] = {"aspect": "auto", "origin": "lower", "interpolation": "nearest"}
        scale = {"cmap": diverging(), "vmin": -1, "vmax": 1}
        drawn = left.imshow(leaning.to_numpy(dtype=float), **scale, **look)
        thin = (covered.notna() & leaning.isna()).to_numpy()
        left.imshow(np.where(thin, 0.0, np.nan), cmap=ListedColormap([THIN]), **look)
        at_own = (own["positional_score"] - own["symbolic_score"]).to_numpy(dtype=float)
        middle.imshow(at_own[:, None], **scale, **look)
        codes = heads["head_class"].map({name: k for k, name in enumerate(CLASS_COLOURS)})
        classes = ListedColormap(list(CLASS_COLOURS.values()))
        right.imshow(
            codes.to_numpy(dtype=float)[:, None], cmap=classes, vmin=-0.5, vmax=len(CLASS_COLOURS) - 0.5, **look
        )
        _carry_marks(left, heads, run.depths)
        _rows(left, heads["layer"], (left, middle, right), tall)
        _columns(left, run.depths)
        middle.set_xticks([0], ["own"])
        right.set_xticks([0], ["class"])
        if heads["head"].max() > 0:
            _name_carried(right, heads, most=int(tall / LABEL))
        bar = figure.colorbar(drawn, ax=right, shrink=0.5, aspect=28, pad=0.5, ticks=[-1, 0, 1])
        bar.ax.set_yticklabels(["follows", "neither\nor both", "stays"])
        bar.outline.set_visible(False)
        left.set_title(f"{run.name}: {len(heads)} heads", loc="left")
        handles: list[Any] = [
            *class_patches(class_labels(0 in run.depths)),
            Line2D([], [], color=INK, lw=2, label="carry depth"),
        ]
        if thin.any():
            handles.append(Patch(color=THIN, label="under half of its weight run"))
        top_legend(figure, handles, columnspacing=1.2)
    note = "; heads of a layer in the order in which they stay in place" if heads["head"].max() else ""
    return caption(figure, measured(run, tau) + note)


def _carry_marks(axes: Axes, heads: pd.DataFrame, depths: Sequence[int]) -> None:
    known = heads[heads["carry_depth"].notna()]
    edges = [depths.index(int(depth)) + 0.5 for depth in known["carry_depth"]]
    rows = known.index.to_numpy()
    axes.vlines(edges, rows - 0.5, rows + 0.5, color=INK, linewidth=1.8)


def _rows(axes: Axes, layers: pd.Series, panels: Sequence[Axes], tall: float) -> None:
    """Layers named at the middle of their heads, with thin lines between them."""
    middles = layers.index.to_series().groupby(layers.to_numpy()).mean()
    step = every(len(middles), tall)
    axes.set_yticks(middles.to_numpy()[::step], [str(layer) for layer in middles.index[::step]])
    axes.set_ylabel("layer of the head")
    starts = np.flatnonzero(np.diff(layers.to_numpy())) + 0.5
    for panel in panels:
        panel.hlines(starts, -0.5, panel.get_xlim()[1], color="white", linewidth=0.7)
        blank(panel)


def _columns(axes: Axes, depths: Sequence[int]) -> None:
    step = max(1, -(-len(depths) // 16))
    axes.set_xticks(range(0, len(depths), step), [str(depth) for depth in depths[::step]])
    axes.set_xlabel("depth k: swapped where layer k begins (0: the prompt)")


def _name_carried(axes: Axes, heads: pd.DataFrame, most: int) -> None:
    """Carried heads by name beside their rows, moved apart where rows are narrower than names."""
    carried = heads[heads["head_class"] == "carried"]
    if not 0 < len(carried) <= most:
        return
    step = len(heads) / most
    places: list[float] = []
    for row in carried.index:
        places.append(max(float(row), places[-1] + step) if places else float(row))
    top = len(heads) - 1.0
    for k in reversed(range(len(places))):  # what was pushed over the upper end goes back down
        places[k] = min(places[k], top)
        top = places[k] - step
    for row, place, layer, head in zip(carried.index, places, carried["layer"], carried["head"], strict=True):
        axes.annotate(
            f"{layer}:{head}",
            xy=(0.5, row),
            xytext=(1.6, place),
            fontsize=SMALLEST,
            color=CARRIED,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": CARRIED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
        )


def depth_curves(
    run: SwapDepths, heads: Sequence[tuple[int, int]] | None = None, tau: float | None = None
) -> Figure:
    """Both scores of some heads by the depth of the swaps, up to their own layer (dotted); by default the most telling ones.

    Points are joined where neighbouring depths were run. Without a point the swaps hold too little of the head's weight.
    """
    shown = telling_heads(run, tau) if heads is None else list(heads)
    table, curves = run.at(tau).set_index(HEAD), _at(run, tau)
    unknown = [head for head in shown if head not in table.index]
    if unknown:
        raise RotoscopeError(f"no head {unknown[0][0]}:{unknown[0][1]} in this run")
    with drawing_many(len(shown), 1.75, 1.0, ("depth k of the swap", "score")) as (figure, axes):
        for ax, head in zip(axes, shown, strict=True):
            _curve(ax, curves, head)
            _null_band(ax, run, head, tau)
            ax.set_title(_title(head, table.loc[head]), loc="left")
        axes[0].set(ylim=(-0.04, 1.04), xlim=(-0.5, float(curves["layer"].max()) + 0.5))
        shared_legend(figure, axes[0])
    return caption(figure, measured(run, tau) + "; bands: 95 % over prompts")


def telling_heads(run: SwapDepths, tau: float | None = None) -> list[tuple[int, int]]:
    """Up to six heads: carried ones with the deepest carry depths, some that are symbolic all the way, a positional one."""
    below = _at(run, tau).query("not own")
    drawn_heads = below["positional_score"].notna().groupby([below[name] for name in HEAD]).all()
    heads = run.at(tau).join(drawn_heads.rename("seen"), on=HEAD)
    heads = heads.sort_values(["seen", "swapped_mass"], ascending=False, kind="stable")
    deepest = heads.sort_values("stays_at", ascending=False, kind="stable")
    deepest = deepest[deepest["stays_at"].notna()]
    all_the_way = heads["seen"] & heads["head_class"].eq("symbolic") & heads["stays_at"].isna()
    table: list[tuple[int, int]] = []
    for group, most in (
        (deepest[deepest["head_class"] == "carried"], 3),
        (heads[all_the_way], 2),
        (heads[heads["head_class"] == "positional"], 1),
        (deepest, TELLING),
        (heads, TELLING),
    ):
        new = [head for head in group[HEAD].itertuples(index=False, name=None) if head not in table]
        table += new[: min(most, TELLING - len(table))]
    return sorted((int(layer), int(head)) for layer, head in table)


def _title(head: tuple[int, int], row: pd.Series) -> str:
    name = row["head_class"]
    words = class_words(name, row.get("input_class")) if isinstance(name, str) else "no score"
    depth = "" if pd.isna(row["stays_at"]) else ", carry depth not located"
    if pd.notna(row["carry_depth"]):
        depth = f", carry depth {row['carry_depth']}"
    return f"{head[0]}:{head[1]} {words}{depth}".replace(" at its layer,", "\nat its layer,")


def _curve(axes: Axes, curves: pd.DataFrame, head: tuple[int, int]) -> None:
    of_head = (curves["layer"] == head[0]) & (curves["head"] == head[1])
    rows = curves[of_head & (curves["own"] | (curves["depth"] < head[0]))].sort_values("depth")
    axes.axvline(head[0], color=INK, linewidth=0.8, linestyle=":", label="its own layer")
    rows = rows.set_index("depth").reindex(range(head[0] + 1))  # a depth that was not run breaks the line
    for name, hue in SCORE_COLOURS.items():
        score = f"{name}_score"
        look: dict[str, Any] = {"color": hue, "marker": CLASS_MARKERS[name], "markersize": 4}
        axes.plot(rows.index, rows[score].astype(float), linewidth=1.6, label=score.replace("_", " "), **look)
        ends = (rows[f"{score}_{end}"].astype(float) for end in ("low", "high"))
        axes.fill_between(rows.index, *ends, color=hue, alpha=0.12, linewidth=0)


def _null_band(axes: Axes, run: SwapDepths, head: tuple[int, int], tau: float | None) -> None:
    """Where 95 % of the null's heads of that layer lie, if the null ran the swaps of all its heads."""
    null = run.null_prompts
    if not len(null) or run.run.settings["null_heads"] != "all":
        return
    null = null[(null["layer"] == head[0]) & (null["tau"] == _tau(run, tau))]
    means = null.groupby(["depth", "draw", "head"])[SCORES].mean()
    for name, hatch in (("positional", "///"), ("symbolic", "\\\\\\")):
        spread = means[f"{name}_score"].groupby("depth").quantile([0.025, 0.975]).unstack()
        axes.fill_between(
            spread.index,
            spread[0.025],
            spread[0.975],
            facecolor="none",
            edgecolor=SCORE_COLOURS[name],
            hatch=hatch,
            alpha=0.35,
            linewidth=0,
            label=f"95 % of the null's heads, {name}",
        )


def depth_ends(run: SwapDepths | Profile, tau: float | None = None, ax: Any = None) -> Figure:
    """From the head's own layer to the prompt: where the pure symbolic heads stand when the prompt itself is permuted.

    Models with one head a layer show both ends layer by layer.
    """
    heads = run.at(tau)
    if "input_class" not in heads:
        raise RotoscopeError(
            "the prompt itself was not permuted: depths(..., at=0) or profile(..., input_swaps=64)"
        )
    by_layer = heads["head"].max() == 0
    figure = (_ends_by_layer if by_layer else _ends_in_the_plane)(run, heads, _null_ends(run, tau), ax)
    if ax is not None:
        return figure
    figure = caption(figure, measured(run, tau))
    return figure if by_layer else OneSquare(legend_beside=True).fit(figure)


def _ends_in_the_plane(run: SwapDepths | Profile, heads: pd.DataFrame, null: pd.DataFrame, ax: Any) -> Figure:
    pure = heads[heads["head_class"].isin(["symbolic", "carried"])]
    tested = pure[pure[INPUT_SCORES[0]].notna()]
    kinds = [class_words(*pair) for pair in zip(tested["head_class"], tested["input_class"], strict=True)]
    groups = {
        "carried": "carried",
        "symbolic": "symbolic, also in the prompt",
        "symbolic at its layer": "symbolic at their layer alone",
    }
    with drawing(COLUMN_WIDTH + OneSquare.BESIDE, 6.0, ax=ax) as (figure, [axes]):
        corners(axes, run.gamma)
        corner_words(axes, run.gamma, carried=True)
        permuted = null.dropna(subset=INPUT_SCORES)
        if len(permuted):
            label = "the null's pure symbolic heads" if len(permuted) < len(null) else "the null's heads"
            axes.scatter(
                *permuted[INPUT_SCORES].to_numpy().T, s=16, color=NULL, marker=".", linewidths=0, label=label
            )
        for name, label in groups.items():
            kind, rows = (
                name.split()[0],
                tested[np.array([kind_words == name for kind_words in kinds], dtype=bool)],
            )
            style = {"color": CLASS_COLOURS[kind], "alpha": 0.85 if name == kind else 0.45}
            for row in rows.to_dict("records"):
                axes.annotate(
                    "",
                    xy=[row[score] for score in INPUT_SCORES],
                    xytext=[row[score] for score in SCORES],
                    arrowprops={"arrowstyle": "-", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0, **style},
                )
            axes.scatter(
                *rows[INPUT_SCORES].to_numpy().T,
                s=16,
                marker=CLASS_MARKERS[kind],
                label=f"{len(rows)} {label}",
                clip_on=False,
                zorder=3,
                **style,
            )
        square(axes)
        axes.set_title(f"{token_text(run.name, 34)}\n{len(pure)} pure symbolic heads", loc="left")
        if len(tested) < len(pure):
            axes.scatter([], [], color=THIN, label=f"{len(pure) - len(tested)} without a verdict")
        lines = "lines: from swaps at the\nhead's own layer to the\npermuted prompt"
        (beside if ax is None else under)(axes, title=lines, alignment="left")
    return figure


def _ends_by_layer(run: SwapDepths | Profile, heads: pd.DataFrame, null: pd.DataFrame, ax: Any) -> Figure:
    with drawing(TEXT_WIDTH, 3.0, 1, 2, ax=ax, sharey=True) as (figure, panels):
        for axes, scores, title in zip(
            panels, (SCORES, INPUT_SCORES), ("blocks swapped at its own layer", "prompt permuted"), strict=True
        ):
            for score, (name, hue) in zip(scores, SCORE_COLOURS.items(), strict=True):
                drawn = null.dropna(subset=[score])
                if drawn["layer"].nunique() == len(heads):
                    spread = drawn.groupby("layer")[score].agg(["min", "max"])
                    axes.fill_between(
                        spread.index,
                        spread["min"],
                        spread["max"],
                        color=hue,
                        alpha=0.13,
                        linewidth=0,
                        label=f"null's draws, {name}",
                    )
                look = {"marker": CLASS_MARKERS[name], "markersize": 4, "linewidth": 1.6}
                axes.plot(heads["layer"], heads[score].astype(float), color=hue, label=f"{name} score", **look)
            axes.set(xlabel="layer", ylim=(-0.04, 1.04))
            axes.set_title(title, loc="left")
        panels[0].set_ylabel(f"score, {run.name}")
        legend_for(figure, panels[0], own=ax is None)
    return figure


def _null_ends(run: SwapDepths | Profile, tau: float | None) -> pd.DataFrame:
    """The null's heads with both ends; of a null that permuted only some of its heads, the others lack one."""
    if run.null_name is None:
        return pd.DataFrame(columns=[*HEAD, *SCORES, *INPUT_SCORES])
    if isinstance(run, Profile):
        table = run.nulls_at(tau)
        return table if "input_class" in table else table.assign(**dict.fromkeys(INPUT_SCORES, np.nan))
    rows = run.null_prompts[run.null_prompts["tau"] == _tau(run, tau)]
    own, first = (
        part.groupby(["draw", *HEAD])[SCORES].mean()
        for part in (rows[rows["own"]], rows[~rows["own"] & (rows["depth"] == 0)])
    )
    return own.join(first.add_prefix("input_")).reset_index()


def _tau(run: SwapDepths, tau: float | None) -> float:
    return run.taus[0] if tau is None else tau


def _at(run: SwapDepths, tau: float | None) -> pd.DataFrame:
    return run.curves[run.curves["tau"] == _tau(run, tau)]


# Who writes the place that carried heads read: a small graph.


WIDEST = 6.0
"""Width of the line of an effect of 1."""
APART = 0.24
"""Between the heads of a layer."""


def writer_graph(run: SwapDepths) -> Figure:
    """Positional heads on the left, the carried heads that were asked on the right, both at the height of their layer.

    A line is drawn where silencing that one head takes more of the place than the same layer's other heads do, beyond doubt; it is
    as wide as the effect. Beside a reader stands what silencing all positional heads below it does.
    """
    table = run.writers_summary()
    if not len(table):
        raise RotoscopeError(
            NOBODY if "writers" in run.tables else "who writes a place was not asked: depths(..., writers=True)"
        )
    single = table[table["condition"] == ONE]
    edges = run.writer_graph()
    writing = set(edges[["layer", "head"]].itertuples(index=False, name=None))
    writers = single[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
    left = {
        (layer, head): (-APART * place, float(layer))
        for layer, rows in writers.groupby("layer")
        for place, head in enumerate(rows["head"][::-1])
    }
    readers = table[READER].drop_duplicates().itertuples(index=False, name=None)
    right = {reader: (3.0, height) for reader, height in _spread(sorted(readers)).items()}
    tall = max(height for _, height in (*left.values(), *right.values()))
    with drawing(TEXT_WIDTH, max(3.2, 0.24 * tall + 1.6)) as (figure, [axes]):
        for row in edges.to_dict("records"):
            reader, writer = (row[READER[0]], row[READER[1]]), (row["layer"], row["head"])
            (x0, y0), (x1, y1) = left[writer], right[reader]
            axes.plot(
                [x0, x1],
                [y0, y1],
                color=POSITIONAL,
                linewidth=max(0.4, WIDEST * max(row["effect"], 0.0)),
                alpha=0.8,
                zorder=2,
                solid_capstyle="round",
                gid="{}:{} to {}:{}".format(*writer, *reader),
            )
        axes.scatter(*zip(*left.values(), strict=True), marker="s", s=26, color=POSITIONAL, zorder=3)
        axes.scatter(*zip(*right.values(), strict=True), marker="P", s=44, color=CARRIED, zorder=3)
        for (layer, head), place in left.items():
            if (layer, head) in writing:
                axes.annotate(
                    f"{layer}:{head}", place, (0, 5), textcoords="offset points", fontsize=SMALLEST, ha="center"
                )
        for reader, place in right.items():
            text = "{}:{}".format(*reader) + _all_below(table, reader)
            axes.annotate(
                text, place, (8, 0), textcoords="offset points", fontsize=SMALLEST, va="center", color=INK
            )
        layers = sorted({layer for layer, _ in left})
        axes.set_yticks(layers, [str(layer) for layer in layers])
        axes.set(xlim=(min(x for x, _ in left.values()) - 0.3, 5.6), ylim=(min(layers) - 0.8, tall + 1))
        axes.set_xticks([0, 3], ["positional heads", "carried heads"])
        axes.set_ylabel("layer")
        axes.set_title(f"{run.name}: who writes the place that carried heads read?", loc="left")
        blank(axes)
        label = (
            "takes more of the place than other heads there"
            if len(edges)
            else "no single head is shown to take more than others there"
        )
        top_legend(figure, [Line2D([], [], color=POSITIONAL, lw=3 if len(edges) else 0, label=label)])
    return caption(figure, measured(run) + "; width: effect of silencing one head")


def _spread(readers: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """A height for every reader: its layer, moved up where another stands there."""
    heights: dict[tuple[int, int], float] = {}
    for reader in readers:
        heights[reader] = max([float(reader[0]), *(height + 0.9 for height in heights.values())])
    return heights


def _all_below(table: pd.DataFrame, reader: tuple[int, int]) -> str:
    rows = table[
        (table["condition"] == ALL) & (table[READER[0]] == reader[0]) & (table[READER[1]] == reader[1])
    ]
    if not len(rows):
        return ""
    row = rows.iloc[0]
    sign = ", beyond" if row["verdict"] == BEYOND else ""
    return f": all {row['silenced']} below {row['effect']:.2f} (controls {row['null_value']:.2f}{sign})"


def depth_figures(run: SwapDepths) -> Iterator[tuple[str, Figure]]:
    """Every figure of swaps at depths; at the heads' own layers alone there is nothing to draw against depth."""
    if run.depths:
        yield from named_figures(run, depth_map, depth_curves)
    if 0 in run.depths:
        yield from named_figures(run, depth_ends)
    if len(run.writers_summary()):
        yield from named_figures(run, writer_graph)
