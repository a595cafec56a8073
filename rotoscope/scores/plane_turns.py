"""Exponentials of all logits of a plane from a few: interpolation between turns of the query.

In a single plane the query as seen from position p is the query turned by an angle x_p, so that

    exp A[p, c] = f_c(x_p)        f_c(x) = exp <query turned by x, key c>

is a smooth function of one number. From its values at J nodes it is known everywhere, f_c(x_p) = sum over j of W[p, j]
f_c(x_j), to the accuracy of the numbers themselves. Then n * n exponentials become n * J and a matrix product, and the
sum over the tokens of a block is part of that product. W depends on the angles alone and serves all heads. Planes that
turn little are interpolated by polynomials between Chebyshev nodes, the others by trigonometric ones between even nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rotoscope.scores.blocks import Blocks
from rotoscope.scores.counterfactual import Factors, turn
from rotoscope.scores.swap_pairs import rows_of, tiles
from rotoscope.shapes import Bool, Float, Int, Tensor

STEP = 4  # nodes are counted in such steps: few kinds of planes, many of each
MOST = 29
"""More nodes than that cost more than the exponentials they replace."""
SPREAD = 4.0
"""Exponentials may differ by e to that: what is rounded is rounded relative to the largest."""
WIDE = 1.5
"""Half the range of angles above which nodes go all the way round."""


class Turns:
    """The angles by which queries are turned, in every plane, and how to interpolate between a few of them."""

    @classmethod
    def of(cls, blocks: Blocks, cos: Float[Tensor, "n planes"], sin: Float[Tensor, "n planes"]) -> Turns:
        """Made once for all layers that turn alike."""
        for known_turns in blocks.turns:
            if torch.equal(known_turns.cos, cos) and torch.equal(known_turns.sin, sin):
                return known_turns
        blocks.turns.append(cls(blocks, cos, sin))
        return blocks.turns[-1]

    def __init__(self, blocks: Blocks, cos: Float[Tensor, "n planes"], sin: Float[Tensor, "n planes"]) -> None:
        self.cos, self.sin, self.tables = cos, sin, dict[int, Tensor]()
        places = blocks.on(cos.device).starts.T  # [blocks, offsets]
        cos, sin = (table.double().T[:, places] for table in (cos, sin))
        self.angles = torch.atan2(sin, cos)  # [planes, blocks, offsets]
        size = torch.hypot(cos, sin).flatten(1)
        self.size = size.mean(-1)
        """Of the turned query relative to the query, where a model scales its rotation."""
        rounding = 8 * torch.finfo(self.cos.dtype).eps
        self.even = bool(((size.mT - self.size).abs() <= rounding * self.size).all())
        low, high = self.angles.flatten(1).aminmax(dim=-1)
        self.middle, self.half = (low + high) / 2, (high - low).clamp(min=1e-3) / 2
        self.wide = self.half > WIDE

    def nodes_needed(self, reach: Float[Tensor, "heads planes"]) -> Int[Tensor, "heads planes"]:
        """How many nodes interpolate to rounding, with logits up to `reach`; 0 where exponentials are the better way."""
        rounding = math.log(8 * torch.finfo(reach.dtype).eps)
        z = reach.double()
        needed = torch.where(self.wide, _all_round(z, rounding), _narrow(z, self.half, rounding))
        needed = (needed - 1).div(STEP).ceil().mul(STEP).add(1).clamp(min=5)
        spread = z * (2 * self.half).clamp(max=2.0)
        return torch.where((needed <= MOST) & (spread <= SPREAD), needed, 0.0).long()

    def nodes(self, count: int) -> Float[Tensor, "planes count"]:
        """The angles between which planes are interpolated."""
        k = torch.arange(count, dtype=torch.float64, device=self.angles.device)
        chebyshev = self.middle[:, None] + self.half[:, None] * torch.cos(math.pi * (k + 0.5) / count)
        return torch.where(self.wide[:, None], 2 * math.pi / count * k, chebyshev)

    def circle(self, count: int) -> tuple[Float[Tensor, "planes count"], Float[Tensor, "planes count"]]:
        """Cosine and sine of the nodes, as the tables scale them."""
        nodes, size = self.nodes(count), self.size[:, None]
        return (nodes.cos() * size).to(self.cos.dtype), (nodes.sin() * size).to(self.cos.dtype)

    def table(self, count: int) -> Float[Tensor, "planes blocks weights"]:
        """W, for all tokens of every block, one after the other."""
        if count not in self.tables:
            away = self.angles[..., None] - self.nodes(count)[:, None, None]
            angles = torch.empty_like(away)
            for chosen, weigh in ((self.wide, _trigonometric), (~self.wide, _polynomial)):
                angles[chosen] = weigh(away[chosen])
            self.tables[count] = angles.flatten(2).to(self.cos.dtype)
        return self.tables[count]


def _trigonometric(away: Float[Tensor, "... nodes"]) -> Tensor:
    """Dirichlet's kernel: 1 at its own node, 0 at all others."""
    count = away.shape[-1]
    away = torch.remainder(away + math.pi, 2 * math.pi) - math.pi  # sines of small angles are exact
    below = count * torch.sin(away / 2)
    return torch.where(below == 0, 1.0, torch.sin(count * away / 2) / below)


