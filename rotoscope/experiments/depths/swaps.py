"""Swaps at a depth: exchange the states of two blocks where they enter a layer, and see what later heads follow.

The papers swap what one layer attends over: depth k = the head's own layer. At k = 0 the words of the prompt itself
change places. Between the two lies the curve that says where a place was written into the states. One run of the end of
the prompt for each swap and depth scores all heads from that layer on.

Which swaps matter is known beforehand: their weights come from the unswapped run. Those are run that bring as many heads as
possible to half of their weight, and `covered_share` is the share of its own weight that they hold for a head.

A head that stays in place may follow a place, or the block before, which stays as well when single blocks change places.
Paired swaps tell the two apart: every block moves together with the block before it.
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
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Beginning, Reruns
from rotoscope.runs.result import Tables
from rotoscope.scores.attention import log_normaliser
from rotoscope.scores.blocks import BlockLogits, Blocks, block_spread
from rotoscope.scores.classes import COVERED, purity_classes
from rotoscope.scores.swaps import cosines, score_swaps
from rotoscope.shapes import Bool, Float, Int, Tensor
from rotoscope.stats.aggregate import INDEX, INPUT_SCORES, SCORES, permuted_rows

Scale = Callable[[LayerReading], LayerReading]
Head = tuple[int, int]
OnSwaps = Callable[[Int[Tensor, "swaps two"], int, "_Layer", Float[Tensor, "swaps heads n"]], None]
"""Shown a layer's number, its scores, some swaps, and the logits of the last position after each of them."""


@dataclass(frozen=True)
class Swapping:
    """What is swapped, and where."""

    depths: tuple[int, ...] = (0,)
    """The layers whose input is exchanged; 0 is the prompt itself."""
    swaps: int = 160
    """How many swaps of a prompt are run."""
    paired: bool = False
    """Whether every block moves together with the block before it."""
    taus: tuple[float, ...] = (1e-4,)
    most_tokens: int = 1024
    """How many tokens run through the model together."""
    heads: frozenset[tuple[int, int]] | None = None
    """Only these (layer, head) are asked about: their swaps are run, up to the last of their layers."""
    halving: Halving = field(default_factory=Halving)
    """What to do with swaps that do not fit the memory together."""
    on_swaps: OnSwaps | None = None
    """Shown what every layer does after the swaps that are run; swaps that did not fit the memory are shown again."""

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
    sinks: Float[Tensor, "heads"] | None
    """Logits of a sink that is no token."""
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
        visible = first + second > 0
        widest = self.attention.amax(1) - self.attention.amin(1)
        lack = widest[:, None] - (first - second).abs()
        tau = torch.tensor(taus, dtype=lack.dtype, device=lack.device)
        return self.largest[:, None] * (lack[..., None] / -tau).exp() * visible[..., None]


