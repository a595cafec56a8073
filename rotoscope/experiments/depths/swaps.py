"""Swaps at a depth: exchange the states of two blocks where they enter a layer, and see what later heads follow.

The papers swap what one layer attends over: depth k = the head's own layer. At k = 0 the words of the prompt itself
change places. Between the two lies the curve that says where a place was written into the states. One run of the end of
the prompt for each swap and depth scores all heads from that layer on.

Which swaps matter is known beforehand: their weights come from the unswapped run. The heaviest in the mean over all heads
are run, and every head is told which share of its own weight they cover.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
import torch

from rotoscope.measures.batches import Batch, Halving
from rotoscope.measures.null import Null
from rotoscope.models.layer import LayerReading
from rotoscope.models.rerun import Beginning, Reruns
from rotoscope.scores.attention import log_normaliser
from rotoscope.scores.blocks import BlockLogits, Blocks, block_spread
from rotoscope.scores.classes import purity_classes
from rotoscope.scores.swap_pairs import cosines
from rotoscope.scores.swaps import score_swaps
from rotoscope.shapes import Bool, Float, Int, Tensor
from rotoscope.stats.aggregate import INDEX, SCORES

Scale = Callable[[LayerReading], LayerReading]


@dataclass(frozen=True)
class Swapping:
    """What is swapped, and where."""

    depths: tuple[int, ...] = (0,)
    """The layers whose input is exchanged; 0 is the prompt itself."""
    swaps: int = 64
    """How many swaps of a prompt are run, the heaviest first."""
    taus: tuple[float, ...] = (1e-4,)
    most_tokens: int = 1024
    """How many tokens run through the model together."""
    heads: frozenset[tuple[int, int]] | None = None
    """Only these (layer, head) are asked about: their swaps are run, up to the last of their layers."""
    halving: Halving = field(default_factory=Halving)
    """What to do with swaps that do not fit the memory together."""

    def asks(self, layer: int, head: int) -> bool:
        """Whether a head is asked about."""
        return self.heads is None or (layer, head) in self.heads


@dataclass
class _Layer:
    """One layer on one prompt: the exact scores of its own swaps, and those of the swaps that were run."""

    heads: list[int]
    """Those that are asked about."""
    positional: Float[Tensor, "heads taus"]
    symbolic: Float[Tensor, "heads taus"]
    swapped_mass: Float[Tensor, "heads"]
    spread: Float[Tensor, "heads"]
    attention: Float[Tensor, "heads blocks"]
    """Mean attention on a block; a block that the query does not see has none."""
    largest: Float[Tensor, "heads taus"]
    """The largest weight of a swap."""
    before: Float[Tensor, "heads n"]
    after: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    """By depth: both cosines [swaps, heads] of the swaps run, in the order they were run."""

    def weight(
        self, pairs: Int[Tensor, "swaps two"], taus: Sequence[float]
    ) -> Float[Tensor, "heads swaps taus"]:
        """The weights of some swaps: of a swap alone |D_a - D_b| decides, and the largest is known."""
        first, second = self.attention[:, pairs].unbind(-1)
        seen = first + second > 0
        widest = self.attention.amax(1) - self.attention.amin(1)
        lack = widest[:, None] - (first - second).abs()
        tau = torch.tensor(taus, dtype=lack.dtype, device=lack.device)
        return self.largest[:, None] * (lack[..., None] / -tau).exp() * seen[..., None]


def swap_at_depths(runs: Reruns, batch: Batch, swapping: Swapping, scale: Scale | None = None) -> pd.DataFrame:
    """Scores of every head on every prompt of a batch, at every depth up to its own layer and at its own (`own`).

    One row per (prompt, layer, head, tau, depth). Rows at the own layer are the papers' scores over all swaps; the others are
    means over the swaps that were run, and `covered_share` says how much of the head's weight these hold.
    """
    return pd.concat(
        [_one_prompt(runs, batch, k, swapping, scale) for k in range(len(batch.prompts))], ignore_index=True
    )


def _one_prompt(runs: Reruns, batch: Batch, k: int, swapping: Swapping, scale: Scale | None) -> pd.DataFrame:
    chosen = choose_swaps(runs, batch, k, swapping, scale)
    return (
        chosen.scores(runs, runs.begin(chosen.tokens), swapping) if swapping.depths else chosen.rows(swapping)
    )


def choose_swaps(
    runs: Reruns, batch: Batch, k: int, swapping: Swapping, scale: Scale | None = None
) -> ChosenSwaps:
    """The heaviest swaps of one prompt of a batch; from then on nothing is run above the last head that is asked about."""
    query = batch.queries[-1]
    tokens, blocks = batch.tokens[k : k + 1, : query + 1], batch.blocks_for(query)
    layers, weight = _closed_form(runs, tokens, blocks, swapping, scale)
    chosen = heaviest(weight, swapping.swaps)
    pairs = list(itertools.combinations(range(len(blocks)), 2))
    # Swaps that begin at the same place keep the same beginning.
    order = sorted(chosen.tolist(), key=pairs.__getitem__)
    runs.last = max(layers)
    return ChosenSwaps(batch, k, tokens, blocks, layers, order, pairs)


@dataclass(frozen=True)
class ChosenSwaps:
    """The swaps of one prompt that are run, with their weights and what they are compared with."""

    batch: Batch
    k: int
    """Which prompt of the batch."""
    tokens: Int[Tensor, "one n"]
    blocks: Blocks
    layers: dict[int, _Layer]
    order: list[int]
    pairs: list[tuple[int, int]]

    def scores(self, runs: Reruns, kept: Beginning, swapping: Swapping) -> pd.DataFrame:
        """Run the swaps at every depth; one row per (layer, head, tau, depth)."""
        n = self.tokens.shape[1]
        for depth in (depth for depth in swapping.depths if depth <= runs.last):
            for part in _together(self.order, self.pairs, self.blocks, n, swapping.most_tokens):
                swapping.halving.each(part, n, partial(self._run, runs, kept, depth))
        return self.rows(swapping)

    def _run(self, runs: Reruns, kept: Beginning, depth: int, part: list[int]) -> None:
        """Some of the swaps at one depth."""
        pairs = [self.pairs[s] for s in part]
        swaps = Swaps.of(self.blocks, pairs, self.tokens.shape[1], runs.reader.device)
        _run(runs, kept, depth, swaps, self.layers)

    def rows(self, swapping: Swapping) -> pd.DataFrame:
        """The papers' scores, and those at the depths that were run."""
        run = torch.tensor([self.pairs[s] for s in self.order])
        return _rows(self.batch, self.k, self.layers, run, swapping)

    def begun_again(self, runs: Reruns) -> tuple[ChosenSwaps, Beginning]:
        """The same swaps with the same weights, compared with what the model attends to now, and the prompt run by it."""
        now: dict[int, Tensor] = {}
        kept = runs.begin(self.tokens, now.__setitem__)
        layers = {k: replace(layer, before=now[k][0], after={}) for k, layer in self.layers.items()}
        return replace(self, layers=layers), kept