def _polynomial(away: Float[Tensor, "... nodes"]) -> Tensor:
    """Lagrange's polynomials of Chebyshev nodes, in barycentric form."""
    count = away.shape[-1]
    k = torch.arange(count, dtype=away.dtype, device=away.device)
    sign = torch.sin(math.pi * (k + 0.5) / count) * (1 - 2 * (k % 2))
    parts = sign / torch.where(away.abs() < 1e-15, 1e-15, away)
    return parts / parts.sum(-1, keepdim=True)


def _all_round(z: Tensor, rounding: float) -> Tensor:
    """Nodes for any angle: f is a series of cosines with Bessel functions I_k(z) <= (z / 2)^k / k! e^(z / 4), and relative
    to the smallest f what nodes for k <= N leave out is at most 4 (z / 2)^(N + 1) / (N + 1)! e^(2 z) for z <= 2."""
    k = torch.arange(1.0, MOST, dtype=z.dtype, device=z.device)
    left_out = math.log(4) + k * (z[..., None] / 2).log() - torch.lgamma(k + 1) + 2 * z[..., None]
    return 2.0 * (left_out > rounding).sum(-1) + 1


def _narrow(z: Tensor, half: Tensor, rounding: float) -> Tensor:
    """Chebyshev nodes for angles up to `half` to both sides: the error is at most 4 M / ((r - 1) r^J) with M the largest |f|
    on an ellipse around them, for every r > 1. Relative to the smallest f on the range, log M is at most z times how far
    the cosine may rise: no more than 2, or than the way from one to the other, and cosh of the height less 1."""
    r = torch.linspace(0.25, 6.0, 24, dtype=z.dtype, device=z.device).exp()
    way = half[:, None] * (1 + (r + 1 / r) / 2)
    rise = way.clamp(max=2.0) + torch.cosh((half[:, None] * (r - 1 / r) / 2).clamp(max=20.0)) - 1
    return ((math.log(4) - (r - 1).log() + z[..., None] * rise - rounding) / r.log()).amin(-1).clamp(min=1)


# All swaps of single planes on a CPU: blocks of equal length, all positions visible, logits that are not large.
#
# The blocks of every plane are put in the order of their attention, largest first. Then the weight of a swap is a product of
# two numbers, exp((D_a - max D) / tau) of the first block and exp((min D - D_b) / tau) of the second, and with
# g = 1 / (|v| |v'|) the sums of weighted cosines are products of matrices with vectors:
#
#     positional: sum over a of weight_a (own_a (g U) 1 + (g L) own)      symbolic: with 1 and own exchanged
#
# U and L being exp B[a, b] and exp B[b, a] up to a factor, which cosines ignore.


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
                pair_of = self._between(chosen, count) if count else self._exact(chosen)
                sum_swaps(pair_of, known, part, sums, room)
            first += size
        totals = torch.zeros(3, heads * planes, len(self.taus), dtype=self.real.dtype)
        totals[:, picked] = torch.stack(known.means(sums))
        positional, symbolic, effective = totals.unflatten(1, (heads, planes))
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

        def block_logits(rows: slice, columns: slice, upper: Tensor, lower: Tensor) -> None:
            torch.matmul(slots[:, rows], at_nodes[:, columns].mT, out=upper)
            torch.matmul(at_nodes[:, rows], slots[:, columns].mT, out=lower)

        return block_logits

    def _contents(self, chosen: Chosen) -> Float[Tensor, "chosen blocks offsets 2"]:
        tables = chosen.key_head * self.query.shape[1] + chosen.plane
        keys = rows_of(self.contents.flatten(0, 1).flatten(2), tables[:, None], chosen.order)
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

        def block_logits(rows: slice, columns: slice, upper: Tensor, lower: Tensor) -> None:
            torch.sum((slots[:, :, rows] @ contents[:, :, columns].mT).exp_(), 1, out=upper)
            torch.sum((contents[:, :, rows] @ slots[:, :, columns].mT).exp_(), 1, out=lower)

        return block_logits


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


def sum_swaps(pair_of: Both, known: Known, part: slice, sums: tuple[Tensor, Tensor], room: Tensor) -> None:
    """Add the weighted cosines of all swaps of some planes; `room` is memory for three tiles."""
    own, norm, first, second = known.own[part], known.norm[part], known.first[part], known.second[part]
    left = torch.cat((first, first * own[:, None]), dim=1)  # [planes, 2 * taus, blocks]
    for rows, columns in tiles(own.shape[1], ROWS):
        beside = rows.stop - rows.start
        shape = (len(own), beside, columns.stop - columns.start)
        upper, lower, scale = (part[: math.prod(shape)].view(shape) for part in room)
        pair_of(rows, columns, upper, lower)
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
