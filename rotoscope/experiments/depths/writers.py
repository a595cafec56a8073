"""Who writes the place that a carried head reads? Heads below it are silenced: does it still stay in place?

A carried head follows states into which earlier layers wrote a place. Positional heads know places, so they are silenced
while the prompt is permuted: each of them alone, all of a layer, and all below the depth at which the reader turns.
Beside them stand other heads of the same layers, equally many, drawn at random. One gate serves all readers above it.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from rotoscope.experiments.depths.swaps import ChosenSwaps, Swapping, choose_swaps
from rotoscope.experiments.selection import Head, control_sets
from rotoscope.measures.batches import Batch
from rotoscope.models.interventions import Gate, gated
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.scores.classes import COVERED
from rotoscope.stats.aggregate import SCORES
from rotoscope.stats.intervals import mean_interval
from rotoscope.stats.verdict import BEYOND, ENOUGH_DRAWS, Figure, verdicts

if TYPE_CHECKING:
    from rotoscope.experiments.depths.result import SwapDepths

NONE, ONE, LAYER, ALL = "none", "one", "layer", "all"
READER = ["reader_layer", "reader_head"]
WHERE = ["condition", "layer", "head"]
NOBODY = (
    "nobody could be asked who writes a place: that takes a carried head, and a positional one below the depth at which it "
    "turns"
)


def empty_writers() -> pd.DataFrame:
    """The table where there was nobody to ask."""
    numbers = {
        name: pd.Series(dtype="int64") for name in ("prompt", "input_id", *READER, "layer", "head", "draw")
    }
    scores = {name: pd.Series(dtype="float64") for name in (*SCORES, "covered_share")}
    words = {name: pd.Series(dtype="str") for name in ("condition", "silenced")}
    return pd.DataFrame({**numbers, **scores, **words})


def summarise_writers(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per reader and set of silenced positional heads: the effect, its interval, its controls and the verdict.

    `effect` is the mean of what the positional score loses and the symbolic score gains: 0 where nothing changes, one half
    where a head no longer tells the two slots apart, 1 where one that stayed in place follows what was moved. All rows are one
    family of verdicts, as they are one graph.
    """
    summaries: list[dict[str, Any]] = []
    figures: list[Figure] = []
    for _, group in rows.groupby(READER, sort=True):
        for summary, figure in _of_reader(group):
            summaries.append(summary)
            figures.append(figure)
    if not summaries:
        return pd.DataFrame(columns=[*READER, *WHERE, "silenced", "effect", "verdict", "null_draws"])
    beside = pd.DataFrame([asdict(verdict) for verdict in verdicts(figures)])
    return pd.concat([pd.DataFrame(summaries), beside], axis=1)


def edges_of(summary: pd.DataFrame) -> pd.DataFrame:
    """Writer and reader where silencing the one head takes more of the place than its controls do; the largest effect first."""
    is_edge = (summary["condition"] == ONE) & (summary["verdict"] == BEYOND)
    edges = summary[is_edge]
    edges = edges[edges["effect"] > edges["null_value"]] if len(edges) else edges
    return edges.sort_values("effect", ascending=False, kind="stable").reset_index(drop=True)


def too_few_sets(summary: pd.DataFrame) -> list[int]:
    """Layers whose single heads cannot be shown to write a place: there are fewer than 19 others to compare them with."""
    single = summary[(summary["condition"] == ONE) & (summary["null_draws"] < ENOUGH_DRAWS)]
    return sorted(int(layer) for layer in single["layer"].unique())