def swap_at_depths(runs: Reruns, batch: Batch, swapping: Swapping, scale: Scale | None = None) -> pd.DataFrame:
    """Scores of every head on every prompt of a batch, at every depth up to its own layer and at its own (`own`).

    One row per (prompt, layer, head, tau, depth). Rows at the own layer are the papers' scores over all swaps; the others are
    means over the swaps that were run, and `covered_share` is the share of the head's weight these hold.
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
    """The swaps of one prompt of a batch; from then on nothing is run above the last head that is asked about."""
    query = batch.queries[-1]
    tokens, blocks = batch.tokens[k : k + 1, : query + 1], batch.blocks_for(query)
    pairs = swappable(len(blocks), paired=swapping.paired)
    layers, weight = _closed_form(runs.reader, tokens, blocks, swapping, scale, pairs)
    chosen = covering(weight, swapping.swaps)
    # Swaps that begin at the same place keep the same beginning.
    order = [pairs[swap] for swap in sorted(chosen.tolist())]
    runs.last = max(layers)
    return ChosenSwaps(batch, k, tokens, blocks, layers, order)


def swappable(blocks: int, *, paired: bool = False) -> list[tuple[int, int]]:
    """The pairs of blocks that can change places; paired, both need a block before them, and these must not overlap."""
    pairs = itertools.combinations(range(blocks), 2)
    return [(a, b) for a, b in pairs if not paired or (a > 0 and b > a + 1)]


@dataclass(frozen=True)
class ChosenSwaps:
    """The swaps of one prompt that are run, with their weights and what they are compared with."""

    batch: Batch
    k: int
    """Which prompt of the batch."""
    tokens: Int[Tensor, "one n"]
    blocks: Blocks
    layers: dict[int, _Layer]
    pairs: list[tuple[int, int]]

    def scores(self, runs: Reruns, kept: Beginning, swapping: Swapping) -> pd.DataFrame:
        """Run the swaps at every depth; one row per (layer, head, tau, depth)."""
        n = self.tokens.shape[1]
        first = [moved_blocks(self.blocks, *pair, swapping.paired).spans[0][0] for pair in self.pairs]
        for depth in (depth for depth in swapping.depths if depth <= runs.last):
            for part in _batched(self.pairs, first, n, swapping.most_tokens):
                swapping.halving.each(part, n, partial(self._run, runs, kept, depth, swapping))
        return self.rows(swapping)

    def _run(
        self, runs: Reruns, kept: Beginning, depth: int, swapping: Swapping, pairs: list[tuple[int, int]]
    ) -> None:
        """Some of the swaps at one depth."""
        n, device = self.tokens.shape[1], runs.reader.device
        swaps = Swaps.of(self.blocks, pairs, n, device, paired=swapping.paired)
        show = swapping.on_swaps and partial(swapping.on_swaps, torch.tensor(pairs, device=device))
        _run(runs, kept, depth, swaps, self.layers, show)

    def rows(self, swapping: Swapping) -> pd.DataFrame:
        """The papers' scores, and those at the depths that were run."""
        pairs = torch.tensor(self.pairs, dtype=torch.long).reshape(-1, 2)
        return _rows(self.batch, self.k, self.layers, pairs, swapping)

    def begun_again(self, runs: Reruns) -> tuple[ChosenSwaps, Beginning]:
        """The same swaps with the same weights, compared with what the model attends to now, and the prompt run by it."""
        now: dict[int, Tensor] = {}
        kept = runs.begin(self.tokens, now.__setitem__)
        layers = {k: replace(layer, before=now[k][0], after={}) for k, layer in self.layers.items()}
        return replace(self, layers=layers), kept


def _closed_form(
    reader: HeadReader,
    tokens: Tensor,
    blocks: Blocks,
    swapping: Swapping,
    scale: Scale | None,
    pairs: list[tuple[int, int]],
) -> tuple[dict[int, _Layer], Float[Tensor, "heads swaps"]]:
    """What the papers' swaps give, exactly, and the weight of every swap for every head (at the first tau)."""
    read: dict[int, _Layer] = {}
    weights: list[Tensor] = []
    columns = torch.tensor([_column(a, b, len(blocks)) for a, b in pairs], dtype=torch.long)

    def visit(reading: LayerReading) -> None:
        scored = _score_layer(reading if scale is None else scale(reading), blocks, swapping)
        if scored is not None:
            read[reading.layer], weight = scored
            weights.append(weight)

    reader.read(tokens, (tokens.shape[1] - 1,), visit)
    return read, torch.cat(weights)[:, columns]


def _score_layer(
    reading: LayerReading, blocks: Blocks, swapping: Swapping
) -> tuple[_Layer, Float[Tensor, "heads swaps"]] | None:
    """One layer's exact scores, and the weight of every swap for its heads; None where no head is asked about."""
    layer = reading.at(0)
    real = layer.real()
    heads = [head for head in range(real.shape[1]) if swapping.asks(reading.layer, head)]
    if not heads:
        return None
    scores = score_swaps(layer, real, blocks, swapping.taus, sink=layer.sinks, variants=False, detail=True)
    assert scores.detail is not None
    precise = real.double()
    own = BlockLogits(layer.gather, blocks, real.device).own(precise)
    attention = (own - log_normaliser(precise, layer.sinks)[..., None]).exp()[0]
    missing = scores.missing[0, :, None]
    scored = _Layer(
        heads,
        scores.positional[0].masked_fill(missing, torch.nan),
        scores.symbolic[0].masked_fill(missing, torch.nan),
        scores.swapped_mass[0],
        block_spread(real[0], blocks),
        attention,
        None if layer.sinks is None else layer.sinks[0],
        scores.detail.weight[0].amax(1).double(),
        real[0],
    )
    return scored, scores.detail.weight[0, heads, :, 0].float().cpu()


