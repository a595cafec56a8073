"""The centred variant: what a swap does to attention beyond uniform.

Subtract u = 1 / (visible positions) from both entries of v and v' before the cosine. That fixes a scale, so the
normaliser no longer cancels, and the weights after a swap need their own,

    Z' = rest + new pair,      rest = Z - old pair

A head that looks at one place has next to nothing left after that difference, and a difference of rounded numbers would
be noise. Here no difference ever takes away more than two thirds. Let t be the block with most attention and s the next:

    neither block is t:    Z - a - b, of which at least a third is left, since t is as large as a and as b
    t and another, b:      R - b, R being everything but t, added up; at least half is left, since s is as large as b
    t and s:               everything but those two, added up

Everything is relative to the largest real logit, so that what all logits have in common is gone before any rounding.
"""

from __future__ import annotations

import math
from copy import copy

import torch

from rotoscope.scores.attention import log_normaliser
from rotoscope.scores.blocks import Blocks
from rotoscope.scores.swap_pairs import Pick
from rotoscope.shapes import Float, Tensor


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