def _of_reader(rows: pd.DataFrame) -> Iterator[tuple[dict[str, Any], Figure]]:
    """Every condition of one reader, and its effect beside those of its controls."""
    about = {name: int(rows[name].iloc[0]) for name in READER}
    rows = rows[rows["covered_share"] >= COVERED]
    if rows.empty:
        return
    keys = [*WHERE, "draw"]
    # One row per set of silenced heads, one column per input.
    stays, follows = (rows.groupby([*keys, "input_id"], sort=False)[score].mean().unstack() for score in SCORES)
    leaning = (follows - stays) / 2
    condition, layer, _, draw = (leaning.index.get_level_values(name) for name in keys)
    [untouched] = leaning.index[condition == NONE]
    effects = leaning - leaning.loc[untouched]
    counts = rows.drop_duplicates(keys).set_index(keys)["silenced"].str.split().str.len()
    for key in effects.index[(draw < 0) & (condition != NONE)]:
        effect = effects.loc[key].to_numpy(dtype=float)
        [low], [high] = mean_interval(effect[:, None], (-1.0, 1.0))
        error = effect.std(ddof=1) / np.sqrt(len(effect)) if len(effect) > 1 else np.nan
        beside = effects[(condition == key[0]) & (layer == key[1]) & (draw >= 0)]
        scores = {
            f"{score}{suffix}": wide.loc[at].mean()
            for score, wide in zip(SCORES, (stays, follows), strict=True)
            for suffix, at in (("_before", untouched), ("", key))
        }
        measured = {"effect": effect.mean(), "low": low, "high": high, "prompts": len(effect)}
        position = dict(zip(WHERE, key, strict=False))
        summary = about | position | {"silenced": int(counts[key])} | scores | measured
        yield summary, Figure(float(effect.mean()), float(error), beside.mean(axis=1).tolist())


def writers_in_words(summary: pd.DataFrame) -> pd.DataFrame:
    """The summary for reading: who is silenced in words, all below the reader first, single heads by their effect last."""
    order = summary.assign(rank=summary["condition"].map({ALL: 0, LAYER: 1, ONE: 2}))
    order["least"] = -order["effect"].where(order["condition"] == ONE)
    order = order.sort_values([*READER, "rank", "least"], kind="stable")
    rows = [
        {
            "reader": f"{row['reader_layer']}:{row['reader_head']}",
            "silenced": _silenced_words(row),
            "heads": row["silenced"],
            "positional": row["positional_score"],
            "symbolic": row["symbolic_score"],
            "effect": row["effect"],
            "95 %": _ends(row["low"], row["high"]),
            "controls": row["null_value"],
            "95 % of controls": _ends(row["null_low"], row["null_high"]),
            "p": row["p_value"],
            "verdict": row["verdict"],
        }
        for row in order.to_dict("records")
    ]
    return pd.DataFrame(rows)


def _silenced_words(row: dict[Hashable, Any]) -> str:
    if row["condition"] == ONE:
        return f"{row['layer']}:{row['head']}"
    return "all below" if row["condition"] == ALL else f"layer {row['layer']}"


def _ends(low: float, high: float) -> str:
    return "" if np.isnan(low) else f"{low:.2f} to {high:.2f}"


@dataclass(frozen=True)
class Silenced:
    """What silencing some heads stands for."""

    condition: str
    """Nothing (none), a positional head alone (one), those of a layer (layer), or all of them (all)."""
    readers: tuple[Head, ...]
    """Who is asked."""
    layer: int = -1
    head: int = -1
    draw: int = -1
    """Which random control this is; -1 for the positional heads themselves."""


Gates = dict[frozenset[Head], list[Silenced]]


def readers_of(run: SwapDepths, most: int) -> dict[Head, int]:
    """Carried heads, those with most attention at stake first, each with the layer below which its place was written.

    That is the first depth that was run above the last at which it stays: there it follows already. Its own layer, if there is none.
    """
    heads = run.at()
    carried = heads[heads["head_class"] == "carried"].sort_values(
        "swapped_mass", ascending=False, kind="stable"
    )
    collected = {}
    for layer, head, stays_at in carried[["layer", "head", "stays_at"]].head(most).itertuples(index=False):
        above = (depth for depth in run.depths if stays_at < depth < layer)
        collected[int(layer), int(head)] = min(above, default=int(layer))
    return collected


def positional_heads(run: SwapDepths) -> list[Head]:
    """The heads that are pure positional at their layer."""
    heads = run.at()
    rows = heads.loc[heads["head_class"] == "positional", ["layer", "head"]]
    return [(int(layer), int(head)) for layer, head in rows.itertuples(index=False)]


