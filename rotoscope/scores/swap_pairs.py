"""Block logits of heads whose blocks stand in an order of their own: equal lengths, all positions visible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import torch

from rotoscope.errors import RotoscopeError
from rotoscope.scores.attention import log_normaliser
from rotoscope.scores.blocks import Blocks
from rotoscope.scores.counterfactual import Factors
from rotoscope.shapes import Float, Int, Tensor

TILE = 128  # rows per tile


def rows_of(
    table: Float[Tensor, "tables rows width"], picked: Int[Tensor, "..."], row: Int[Tensor, "..."]
) -> Tensor:
    """table[which, row], five times as fast as by indices."""
    index = picked * table.shape[1] + row
    return table.flatten(0, 1).index_select(0, index.flatten()).view(*index.shape, -1)


class OrderedLogits:
    """Rectangles of B[a, b] and B[b, a], a and b counted in each head's own order."""

    def __init__(self, factors: Factors, blocks: Blocks) -> None:
        self.factors, self.group = factors, factors.query.shape[2]
        self.places = blocks.on(factors.keys.device).starts  # [offsets, blocks]
        self.turned_query = factors.turned_query.flatten(2, 3).flatten(0, 1)  # [key heads, n * group, d]
        self.keys = factors.keys.flatten(0, 1)

    def block_logits(
        self, heads: Int[Tensor, "heads"], order: Int[Tensor, "heads blocks"], rows: slice, columns: slice
    ) -> tuple[Float[Tensor, "heads rows columns"], Float[Tensor, "heads rows columns"]]:
        """B[a, b] and B[b, a] of some heads, both in the layout [a, b]."""
        key_head, member = (x[:, None, None] for x in (heads // self.group, heads % self.group))
        at = [self.places[:, order[:, part]].transpose(0, 1) for part in (rows, columns)]
        slots = [rows_of(self.turned_query, key_head, places * self.group + member) for places in at]
        contents = [rows_of(self.keys, key_head, places) for places in at]  # each [heads, offsets, blocks, d]
        upper, lower = slots[0] @ contents[1].mT, contents[0] @ slots[1].mT
        return self._log_mean(upper), self._log_mean(lower)

    def _log_mean(self, entries: Float[Tensor, "heads offsets rows columns"]) -> Tensor:
        entries = self.factors.capped(entries)
        if entries.shape[1] == 1:
            return entries[:, 0]
        return entries.logsumexp(1).sub_(math.log(entries.shape[1]))


def alike_heads(rows: Int[Tensor, "heads"], room: int) -> Iterator[Int[Tensor, "some"]]:
    """Heads that need about as many rows, so many together that their rows fit into `room`."""
    needed, heads = rows.sort()
    first = 0
    for last, size in enumerate([*needed.tolist()[1:], math.inf], start=1):
        if (last - first + 1) * min(size, TILE) > room or size > 2 * needed[first] + 8:
            yield heads[first:last]
            first = last


def needed_tiles(rows: int, first_column: int, m: int) -> Iterator[tuple[slice, slice]]:
    """Tiles of the pairs a < b of the first `rows` blocks with those from `first_column` on."""
    rows = min(rows, m - 1)
    for start in range(0, rows, TILE):
        yield slice(start, min(start + TILE, rows)), slice(max(start, first_column), m)


# Pairs of blocks: which there are, the cosines of a swap, and means over swaps.


@dataclass(frozen=True)
class Pick:
    """Some heads, each with its blocks in an order of its own."""

    chosen: Int[Tensor, "chosen"]
    order: Int[Tensor, "chosen blocks"]

    def heads(self, numbers: Tensor) -> Tensor:
        """Of numbers [batch, heads, ...] those of the heads."""
        return numbers.flatten(0, 1)[self.chosen]

    def __call__(self, numbers: Tensor) -> Tensor:
        """Of numbers [batch, heads, blocks] those of the heads, in their order."""
        return self.heads(numbers).gather(-1, self.order)


def tiles(m: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Row bands of the upper triangle: each holds the pairs of its rows with everything to their right."""
    for start in range(0, m - 1, rows):
        yield slice(start, min(start + rows, m)), slice(start, m)


def each_pair_once(rows: slice, columns: slice, device: torch.device) -> Tensor:
    """Which entries of a tile are pairs a < b."""
    first, second = (torch.arange(x.start, x.stop, device=device) for x in (rows, columns))
    return first[:, None] < second


def mean_over_swaps(total: Tensor, weight: Tensor) -> Tensor:
    """A weighted sum over swaps and the sum of their weights as a mean; 0 where no swap counts."""
    return torch.where(weight > 0, total / weight, 0.0)


def effective_swaps(weight: Tensor, square: Tensor) -> Tensor:
    """1 / sum of alpha squared, from the sums of the weights and of their squares."""
    return torch.where(square > 0, weight * weight / square, 0.0)


class WeightedMean:
    """Means over swaps with weights softmax(|D_a - D_b| / tau), gathered tile by tile for several tau.

    The largest |D_a - D_b| of all pairs is max D - min D, known before the first tile, so no running maximum
    is needed. (The block with the largest D is visible, hence that pair counts.) What a pair lacks of it,

        min over both orders of  (max D - D_a) + (D_b - min D),

    is a sum of two numbers that are exact however small they are: weights do not hang on rounding.
    """

    def __init__(
        self,
        attention: Float[Tensor, "... blocks"],
        taus: tuple[float, ...],
        dtype: torch.dtype,
        top: Float[Tensor, "..."] | None = None,
    ) -> None:
        smallest = torch.finfo(dtype).tiny
        if min(taus) < smallest:
            kind = str(dtype).removeprefix("torch.")
            raise RotoscopeError(
                f"tau = {min(taus):g} is too small to divide {kind} numbers by: the smallest is {smallest:.1e}"
            )
        self.taus = taus
        most, least = attention.amax(-1, keepdim=True), attention.amin(-1, keepdim=True)
        self.below_most, self.above_least = (most - attention).to(dtype), (attention - least).to(dtype)
        self.spare = None if top is None else (most - least)[..., 0].sub(top).to(dtype)[..., None, None]
        """Where not all pairs take part: how far the largest gap of those that do stays behind."""
        self.totals: list[Tensor] | None = None

    def add(self, rows: slice, columns: slice, counted: Tensor, values: tuple[Tensor, ...]) -> list[Tensor]:
        weights = [weight.mul_(counted) for weight in self._weights(rows, columns)]
        sums = [torch.stack([w.sum((-2, -1)) for w in weights], dim=-1)]
        sums.append(torch.stack([(w * w).sum((-2, -1)) for w in weights], dim=-1))
        for value in values:
            sums.append(torch.stack([(w * value).sum((-2, -1)) for w in weights], dim=-1))
        if self.totals is None:
            self.totals = sums
        else:
            self.totals = [total + part for total, part in zip(self.totals, sums, strict=True)]
        return weights

    def _weights(self, rows: slice, columns: slice) -> list[Tensor]:
        """exp(-lack / tau): the larger of two products of numbers of single blocks, so that no pair needs an exponential."""
        below, above = self.below_most, self.above_least
        if self.spare is None:
            parts = []
            for tau in self.taus:
                high, low = (below / -tau).exp_(), (above / -tau).exp_()
                parts.append(
                    torch.maximum(
                        high[..., rows, None] * low[..., None, columns],
                        low[..., rows, None] * high[..., None, columns],
                    )
                )
            return parts
        lack = torch.minimum(
            below[..., rows, None] + above[..., None, columns],
            above[..., rows, None] + below[..., None, columns],
        )  # pairs that do not count may lack less than nothing; they must not overflow
        lack = (lack - self.spare).clamp_(min=0)
        return [(lack / -tau).exp_() for tau in self.taus]

    def ordered(self, pick: Pick) -> WeightedMean:
        """The same for some heads with their blocks in another order, nothing gathered yet."""
        part = copy(self)
        part.below_most, part.above_least = pick(self.below_most), pick(self.above_least)
        part.spare = None if self.spare is None else pick.heads(self.spare)
        part.totals = None
        return part

    def means(self) -> list[Tensor]:
        assert self.totals is not None
        weight, _, *values = self.totals
        return [mean_over_swaps(value, weight) for value in values]

    def effective(self) -> Tensor:
        assert self.totals is not None
        return effective_swaps(*self.totals[:2])


Symbols = Sequence[int] | Int[Tensor, "... blocks"]
"""An id for the symbol of each block, the same for all heads or, with leading axes, of each input its own."""


def symbol_ids(symbols: Symbols, m: int, device: torch.device) -> tuple[Int[Tensor, "... blocks"], int]:
    """Ids counted from 0, so that they can number groups, and how many there are."""
    symbol_ids = torch.as_tensor(symbols)
    if symbol_ids.shape[-1] != m:
        raise RotoscopeError(f"{symbol_ids.shape[-1]} symbols were given for {m} blocks")
    groups, ids = symbol_ids.unique(return_inverse=True)
    return ids.to(device), len(groups)


def largest_gap(attention: Tensor, ids: Tensor, count: int) -> Tensor:
    """The largest |D_a - D_b| between equal symbols: per symbol, the largest minus the smallest D."""
    groups = torch.zeros(*attention.shape[:-1], count, dtype=attention.dtype, device=ids.device)
    ids = ids.expand(attention.shape)
    ends = [groups.scatter_reduce(-1, ids, attention, end, include_self=False) for end in ("amax", "amin")]
    return (ends[0] - ends[1]).amax(-1)


LEAST = 1e-12
"""Weight, relative to the heaviest swap, below which a swap need not be computed."""


def furthest(taus: tuple[float, ...], swaps: int) -> float:
    """How much |D_a - D_b| may lack of the largest before a swap need not be computed.

    Such a swap weighs less than `LEAST` of the heaviest, and less than a millionth of all that is computed when millions of
    them are left out together: with w the weights left out, W >= 1 those of the rest (the heaviest is 1) and cosines
    between 0 and 1 (centred: between -1 and 1), a mean changes by at most 2 w / (W + w) <= 2e-6.
    """
    return max(taus) * max(-math.log(LEAST), math.log(1e6 * swaps))


class Centring:
    """What the centred cosines of one head (or of many: leading axes) on one input need; blocks of equal length.

    `real`, `own`, `log_z` and `sink` are the real logits of all positions, the block logits B[I, I], the logarithm of
    the normaliser and a learned sink, all in float64 and less the `largest` real logit. Cosines have its precision.
    """

    def __init__(
        self,
        real: Float[Tensor, "... n"],
        own: Float[Tensor, "... blocks"],
        log_z: Float[Tensor, "... 1"],
        blocks: Blocks,
        largest: Float[Tensor, "... 1"],
        sink: Float[Tensor, "..."] | None,
    ) -> None:
        self.largest, self.length = largest[..., None], float(blocks.lengths[0])
        mass = own + math.log(self.length)
        share = (mass - log_z).exp()
        visible = real.isfinite().sum(-1, keepdim=True).clamp(min=1)
        self.uniform = (1 / visible.double()).to(largest.dtype)[..., None]
        self.before = _focus((share / self.length).to(largest.dtype), self.uniform[..., 0])
        self.top = mass.argmax(-1, keepdim=True)
        self.share, self.log_z = share.to(largest.dtype), log_z.to(largest.dtype)
        inside = blocks.on(real.device).positions
        outside = log_normaliser(real.index_fill(-1, inside, -torch.inf), sink)[..., None]
        self.without_top = self._without_top(outside, mass).to(largest.dtype)

    def ordered(self, pick: Pick) -> Centring:
        """The same for some heads with their blocks in another order."""
        part = copy(self)
        part.share, part.before, part.without_top = (
            pick(x) for x in (self.share, self.before, self.without_top)
        )
        part.largest, part.uniform, part.log_z = (
            pick.heads(x) for x in (self.largest, self.uniform, self.log_z)
        )
        part.top = (pick.order == pick.heads(self.top)).int().argmax(-1, keepdim=True)
        return part

    def _without_top(self, outside: Float[Tensor, "... 1"], mass: Float[Tensor, "... blocks"]) -> Tensor:
        """log of everything but the top block and each other one; `outside`: what lies in no block."""
        others = mass.scatter(-1, self.top, -torch.inf)
        after = others.argmax(-1, keepdim=True)
        neither = torch.cat((outside, others.scatter(-1, after, -torch.inf)), dim=-1).logsumexp(
            -1, keepdim=True
        )
        everything = torch.cat((outside, others), dim=-1).logsumexp(-1, keepdim=True)
        part = (others - everything).exp().nan_to_num_(0.0).scatter(-1, after, 0.0)  # at most a half
        return torch.scatter(everything + torch.log1p(-part), -1, after, neither)

    def cosines(
        self,
        rows: slice,
        columns: slice,
        upper: Float[Tensor, "... rows columns"],
        lower: Float[Tensor, "... rows columns"],
    ) -> tuple[Tensor, Tensor]:
        """Both cosines after the subtraction, from B[a, b] and B[b, a]; 0 where nothing is focused."""
        rest = self._rest(rows, columns)
        first, second = upper - self.largest, lower - self.largest
        shift = torch.maximum(torch.maximum(first, second), rest)
        shift = torch.where(shift.isfinite(), shift, 0.0)
        first, second = first.sub_(shift).exp_(), second.sub_(shift).exp_()
        z = rest.sub_(shift).exp_().add_(first + second, alpha=self.length)
        z = z.clamp_(min=torch.finfo(z.dtype).tiny)
        u1, u2 = self.before[..., rows, None], self.before[..., None, columns]
        w1, w2 = _focus(first.div_(z), self.uniform), _focus(second.div_(z), self.uniform)
        norm = ((u1 * u1 + u2 * u2) * (w1 * w1 + w2 * w2)).sqrt_()
        scale = torch.where(norm > 0, 1 / norm, 0.0)
        return (w1 * u1 + w2 * u2) * scale, (w1 * u2 + w2 * u1) * scale

    def _rest(self, rows: slice, columns: slice) -> Float[Tensor, "... rows columns"]:
        """log of everything but the two blocks of each pair."""
        left = 1 - self.share[..., rows, None] - self.share[..., None, columns]
        rest = left.clamp_(min=0).log_().add_(self.log_z[..., None])
        blocks = torch.arange(self.share.shape[-1], device=rest.device)
        is_top = blocks == self.top
        rest = torch.where(is_top[..., rows, None], self.without_top[..., None, columns], rest)
        return torch.where(is_top[..., None, columns], self.without_top[..., rows, None], rest)


def _focus(weight: Tensor, uniform: Tensor) -> Tensor:
    """Attention beyond the uniform share, with rounding noise around it taken for what it is: nothing."""
    noise = 64 * torch.finfo(weight.dtype).eps * torch.maximum(weight, uniform)
    beyond = weight - uniform
    return torch.where(beyond.abs() > noise, beyond, 0.0)
