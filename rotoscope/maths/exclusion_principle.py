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


def exclusion_from_factors(seen: Float[Tensor, "... keys d"], keys: Float[Tensor, "... keys d"]) -> Exclusion:
    """The same for A = seen @ keys^T without forming A: O(keys * d^2), in float64.

    Expanding the squares, sum of A^2 = <seen^T seen, keys^T keys>, and the cross terms need only sums over
    one index.
    """
    seen, keys = seen.double(), keys.double()
    n = keys.shape[-2]
    real = (seen * keys).sum(-1)
    gram = (seen.mT @ seen) * (keys.mT @ keys)
    square = gram.sum((-2, -1))
    along_positions = (real * (seen @ keys.sum(-2)[..., None])[..., 0]).sum(-1)
    along_contents = (real * (keys @ seen.sum(-2)[..., None])[..., 0]).sum(-1)
    own = n * real.square().sum(-1)
    return Exclusion(
        variance=real.var(-1, correction=0),
        d_pos=((square - 2 * along_positions + own) / n**2).clamp(min=0),
        d_sym=((square - 2 * along_contents + own) / n**2).clamp(min=0),
    )