def plan_gates(
    readers: Mapping[Head, int],
    positional: Sequence[Head],
    head_counts: Sequence[int],
    controls: int,
    seed: int,
) -> Gates:
    """Every set of heads that is silenced, and what for; nothing silenced comes first. Empty where there is nobody to ask."""
    gates: Gates = {}
    groups: list[tuple[Silenced, list[Head]]] = []
    for below in sorted(set(readers.values())):
        same = tuple(reader for reader, its in readers.items() if its == below)
        groups.append((Silenced(ALL, same), [head for head in positional if head[0] < below]))
    layers: dict[int, list[Head]] = {}
    for head in positional:
        layers.setdefault(head[0], []).append(head)
    above = {
        layer: tuple(reader for reader, below in readers.items() if layer < below) for layer in sorted(layers)
    }
    groups += [
        (Silenced(LAYER, above[layer], layer), layers[layer]) for layer in above if len(layers[layer]) > 1
    ]
    groups += [
        (Silenced(ONE, above[layer], layer, head[1]), [head]) for layer in above for head in layers[layer]
    ]
    groups = [(purpose, heads) for purpose, heads in groups if purpose.readers and heads]
    if groups:
        gates[frozenset()] = [Silenced(NONE, tuple(readers))]
    drawn = set()
    for purpose, heads in groups:
        gates.setdefault(frozenset(heads), []).append(purpose)
        # Single heads of a layer share their controls.
        group = replace(purpose, head=-1)
        if group not in drawn:
            drawn.add(group)
            dice = random.Random(f"{seed} {purpose.condition} {purpose.layer} {len(heads)}")
            for draw, chosen in enumerate(control_sets(heads, head_counts, controls, dice, positional)):
                gates.setdefault(chosen, []).append(replace(group, draw=draw))
    return gates


class Writers:
    """Asks carried heads what becomes of their place, gate by gate.

    The swaps are the readers' heaviest ones in the untouched model, with their weights there: under every gate the same swaps
    count as much as before, so that a difference comes from the gate and not from another choice. What a swap is compared
    with, the attention on the unswapped prompt, is the gated model's own: a head that looks elsewhere without the heads that
    were silenced has not lost its place by that, but one that no longer tells the two slots apart has.
    """

    def __init__(self, reader: HeadReader, work: Sequence[Batch], gates: Gates, swapping: Swapping) -> None:
        self.runs = Reruns(reader)
        self.work, self.gates = work, gates
        self.swapping = replace(swapping, heads=frozenset(gates[frozenset()][0].readers))
        self._chosen: list[ChosenSwaps] = []

    def measure(self, run: Run[SwapDepths]) -> Iterator[None]:
        """One piece for every gate, each when it is asked for."""
        for number, heads in enumerate(self.gates):
            run.piece(f"writers-{number:05d}", partial(self.under, heads))
            yield

    def under(self, heads: frozenset[Head]) -> Tables:
        """What all readers above some silenced heads follow."""
        if not self._chosen:
            self._chosen = [
                choose_swaps(self.runs, batch, k, self.swapping)
                for batch in self.work
                for k in range(len(batch.prompts))
            ]
        collected = []
        with gated(self.runs.reader, Gate(heads=heads)):
            for chosen in self._chosen:
                now, kept = chosen.begun_again(self.runs)
                rows = now.scores(self.runs, kept, self.swapping)
                collected.append(rows[~rows["own"]])
        rows = pd.concat(collected).rename(columns={"layer": "reader_layer", "head": "reader_head"})
        columns = ["prompt", "input_id", "reader_layer", "reader_head", *SCORES, "covered_share"]
        tables = []
        for purpose in self.gates[heads]:
            of = pd.MultiIndex.from_frame(rows[["reader_layer", "reader_head"]]).isin(purpose.readers)
            about = {
                "condition": purpose.condition,
                "layer": purpose.layer,
                "head": purpose.head,
                "draw": purpose.draw,
            }
            silenced = " ".join(f"{layer}:{head}" for layer, head in sorted(heads))
            tables.append(rows.loc[of, columns].assign(**about, silenced=silenced))
        return {"writers": pd.concat(tables, ignore_index=True)}
