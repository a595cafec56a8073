"""All swaps of single planes on a CPU: blocks of equal length, all positions visible, logits that are not large.

The blocks of every plane are put in the order of their attention, largest first. Then the weight of a swap is a product of
two numbers, exp((D_a - max D) / tau) of the first block and exp((min D - D_b) / tau) of the second, and with
g = 1 / (|v| |v'|) the sums of weighted cosines are products of matrices with vectors:

    positional: sum over a of weight_a (own_a (g U) 1 + (g L) own)      symbolic: with 1 and own exchanged

U and L being exp B[a, b] and exp B[b, a] up to a factor, which cosines ignore.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rotoscope.maths.blocks import Blocks
from rotoscope.maths.factors import Factors
from rotoscope.maths.ordered import rows_of
from rotoscope.maths.pairs import tiles
from rotoscope.maths.rotation import turn
from rotoscope.maths.turns import Turns
from rotoscope.shapes import Bool, Float, Int, Tensor

TOGETHER = 2**18  # pairs of blocks in a chunk of planes: what a cache holds
ROWS = 32  # rows per tile
SMALL = 20.0  # products of four exponentials of such logits are still float32

Both = Callable[[slice, slice, Tensor, Tensor], None]
"""Fills in exp B[a, b] and exp B[b, a], up to a factor, of rows a and columns b."""


@dataclass
class PlaneScores:
    """Numbers of every plane of every head; scores only of those that are not `left`."""

    positional: Float[Tensor, "heads planes taus"]
    symbolic: Float[Tensor, "heads planes taus"]
    effective: Float[Tensor, "heads planes taus"]
    real: Float[Tensor, "heads planes n"]
    left: Bool[Tensor, "heads planes"]
    """Planes with large logits, which need logarithms, or with some that are no numbers."""


class Planes:
    """Queries and keys plane by plane, keys in their blocks."""

    def __init__(self, factors: Factors, blocks: Blocks, taus: tuple[float, ...]) -> None:
        self.factors, self.taus, width = factors, taus, 2 * factors.planes
        self.places = blocks.on(factors.keys.device).starts.T  # [blocks, offsets]
        self.query = factors.query[..., :width].unflatten(-1, (-1, 2)).flatten(0, 2)  # [heads, planes, 2]
        keys = factors.keys[..., :width].flatten(0, 1).unflatten(-1, (-1, 2))  # [key heads, n, planes, 2]
        self.real = self._real(keys)
        contents = keys[:, self.places.flatten()].transpose(1, 2)
        # [key heads, planes, blocks, offsets, 2]
        self.contents = contents.unflatten(2, self.places.shape).contiguous()
        self.turns = Turns.of(blocks, factors.cos, factors.sin)

    def _real(self, keys: Tensor) -> Float[Tensor, "heads planes n"]:
        """Real logits of every plane: keys turned back, so that heads that share keys share the turning."""
        turned = turn(keys, self.factors.cos, -self.factors.sin).transpose(1, 2)  # [key heads, planes, n, 2]
        query = self.query.unflatten(0, (len(keys), -1)).transpose(1, 2)  # [key heads, planes, group, 2]
        return (query @ turned.mT).transpose(1, 2).flatten(0, 1)

    def scores(self) -> PlaneScores:
        heads, planes, _ = self.real.shape
        m, group = len(self.places), heads // len(self.contents)
        longest = self.contents.norm(dim=-1).amax((-2, -1)).repeat_interleave(group, 0)
        reach = self.query.norm(dim=-1) * self.turns.size.to(longest) * longest
        nodes = self.turns.nodes_needed(reach) * self.turns.even
        left = ~((reach < SMALL) & self.real.sum(-1).isfinite())
        nodes[left] = -1
        # All planes that take as many nodes lie side by side.
        counts, picked = nodes.flatten().sort(stable=True)
        picked = picked[counts >= 0]
        head, plane = picked // planes, picked % planes
        known = Known.of(self.real.flatten(0, 1)[picked], self.places, self.taus)
        together = max(1, TOGETHER // (min(m, ROWS) * m))
        room = torch.empty(3, together * min(m, ROWS) * m, dtype=self.real.dtype)
        sums, first = known.sums(), 0
        kinds, sizes = counts[counts >= 0].unique_consecutive(return_counts=True)
        for count, size in zip(kinds.tolist(), sizes.tolist(), strict=True):
            for start in range(first, first + size, together):
                part = slice(start, min(start + together, first + size))
                chosen = Chosen(head[part], plane[part], head[part] // group, known.order[part])
                both = self._between(chosen, count) if count else self._exact(chosen)
                sum_swaps(both, known, part, sums, room)
            first += size
        found = torch.zeros(3, heads * planes, len(self.taus), dtype=self.real.dtype)
        found[:, picked] = torch.stack(known.means(sums))
        positional, symbolic, effective = found.unflatten(1, (heads, planes))
        return PlaneScores(positional, symbolic, effective, self.real, left)

    def _between(self, chosen: Chosen, count: int) -> Both:
        """By interpolation between `count` turns of the query."""
        plane, order = chosen.plane[:, None], chosen.order
        slots = rows_of(self.turns.table(count), plane, order)
        cos, sin = (x[chosen.plane] for x in self.turns.circle(count))
        query = self.query[chosen.head, chosen.plane][:, None]
        query = turn(query.expand(-1, count, -1), cos, sin)  # [planes, nodes, 2]
        contents = self._contents(chosen).flatten(1, 2)
        at_nodes = (contents @ query.mT).exp_().view_as(slots)

        def both(rows: slice, columns: slice, upper: Tensor, lower: Tensor) -> None:
            torch.matmul(slots[:, rows], at_nodes[:, columns].mT, out=upper)
            torch.matmul(at_nodes[:, rows], slots[:, columns].mT, out=lower)

        return both

    def _contents(self, chosen: Chosen) -> Float[Tensor, "chosen blocks offsets 2"]:
        which = chosen.key_head * self.query.shape[1] + chosen.plane
        keys = rows_of(self.contents.flatten(0, 1).flatten(2), which[:, None], chosen.order)
        return keys.unflatten(-1, (-1, 2))

    def _exact(self, chosen: Chosen) -> Both:
        """Every exponential by itself."""
        plane, at = (
            chosen.plane[:, None],
            self.places[chosen.order].transpose(1, 2),
        )  # [planes, offsets, blocks]
        cos, sin = (x.T[plane[..., None], at] for x in (self.factors.cos, self.factors.sin))
        query = self.query[chosen.head, chosen.plane][:, None, None]
        slots = turn(query.expand(*at.shape, 2), cos, sin)
        contents = self._contents(chosen).transpose(1, 2).contiguous()

        def both(rows: slice, columns: slice, upper: Tensor, lower: Tensor) -> None:
            torch.sum((slots[:, :, rows] @ contents[:, :, columns].mT).exp_(), 1, out=upper)
            torch.sum((contents[:, :, rows] @ slots[:, :, columns].mT).exp_(), 1, out=lower)

        return both


@dataclass
class Chosen:
    """Some planes: of which heads, and the order of their blocks."""

    head: Int[Tensor, "chosen"]
    plane: Int[Tensor, "chosen"]
    key_head: Int[Tensor, "chosen"]
    order: Int[Tensor, "chosen blocks"]


@dataclass
class Known:
    """What is known of planes before any swap, blocks in the order of their attention, largest first."""

    order: Int[Tensor, "planes blocks"]
    own: Float[Tensor, "planes blocks"]
    """exp B[I, I]."""
    norm: Float[Tensor, "planes blocks"]
    first: Float[Tensor, "planes taus blocks"]
    """Weight of a swap as far as its first block decides it."""
    second: Float[Tensor, "planes taus blocks"]

    @classmethod
    def of(
        cls, real: Float[Tensor, "planes n"], places: Int[Tensor, "blocks offsets"], taus: tuple[float, ...]
    ) -> Known:
        own = real.index_select(1, places.flatten()).exp_().unflatten(1, places.shape).mean(-1)
        attention, order = (own * real.logsumexp(-1, keepdim=True).neg().exp()).sort(-1, descending=True)
        own = own.gather(-1, order)
        tau = torch.tensor(taus, dtype=own.dtype)[:, None]
        first = ((attention - attention[:, :1])[:, None] / tau).exp()
        second = ((attention[:, -1:] - attention)[:, None] / tau).exp()
        return cls(order, own, own * own, first, second)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Where sums of weighted cosines are gathered."""
        return torch.zeros_like(self.first[..., 0]), torch.zeros_like(self.first[..., 0])

    def means(self, sums: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Both scores and the effective swaps."""
        weight, square = (_over_pairs(self.first**power, self.second**power) for power in (1, 2))
        return sums[0] / weight, sums[1] / weight, weight * weight / square


def sum_swaps(both: Both, known: Known, part: slice, sums: tuple[Tensor, Tensor], room: Tensor) -> None:
    """Add the weighted cosines of all swaps of some planes; `room` is memory for three tiles."""
    own, norm, first, second = known.own[part], known.norm[part], known.first[part], known.second[part]
    left = torch.cat((first, first * own[:, None]), dim=1)  # [planes, 2 * taus, blocks]
    for rows, columns in tiles(own.shape[1], ROWS):
        beside = rows.stop - rows.start
        shape = (len(own), beside, columns.stop - columns.start)
        upper, lower, scale = (part[: math.prod(shape)].view(shape) for part in room)
        both(rows, columns, upper, lower)
        torch.mul(upper, upper, out=scale).addcmul_(lower, lower)
        scale.mul_(norm[:, rows, None] + norm[:, None, columns]).rsqrt_()
        scale[..., :beside].triu_(1)
        (u, own_u), (v, own_v) = (
            (left[..., rows] @ entry.mul_(scale)).chunk(2, dim=1) for entry in (upper, lower)
        )  # each [planes, taus, columns]
        weights, other = second[..., columns], own[:, None, columns]
        sums[0][part] += ((own_u + other * v) * weights).sum(-1)
        sums[1][part] += ((own_v + other * u) * weights).sum(-1)


def _over_pairs(first: Tensor, second: Tensor) -> Tensor:
    """Sum over pairs a < b of first_a second_b."""
    after = second.flip(-1).cumsum(-1).flip(-1) - second
    return (first * after).sum(-1)