def _column(first: int, second: int, blocks: int) -> int:
    """Where a swap stands among all swaps, ordered by first and then by second block."""
    return first * (2 * blocks - first - 1) // 2 + second - first - 1


def covering(weight: Float[Tensor, "heads swaps"], most: int) -> Int[Tensor, "chosen"]:
    """The swaps to run, chosen one after the other; `weight` is what each holds of each head's weight.

    A head has a verdict from half of its weight on. So a swap is worth what it closes of the gap to one half, each head's gap
    counting as one, summed over heads. Once no gap can be closed, the swaps with the largest summed weight follow.
    """
    lacks = torch.full((len(weight), 1), COVERED, dtype=weight.dtype)
    free = torch.ones(weight.shape[1], dtype=torch.bool)
    chosen: list[int] = []
    while len(chosen) < min(most, weight.shape[1]):
        lacking = lacks[:, 0] > 0
        worth = (weight[lacking] / lacks[lacking]).clamp(max=1).sum(0).where(free, -1.0)
        if not lacking.any() or worth.max() <= 0:
            break
        chosen.append(int(worth.argmax()))
        free[chosen[-1]] = False
        lacks -= weight[:, chosen[-1:]]
    rest = weight.double().sum(0).where(free, -1.0).sort(descending=True, stable=True).indices
    return torch.cat([torch.tensor(chosen, dtype=torch.long), rest[: int(free.sum())]])[:most]


def _batched(
    pairs: list[tuple[int, int]], first: list[int], n: int, most_tokens: int
) -> list[list[tuple[int, int]]]:
    """Consecutive swaps whose ends, from the `first` position that changes on, fit a batch."""
    parts: list[list[tuple[int, int]]] = []
    start = 0
    for pair, begins in zip(pairs, first, strict=True):
        if parts and (len(parts[-1]) + 1) * (n - start) <= most_tokens:
            parts[-1].append(pair)
        else:
            parts.append([pair])
            start = begins
    return parts


