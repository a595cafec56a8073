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

import torch

from rotoscope.maths.blocks import Blocks
from rotoscope.shapes import Float, Int, Tensor

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
        for made in blocks.turns:
            if torch.equal(made.cos, cos) and torch.equal(made.sin, sin):
                return made
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
            found = torch.empty_like(away)
            for chosen, weigh in ((self.wide, _trigonometric), (~self.wide, _polynomial)):
                found[chosen] = weigh(away[chosen])
            self.tables[count] = found.flatten(2).to(self.cos.dtype)
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
