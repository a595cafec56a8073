"""The exclusion principle (P1 Theorem 1) in its exact O(n^2) form.

How far a head is from acting positionally and symbolically, summed over all N! permutations of its keys,
bounds the variance of its logits:

    Var(lambda) <= D_pos + D_sym
    D_pos = mean over (p, c) of (A[p, c] - lambda_p)^2      D_sym = mean over (p, c) of (A[p, c] - lambda_c)^2

because each pair (p, c) occurs in exactly (N-1)! of the permutations. A head that is nearly both must be
nearly uniform. Equality holds exactly when A[p, c] = (lambda_p + lambda_c) / 2.

Both are smooth in queries and keys, and gradients flow through them: D_sym in proportion to the variance is a penalty that
favours symbolic heads in a training, D_pos one that favours positional heads (`Exclusion.penalty`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.nn import functional as F

from rotoscope.scores.attention import check_logits, logit_matrix
from rotoscope.scores.blocks import Blocks
from rotoscope.scores.counterfactual import ROOM, Factors
from rotoscope.shapes import Float, Int, Tensor

PART = 1024
FLAT = 1e-3
"""Added to the variance in a penalty, so that a flat head, which is neither kind, costs little."""


@dataclass(frozen=True)
class Exclusion:
    """Variance of the real logits (population), and the two mean squared deviations."""

    variance: Float[Tensor, "..."]
    d_pos: Float[Tensor, "..."]
    d_sym: Float[Tensor, "..."]

    @property
    def bound(self) -> Tensor:
        """The right-hand side of the inequality."""
        return self.d_pos + self.d_sym

    def penalty(self, favour: Literal["symbolic", "positional"]) -> Tensor:
        """What a training adds to its loss to favour a kind: how far a head is from it, over the variance of its logits."""
        return (self.d_sym if favour == "symbolic" else self.d_pos) / (self.variance + FLAT)


def exclusion(logits: Float[Tensor, "... p c"] | Float[np.ndarray, "... p c"]) -> Exclusion:
    """Variance, D_pos and D_sym from a counterfactual logit matrix over the visible keys (without the query)."""
    logits = logit_matrix(logits)
    check_logits(logits, hidden=False)
    return exclusion_of(logits)


def exclusion_of(logits: Float[Tensor, "... p c"]) -> Exclusion:
    """The same of logits that are known to be numbers: nothing is asked of the device, and gradients flow."""
    real = logits.diagonal(dim1=-2, dim2=-1)
    return Exclusion(
        variance=real.var(-1, correction=0),
        d_pos=(logits - real[..., :, None]).square().mean((-2, -1)),
        d_sym=(logits - real[..., None, :]).square().mean((-2, -1)),
    )


@dataclass(frozen=True)
class Taken:
    """The positions that count, of all heads that share a rotation: what is summed over them once."""

    positions: Float[Tensor, "n"]
    """1 where a position counts, else 0."""
    tables: Float[Tensor, "2 n d"]
    """Cosines and sines for every dimension, 1 and 0 where it never turns, and 0 where a position does not count."""
    shared: Float[Tensor, "2 2 d d"]
    """Sums over positions of products of two entries of the tables."""

    @classmethod
    def of(cls, factors: Factors, blocks: Blocks) -> Taken:
        """The visible positions of blocks."""
        still = factors.keys.shape[-1] - 2 * factors.planes
        swapped = blocks.on(factors.keys.device).swapped(factors.keys.shape[2]).double() * factors.visible
        cos = F.pad(factors.cos.double().repeat_interleave(2, 1), (0, still), value=1.0)
        sin = F.pad(factors.sin.double().repeat_interleave(2, 1), (0, still))
        tables = torch.stack((cos, sin)) * swapped[:, None]
        return cls(swapped, tables, tables[:, None].mT @ tables[None])


def exclusion_from_factors(factors: Factors, swapped: Taken) -> Exclusion:
    """The same for heads without a soft-cap, over positions that count, without forming A; a few inputs at a time."""
    parts = factors.parts(6 * factors.keys[0].nbytes)  # three times in float64
    if len(parts) == 1:
        return _from_factors(factors, swapped)
    exclusions = [_from_factors(part, swapped) for part in parts]
    names = ("variance", "d_pos", "d_sym")
    return Exclusion(*(torch.cat([getattr(part, name) for part in exclusions]) for name in names))


def exclusion_in_parts(factors: Factors, positions: Int[Tensor, "positions"]) -> Exclusion:
    """The same for heads with a soft-cap, which is no product any more: A is formed, a few rows at a time."""
    real, n = factors.real()[..., positions], len(positions)
    rows = max(1, ROOM // (16 * n * real[..., 0].numel()))
    off = torch.zeros(2, *real.shape[:-1], dtype=torch.float64, device=real.device)
    for first in range(0, n, rows):
        logits = factors.gather(positions[None, first : first + rows], positions[None])[:, :, 0]
        check_logits(logits, hidden=False)
        for total, own in zip(off, (real[..., first : first + rows, None], real[..., None, :]), strict=True):
            total += (logits - own).square().sum((-2, -1), dtype=torch.float64)
    d_pos, d_sym = (off / n**2).to(real.dtype)
    return Exclusion(real.var(-1, correction=0), d_pos, d_sym)


def _from_factors(factors: Factors, swapped: Taken) -> Exclusion:
    """O(n d^2), in float64.

    Expanding the squares, sum of A^2 = <S^T S, K^T K> with S the seen queries and K the keys, and the cross terms need only
    sums over one index. S is never formed either: it is cos * q + sin * q', q' being q after a quarter turn, so sums over
    positions are sums of products of the tables, which all heads share.
    """
    n, width = swapped.positions.sum().clamp(min=1), 2 * factors.planes
    query, keys = factors.query.double(), factors.keys * swapped.positions[:, None]
    quarter = torch.zeros_like(query)
    quarter[..., 0:width:2], quarter[..., 1:width:2] = -query[..., 1:width:2], query[..., 0:width:2]
    turned = keys * swapped.tables[0]
    real = query @ turned.mT  # [batch, key_heads, group, n]
    same_memory = None if torch.is_grad_enabled() and keys.requires_grad else turned
    real += quarter @ torch.mul(keys, swapped.tables[1], out=same_memory).mT
    quarters = torch.stack((query, quarter), dim=2)  # [batch, key_heads, 2, group, d]
    products = swapped.shared * _gram(keys)[:, :, None, None]  # [batch, key_heads, 2, 2, d, d]
    square = ((quarters[:, :, :, None] @ products).sum(2) * quarters).sum((2, -1))
    with_all = (quarters * keys.sum(2)[:, :, None, None]).movedim(2, 0).flatten(1, 3)  # [2, heads, d]
    to_all = (with_all @ swapped.tables.mT).sum(0).view_as(real)  # each seen query with all keys
    from_all = (quarters * swapped.tables.sum(1)[:, None]).sum(2) @ keys.mT  # all seen queries with each key
    centred = (real - real.sum(-1, keepdim=True) / n) * swapped.positions
    own = n * real.square().sum(-1)
    to_all, from_all = ((square - 2 * (real * part).sum(-1) + own) / n**2 for part in (to_all, from_all))
    sums = (centred.square().sum(-1) / n, to_all, from_all)
    return Exclusion(*(part.clamp(min=0).flatten(1, 2) for part in sums))


def _gram(keys: Float[Tensor, "batch key_heads n d"]) -> Float[Tensor, "batch key_heads d d"]:
    """K^T K. On a GPU few heads with many keys would keep few of its processors busy, so keys are taken in parts."""
    if keys.device.type != "cpu" and keys.shape[2] > PART:
        if keys.shape[2] % PART:
            keys = F.pad(keys, (0, 0, 0, -keys.shape[2] % PART))
        parts = keys.unflatten(2, (-1, PART))
        return (parts.mT @ parts).sum(2)
    return keys.mT @ keys