def moved_blocks(blocks: Blocks, first: int, second: int, paired: bool) -> Blocks:
    """The two spans that change places: the blocks themselves, or each from the beginning of the block before it."""
    spans = [(blocks.spans[block - paired][0], blocks.spans[block][1]) for block in (first, second)]
    return Blocks(tuple(spans))


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
    def of(
        cls,
        blocks: Blocks,
        pairs: Sequence[tuple[int, int]],
        n: int,
        device: torch.device,
        *,
        paired: bool = False,
    ) -> Swaps:
        longest = max(blocks.lengths)
        moved = [moved_blocks(blocks, *pair, paired) for pair in pairs]

        def positions(spans: Sequence[Sequence[int]]) -> list[list[int]]:
            return [[min(start + o, stop - 1) for o in range(longest)] for start, stop in spans]

        # Each block stands at the end of what moves with it.
        slots = [
            [
                (slot.stop - blocks.lengths[block], slot.stop)
                for slot, block in zip(two.slots(0, 1), pair[::-1], strict=True)
            ]
            for two, pair in zip(moved, pairs, strict=True)
        ]
        own = [[blocks.spans[block] for block in pair] for pair in pairs]
        lengths = torch.tensor([[blocks.lengths[block] for block in pair] for pair in pairs], device=device)
        return cls(
            first=min(two.spans[0][0] for two in moved),
            orders=torch.tensor([two.exchange(0, 1, n) for two in moved], device=device),
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
        entries = logits.gather(2, positions.flatten(1)[:, None].expand(-1, heads, -1))
        entries = entries.unflatten(2, positions.shape[1:]).masked_fill(~inside[:, None], -torch.inf)
        first, second = (entries.logsumexp(-1) - inside.sum(-1)[:, None].to(entries).log()).unbind(-1)
        return first - second


def _run(
    runs: Reruns,
    kept: Beginning,
    depth: int,
    swaps: Swaps,
    layers: dict[int, _Layer],
    show: Callable[[int, "_Layer", Tensor], None] | None,
) -> None:
    """Run some swaps at one depth and note both cosines for every head from there on, once all layers were there."""
    both_cosines: dict[int, tuple[Tensor, Tensor]] = {}

    def note(number: int, logits: Tensor) -> None:
        if number in layers:
            before = layers[number].before.to(logits)
            both_cosines[number] = cosines(swaps.after_swap(logits), swaps.before_swap(before))
            if show is not None:
                show(number, layers[number], logits)

    ends = swaps.orders[:, swaps.first :]
    if depth == 0:
        runs.again(kept, swaps.first, kept.tokens[0, ends], note)
    else:
        assert kept.states is not None
        runs.enter(kept, depth, swaps.first, kept.states[depth, 0, ends], note)
    for number, pair in both_cosines.items():
        layers[number].after.setdefault(depth, []).append(pair)


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
            sides = (torch.cat(side).T[..., None].double() for side in zip(*parts, strict=True))
            scores[depth] = tuple(((weight * cosine).sum(1) / covered) for cosine in sides)  # type: ignore[assignment]
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


def staying_heads(heads: pd.DataFrame) -> frozenset[tuple[int, int]]:
    """Heads that are pure symbolic at their layer and stay more than they follow with the prompt permuted."""
    symbolic = heads["head_class"].isin(["symbolic", "carried"])
    stays = heads[INPUT_SCORES[0]] > heads[INPUT_SCORES[1]]
    return frozenset(heads.loc[symbolic & stays, ["layer", "head"]].itertuples(index=False, name=None))


def paired_scores(runs: Reruns, batch: Batch, swapping: Swapping, heads: frozenset[tuple[int, int]]) -> Tables:
    """Scores of some heads on a batch, every block of the prompt moved together with the block before it."""
    rows = swap_at_depths(runs, batch, replace(swapping, depths=(0,), heads=heads, paired=True))
    return {"paired_prompts": permuted_rows(rows)}


def gaussian_permuted(nulls: Sequence[tuple[Null, Null]], batch: Batch) -> list[pd.DataFrame]:
    """Scores of every head on the one prompt of a batch where keys hold no content: Gaussian ones, drawn anew after every swap.

    Of every pair of draws the first gives the keys before the swaps, the second those after. Rows as of `swap_at_depths` at
    depth 0, over all swaps. Which slot gets more attention after a swap is left to the query, the rotation and the keys'
    shared direction. The prompt is read once for all draws.
    """
    query = batch.queries[-1]
    tokens, blocks = batch.tokens[:, : query + 1], batch.blocks_for(query)
    reader, swapping, pairs = nulls[0][0].reader, Swapping(), swappable(len(blocks))
    swaps = Swaps.of(blocks, pairs, query + 1, reader.device)
    layers: list[dict[int, _Layer]] = [{} for _ in nulls]

    def visit(reading: LayerReading) -> None:
        for scored, (before, after) in zip(layers, nulls, strict=True):
            entry = _score_layer(before.transform(reading, batch), blocks, swapping)
            assert entry is not None
            layer = scored[reading.layer] = entry[0]
            drawn = after.transform(reading, batch).at(0).real()
            slots = swaps.after_swap(drawn.expand(len(pairs), -1, -1))
            layer.after[0] = [cosines(slots, swaps.before_swap(layer.before))]

    reader.read(tokens, (query,), visit)
    return [_rows(batch, 0, scored, torch.tensor(pairs), swapping) for scored in layers]


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
    tables = []
    for batch in work:
        rows = swap_at_depths(runs, batch, swapping, lambda layer, batch=batch: null.transform(layer, batch))  # type: ignore[misc]
        rows.insert(0, "draw", null.draw)
        rows.insert(0, "null_name", null.name)
        tables.append(rows)
    return tables
