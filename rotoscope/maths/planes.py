"""All swaps of single planes on a CPU: blocks of equal length, all positions visible, logits that are not large.

The blocks of every plane are put in the order of their attention, largest first. Then the weight of a swap is a product of
two numbers, exp((D_a - max D) / tau) of the first block and exp((min D - D_b) / tau) of the second, and with
g = 1 / (|v| |v'|) the sums of weighted cosines are products of matrices with vectors:

    positional: sum over a of weight_a (own_a (g U) 1 + (g L) own)      symbolic: with 1 and own exchanged

U and L being exp B[a, b] and exp B[b, a] up to a factor, which cosines ignore.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rotoscope.maths.attention import attention_entropy
from rotoscope.maths.blocks import Blocks
from rotoscope.maths.factors import Factors
from rotoscope.maths.rotation import turn
from rotoscope.maths.swaps import tiles
from rotoscope.maths.turns import Turns
from rotoscope.shapes import Bool, Float, Int, Tensor

TOGETHER = 2**17  # pairs of blocks in a chunk of planes: what a cache holds
ROWS = 64  # rows per tile
SMALL = 20.0  # products of four exponentials of such logits are still float32

Both = Callable[[slice, slice], tuple[Tensor, Tensor]]
"""exp B[a, b] and exp B[b, a] up to a factor, of rows a and columns b."""


@dataclass
class PlaneScores:
    """Numbers of every plane of every head; scores only of those that are not `left`."""

    positional: Float[Tensor, "heads planes taus"]
    symbolic: Float[Tensor, "heads planes taus"]
    effective: Float[Tensor, "heads planes taus"]
    real: Float[Tensor, "heads planes n"]
    left: Bool[Tensor, "heads planes"]
    """Planes with large logits, which need logarithms."""


class Planes:
    """Queries and keys plane by plane, keys in their blocks."""

    def __init__(self, factors: Factors, blocks: Blocks, taus: tuple[float, ...]) -> None:
        self.factors, self.taus, width = factors, taus, 2 * factors.planes
        self.places = blocks.on(factors.keys.device).starts.T  # [blocks, offsets]
        self.query = factors.query[..., :width].unflatten(-1, (-1, 2)).flatten(0, 2)  # [heads, planes, 2]
        keys = factors.keys[..., :width].flatten(0, 1).unflatten(-1, (-1, 2))  # [key heads, n, planes, 2]
        self.real = self._real(keys)
        contents = keys[:, self.places.flatten()].transpose(1, 2)
        self.contents = contents.unflatten(2, self.places.shape).contiguous()  # [key heads, planes, blocks, offsets, 2]
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
        left = ~(reach < SMALL)
        found = [torch.zeros(heads, planes, len(self.taus), dtype=self.real.dtype) for _ in range(3)]
        for count in nodes[~left].unique().tolist():
            chosen = ((nodes == count) & ~left).nonzero()
            table = self.turns.table(count) if count else None
            for some in chosen.split(max(1, TOGETHER // (min(m, ROWS) * m))):
                head, plane = some.unbind(1)
                for whole, part in zip(found, self._sums(head, plane, head // group, table, count), strict=True):
                    whole[head, plane] = part
        return PlaneScores(*found, self.real, left)

    def _sums(self, head: Tensor, plane: Tensor, key_head: Tensor, table: Tensor | None, count: int) -> tuple[Tensor, ...]:
        """Both scores and the effective swaps of some planes."""
        real = self.real[head, plane]
        own = real[:, self.places].exp().mean(-1)
        attention = own * real.logsumexp(-1, keepdim=True).neg().exp()
        attention, order = attention.sort(-1, descending=True)
        picked = torch.arange(len(order))[:, None]
        contents = self.contents[key_head[:, None], plane[:, None], order]
        both = (
            self._exact(head, plane, order, contents)
            if table is None
            else self._between(head, plane, contents, table[plane[:, None], order], count)
        )
        return sum_swaps(both, own[picked, order], attention, self.taus)

    def _between(self, head: Tensor, plane: Tensor, contents: Tensor, slots: Tensor, count: int) -> Both:
        """By interpolation between `count` turns of the query."""
        nodes = self.turns.nodes(count)[plane]
        cos, sin = (x.mul(self.turns.size[plane, None]).to(slots) for x in (nodes.cos(), nodes.sin()))
        query = turn(self.query[head, plane][:, None], cos, sin)  # [planes, nodes, 2]
        at_nodes = (contents.flatten(1, 2) @ query.mT).exp_().view_as(slots)

        def both(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
            return slots[:, rows] @ at_nodes[:, columns].mT, at_nodes[:, rows] @ slots[:, columns].mT

        return both

    def _exact(self, head: Tensor, plane: Tensor, order: Tensor, contents: Tensor) -> Both:
        """Every exponential by itself."""
        at = self.places[order]  # [planes, blocks, offsets]
        cos, sin = (x.T[plane[:, None, None], at] for x in (self.factors.cos, self.factors.sin))
        slots = turn(self.query[head, plane][:, None, None], cos, sin).transpose(1, 2)
        contents = contents.transpose(1, 2)

        def both(rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
            upper = slots[:, :, rows] @ contents[:, :, columns].mT
            lower = contents[:, :, rows] @ slots[:, :, columns].mT
            return upper.exp_().sum(1), lower.exp_().sum(1)

        return both


def sum_swaps(
    both: Both, own: Float[Tensor, "planes m"], attention: Float[Tensor, "planes m"], taus: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Both scores and the effective swaps of planes whose blocks are in the order of their attention."""
    tau = torch.tensor(taus, dtype=own.dtype)
    first = ((attention - attention[:, :1])[..., None] / tau).exp()  # [planes, blocks, taus]
    second = ((attention[:, -1:] - attention)[..., None] / tau).exp()
    weight, square = (_over_pairs(first**power, second**power) for power in (1, 2))
    left = torch.cat((first, first * own[..., None]), dim=-1).mT.contiguous()  # [planes, 2 * taus, blocks]
    norm, own = own * own, own[:, None]
    positional, symbolic = torch.zeros_like(weight), torch.zeros_like(weight)
    for rows, columns in tiles(norm.shape[1], ROWS):
        upper, lower = both(rows, columns)
        scale = torch.addcmul(upper * upper, lower, lower)
        scale.mul_(norm[:, rows, None] + norm[:, None, columns]).rsqrt_()
        beside = rows.stop - rows.start
        scale[..., :beside].mul_(torch.ones(beside, beside, dtype=scale.dtype).triu_(1))
        (u, own_u), (v, own_v) = (
            (left[..., rows] @ part.mul_(scale)).chunk(2, dim=1) for part in (upper, lower)
        )  # each [planes, taus, columns]
        weights, other = second[:, columns].mT, own[..., columns]
        positional += ((own_u + other * v) * weights).sum(-1)
        symbolic += ((own_v + other * u) * weights).sum(-1)
    return positional / weight, symbolic / weight, weight * weight / square


def _over_pairs(first: Tensor, second: Tensor) -> Tensor:
    """Sum over pairs a < b of first_a second_b."""
    after = second.flip(1).cumsum(1).flip(1) - second
    return (first * after).sum(1)