def _closed_form(
    runs: Reruns, tokens: Tensor, blocks: Blocks, swapping: Swapping, scale: Scale | None
) -> tuple[dict[int, _Layer], Float[Tensor, "swaps"]]:
    """What the papers' swaps give, exactly, and the weight of every swap in the sum over heads (at the first tau)."""
    found: dict[int, _Layer] = {}
    weight = torch.zeros(len(blocks) * (len(blocks) - 1) // 2, dtype=torch.float64)

    def visit(layer: LayerReading) -> None:
        here = (layer if scale is None else scale(layer)).at(0)
        real = here.real()
        heads = [h for h in range(real.shape[1]) if swapping.asks(layer.layer, h)]
        if not heads:
            return
        taus = swapping.taus
        scores = score_swaps(here, real, blocks, taus, sink=here.sinks, variants=False, detail=True)
        assert scores.detail is not None
        weight.add_(scores.detail.weight[0, heads, :, 0].double().sum(0).cpu())
        precise = real.double()
        own = BlockLogits(here.gather, blocks, real.device).own(precise)
        attention = (own - log_normaliser(precise, here.sinks)[..., None]).exp()[0]
        missing = scores.missing[0, :, None]
        found[layer.layer] = _Layer(
            heads,
            scores.positional[0].masked_fill(missing, torch.nan),
            scores.symbolic[0].masked_fill(missing, torch.nan),
            scores.swapped_mass[0],
            block_spread(real[0], blocks),
            attention,
            scores.detail.weight[0].amax(1).double(),
            real[0],
        )

    runs.reader.read(tokens, (tokens.shape[1] - 1,), visit)
    return found, weight


def heaviest(weight: Float[Tensor, "swaps"], most: int) -> Int[Tensor, "chosen"]:
    """The swaps with the largest weight, the heaviest first."""
    return weight.sort(descending=True, stable=True).indices[:most]


def _together(
    order: list[int], pairs: list[tuple[int, int]], blocks: Blocks, n: int, most_tokens: int
) -> list[list[int]]:
    """Consecutive swaps whose ends fit a batch."""
    parts: list[list[int]] = []
    for swap in order:
        if parts and (len(parts[-1]) + 1) * (n - blocks.spans[pairs[parts[-1][0]][0]][0]) <= most_tokens:
            parts[-1].append(swap)
        else:
            parts.append([swap])
    return parts


@dataclass(frozen=True)
class Swaps:
    """Some swaps of a prompt as tensors: its order after each, and the positions of the two slots before and after."""

    first: int
    """Nothing before this position changes."""
    orders: Int[Tensor, "swaps n"]
    before: Int[Tensor, "swaps two longest"]
    after: Int[Tensor, "swaps two longest"]
    inside: Bool[Tensor, "swaps two longest"]
    """Which entries of a slot are positions; of the two contents after the swap it is the other way round."""

    @classmethod
    def of(cls, blocks: Blocks, pairs: Sequence[tuple[int, int]], n: int, device: torch.device) -> Swaps:
        longest = max(blocks.lengths)

        def positions(spans: Sequence[Sequence[int]]) -> list[list[int]]:
            return [[min(start + o, stop - 1) for o in range(longest)] for start, stop in spans]

        slots = [[(slot.start, slot.stop) for slot in blocks.slots(*pair)] for pair in pairs]
        own = [[blocks.spans[block] for block in pair] for pair in pairs]
        lengths = torch.tensor([[blocks.lengths[block] for block in pair] for pair in pairs], device=device)
        return cls(
            first=min(blocks.spans[a][0] for a, _ in pairs),
            orders=torch.tensor([blocks.exchange(*pair, n) for pair in pairs], device=device),
            before=torch.tensor([positions(spans) for spans in own], device=device),
            after=torch.tensor([positions(spans) for spans in slots], device=device),
            inside=torch.arange(longest, device=device) < lengths[..., None],
        )

    def before_swap(self, logits: Float[Tensor, "heads n"]) -> Float[Tensor, "swaps heads"]:
        """log of the ratio of the two blocks' mean attention, unswapped."""
        return self._difference(logits.expand(len(self.before), *logits.shape), self.before, self.inside)

    def after_swap(self, logits: Float[Tensor, "swaps heads n"]) -> Float[Tensor, "swaps heads"]:
        """The same where the contents stand after the exchange: the second block's in front."""
        return self._difference(logits, self.after, self.inside.flip(1))

    def _difference(self, logits: Tensor, positions: Tensor, inside: Tensor) -> Tensor:
        heads = logits.shape[1]
        taken = logits.gather(2, positions.flatten(1)[:, None].expand(-1, heads, -1))
        entries = taken.unflatten(2, positions.shape[1:]).masked_fill(~inside[:, None], -torch.inf)
        first, second = (entries.logsumexp(-1) - inside.sum(-1)[:, None].to(entries).log()).unbind(-1)
        return first - second


def _run(runs: Reruns, kept: Beginning, depth: int, swaps: Swaps, layers: dict[int, _Layer]) -> None:
    """Run some swaps at one depth and note both cosines for every head from there on, once all layers were there."""
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def note(number: int, logits: Tensor) -> None:
        if number in layers:
            before = layers[number].before.to(logits)
            found[number] = cosines(swaps.after_swap(logits), swaps.before_swap(before))

    ends = swaps.orders[:, swaps.first :]
    if depth == 0:
        runs.again(kept, swaps.first, kept.tokens[0, ends], note)
    else:
        assert kept.states is not None
        runs.enter(kept, depth, swaps.first, kept.states[depth, 0, ends], note)
    for number, both in found.items():
        layers[number].after.setdefault(depth, []).append(both)


def _rows(
    batch: Batch, k: int, layers: dict[int, _Layer], pairs: Int[Tensor, "swaps two"], swapping: Swapping
) -> pd.DataFrame:
    tables = []
    for number, layer in layers.items():
        heads, taus = torch.tensor(layer.heads), len(swapping.taus)
        weight = layer.weight(pairs.to(layer.attention.device), swapping.taus)
        covered = weight.sum(1)
        scores = {-1: (layer.positional, layer.symbolic)}
        for depth, parts in layer.after.items():
            both = (torch.cat(side).T[..., None].double() for side in zip(*parts, strict=True))
            scores[depth] = tuple(((weight * cosine).sum(1) / covered) for cosine in both)  # type: ignore[assignment]
        for depth, (positional, symbolic) in scores.items():
            own = depth < 0
            columns: dict[str, Any] = {
                "prompt": batch.first + k,
                "input_id": batch.inputs[k],
                "layer": number,
                "head": heads.repeat_interleave(taus).numpy(),
                "tau": torch.tensor(swapping.taus, dtype=torch.float64).repeat(len(heads)).numpy(),
                "depth": number if own else depth,
                "own": own,
                "positional_score": positional[heads].flatten().double().cpu().numpy(),
                "symbolic_score": symbolic[heads].flatten().double().cpu().numpy(),
                "covered_share": (torch.ones_like(covered) if own else covered)[heads].flatten().cpu().numpy(),
            }
            for name, values in (("swapped_mass", layer.swapped_mass), ("block_spread", layer.spread)):
                columns[name] = values[heads].repeat_interleave(taus).double().cpu().numpy()
            tables.append(pd.DataFrame(columns))
    kinds = {"prompt": "int32", "input_id": "int32", "layer": "int16", "head": "int16", "depth": "int16"}
    return pd.concat(tables, ignore_index=True).astype(kinds).sort_values(["prompt", *INDEX, "own", "depth"])


def null_scores(
    null: Null, work: list[Batch], swapping: Swapping, *, gamma: float, everyone: bool = False
) -> list[pd.DataFrame]:
    """One draw of the null on every batch, its logits rescaled as they are in a profile.

    Unless `everyone` is asked for, swaps are run only for heads that are pure symbolic at their layer: no other can be
    carried, and a draw without any costs no run at all.
    """
    if everyone:
        return null_rows(null, work, swapping)
    at_own = null_rows(null, work, replace(swapping, depths=()))
    chosen = symbolic_heads(pd.concat(at_own), swapping.taus[0], gamma)
    if not chosen or not swapping.depths:
        return at_own
    below = null_rows(null, work, replace(swapping, heads=chosen))
    return [pd.concat([own, rows[~rows["own"]]]) for own, rows in zip(at_own, below, strict=True)]


def symbolic_heads(rows: pd.DataFrame, tau: float, gamma: float) -> frozenset[tuple[int, int]]:
    """The heads that are pure symbolic at their layer, of scores per prompt."""
    means = rows[rows["tau"] == tau].groupby(["layer", "head"])[SCORES].mean()
    classes = purity_classes(means["positional_score"], means["symbolic_score"], gamma)
    return frozenset(head for head, name in zip(means.index, classes, strict=True) if name == "symbolic")


def null_rows(null: Null, work: list[Batch], swapping: Swapping) -> list[pd.DataFrame]:
    """One draw of the null on every batch."""
    runs = Reruns(null.reader, factors=null.factors, enters=any(swapping.depths))
    found = []
    for batch in work:
        rows = swap_at_depths(runs, batch, swapping, lambda layer, batch=batch: null.transform(layer, batch))  # type: ignore[misc]
        rows.insert(0, "draw", null.draw)
        rows.insert(0, "null_name", null.name)
        found.append(rows)
    return found
