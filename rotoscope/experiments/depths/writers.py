"""Who writes the place that a carried head reads? Heads below it are silenced: does it still stay in place?

A carried head follows states into which earlier layers wrote a place. Positional heads know places, so they are silenced
while the prompt is permuted: each of them alone, all of a layer, and all below the depth at which the reader turns.
Beside them stand other heads of the same layers, equally many, drawn at random. One gate serves all readers above it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd

from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.depths.swaps import ChosenSwaps, Swapping, choose_swaps
from rotoscope.experiments.depths.writers_result import ALL, LAYER, NONE, ONE
from rotoscope.experiments.selection import Head, control_sets
from rotoscope.measures.batches import Batch
from rotoscope.models.interventions import Gate, gated
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.stats.aggregate import SCORES


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
