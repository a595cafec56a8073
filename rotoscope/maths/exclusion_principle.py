"""The exclusion principle (P1 Theorem 1) in its exact O(n^2) form.

How far a head is from acting positionally and symbolically, summed over all N! permutations of its keys,
bounds the variance of its logits:

    Var(lambda) <= D_pos + D_sym
    D_pos = mean over (p, c) of (A[p, c] - lambda_p)^2      D_sym = mean over (p, c) of (A[p, c] - lambda_c)^2

because each pair (p, c) occurs in exactly (N-1)! of the permutations. A head that is nearly both must be
nearly uniform. Equality holds exactly when A[p, c] = (lambda_p + lambda_c) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from rotoscope.maths.blocks import Blocks
from rotoscope.maths.factors import Factors
from rotoscope.maths.numbers import check_logits, logit_matrix
from rotoscope.shapes import Float, Tensor


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


def exclusion(logits: Float[Tensor, "... p c"] | Float[np.ndarray, "... p c"]) -> Exclusion:
    """Variance, D_pos and D_sym from a counterfactual logit matrix over the visible keys (without the query)."""
    logits = logit_matrix(logits)
    check_logits(logits, hidden=False)
    real = logits.diagonal(dim1=-2, dim2=-1)
    return Exclusion(
        variance=real.var(-1, correction=0),
        d_pos=(logits - real[..., :, None]).square().mean((-2, -1)),
        d_sym=(logits - real[..., None, :]).square().mean((-2, -1)),
    )


def exclusion_from_factors(factors: Factors, blocks: Blocks) -> Exclusion:
    """The same for heads without a soft-cap, over the visible positions of blocks, without forming A: O(n d^2), in float64.

    Expanding the squares, sum of A^2 = <S^T S, K^T K> with S the seen queries and K the keys, and the cross terms need only
    sums over one index. S is never formed either: it is cos * q + sin * q', q' being q after a quarter turn, so sums over
    positions are sums of products of the tables, which all heads share.
    """
    positions, width = blocks.on(factors.keys.device).positions, 2 * factors.planes
    taken = torch.zeros(factors.keys.shape[2], dtype=torch.float64, device=positions.device)
    taken = taken.index_fill_(0, positions, 1.0) * factors.visible
    n = taken.sum()
    cos = F.pad(factors.cos.double().repeat_interleave(2, 1), (0, factors.keys.shape[-1] - width), value=1.0)
    sin = F.pad(factors.sin.double().repeat_interleave(2, 1), (0, factors.keys.shape[-1] - width))
    cos, sin = cos * taken[:, None], sin * taken[:, None]
    query, keys = factors.query.double(), factors.keys.double() * taken[:, None]
    quarter = torch.zeros_like(query)
    quarter[..., 0:width:2], quarter[..., 1:width:2] = -query[..., 1:width:2], query[..., 0:width:2]
    both = torch.stack((query, quarter), dim=-2)  # [batch, key_heads, group, 2, d]
    tables = torch.stack((cos, sin))  # [2, n, d]
    real = query @ (keys * cos).mT + quarter @ (keys * sin).mT  # [batch, key_heads, group, n]
    shared = tables[:, None].mT @ tables[None]  # [2, 2, d, d]: sums over positions
    products = shared * (keys.mT @ keys)[:, :, None, None]  # [batch, key_heads, 2, 2, d, d]
    square = torch.einsum("bkgsi,bkstij,bkgtj->bkg", both, products, both)
    to_all = torch.einsum(
        "bkgsi,bki,sni->bkgn", both, keys.sum(2), tables
    )  # each seen query with the sum of the keys
    from_all = (both * tables.sum(1)).sum(-2) @ keys.mT  # the sum of the seen queries with each key
    own = n * real.square().sum(-1)
    mean = real.sum(-1, keepdim=True) / n
    found = (
        ((real - mean).square() * taken).sum(-1) / n,
        (square - 2 * (real * to_all).sum(-1) + own) / n**2,
        (square - 2 * (real * from_all).sum(-1) + own) / n**2,
    )
    return Exclusion(*(torch.where(n > 0, part.clamp(min=0), 0.0).flatten(1, 2) for part in found))
