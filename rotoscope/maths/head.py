"""An attention head in the papers' form: a logit function, a value map, an output map.

`L(x_i, i, x_j, j)` is the logit between a query vector at position i and a key vector at position j. Here it comes from
weight matrices and rotation angles; no angles (or zero ones) is NoPE. A head acts *positionally* on an input if its
logits do not change when the keys' contents are permuted, *symbolically* if they follow the contents. Both are decided
exactly: by the counterfactual logit matrix for any length, and literally, over all permutations, for short inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from rotoscope.errors import RotoscopeError
from rotoscope.maths.rotation import counterfactual_logits, turn
from rotoscope.shapes import Float, Int, Tensor

MOST_PERMUTED = 8


@dataclass(frozen=True)
class RotaryHead:
    """One head: weight matrices from embeddings to planes, an angle per plane, values, output."""

    w_query: Float[Tensor, "width planes 2"]
    w_key: Float[Tensor, "width planes 2"]
    angles: Float[Tensor, "planes"]
    w_value: Float[Tensor, "width out"]
    sharpness: float = 1.0
    """Inverse temperature of the softmax."""
    residual: bool = False
    """Whether the input is added to what was attended to."""
    output: Callable[[Tensor, Tensor], Tensor] | None = None
    """Output map from (input, attended); the identity on what was attended to by default."""

    def logits(self, x: Float[Tensor, "... n width"]) -> Float[Tensor, "... n n"]:
        """Counterfactual logits of the last position's query; its own row and column come last."""
        query = torch.einsum("...d,dpk->...pk", x[..., -1, :], self.w_query)
        keys = torch.einsum("...nd,dpk->...npk", x, self.w_key)
        return counterfactual_logits(query, keys, self.angles)

    def real_logits(self, x: Float[Tensor, "... n width"]) -> Float[Tensor, "... n"]:
        """The last position's logits over everything up to itself, query and keys rotated where they stand."""
        n = x.shape[-2]
        phase = (n - torch.arange(1, n + 1, dtype=torch.float64))[:, None] * self.angles.double()
        query = torch.einsum("...d,dpk->...pk", x[..., -1, :], self.w_query)
        keys = torch.einsum("...nd,dpk->...npk", x, self.w_key)
        seen = turn(query.unsqueeze(-3), phase.cos().to(x.dtype), phase.sin().to(x.dtype))
        return (seen * keys).sum((-2, -1))

    def attention(self, x: Float[Tensor, "... n width"], *, hard: bool = False) -> Float[Tensor, "... n n"]:
        """Attention of every position over itself and what comes before: the ordinary computation.

        `hard` puts all weight on the largest logit, shared between exact ties.
        """
        n = x.shape[-2]
        phase = torch.arange(1, n + 1, dtype=torch.float64)[:, None] * self.angles.double()
        cos, sin = phase.cos().to(x.dtype), phase.sin().to(x.dtype)
        query, key = (
            turn(torch.einsum("...nd,dpk->...npk", x, w), cos, sin).flatten(-2)
            for w in (self.w_query, self.w_key)
        )
        later = torch.ones(n, n, dtype=torch.bool).triu(diagonal=1)
        logits = (query @ key.mT).masked_fill(later, -torch.inf)
        if not hard:
            return (self.sharpness * logits).softmax(-1)
        best = logits >= logits.amax(-1, keepdim=True) - 1e-12
        return best.to(x.dtype) / best.sum(-1, keepdim=True)

    def __call__(self, x: Float[Tensor, "... n width"], *, hard: bool = False) -> Float[Tensor, "... n out"]:
        """What the head writes at every position."""
        attended = self.attention(x, hard=hard) @ (x @ self.w_value)
        if self.output is not None:
            return self.output(x, attended)
        return x + attended if self.residual else attended

    def sharpened(self, sharpness: float) -> RotaryHead:
        """The same head with another inverse temperature."""
        return replace(self, sharpness=sharpness)

    def acts_positionally(
        self, x: Float[Tensor, "n width"], *, permuting: bool = False, tolerance: float = 1e-9
    ) -> bool:
        """Whether permuting the keys' contents leaves every logit where it is."""
        if permuting:
            _, before, after = self._permuted(x)
            return bool((after - before).abs().max() <= tolerance)
        keys = self.logits(x)[:-1, :-1]
        return bool((keys - keys.diagonal()[:, None]).abs().max() <= tolerance)

    def acts_symbolically(
        self, x: Float[Tensor, "n width"], *, permuting: bool = False, tolerance: float = 1e-9
    ) -> bool:
        """Whether every logit follows its content under a permutation."""
        if permuting:
            orders, before, after = self._permuted(x)
            return bool((after - before[orders]).abs().max() <= tolerance)
        keys = self.logits(x)[:-1, :-1]
        return bool((keys - keys.diagonal()[None, :]).abs().max() <= tolerance)

    def _permuted(
        self, x: Float[Tensor, "n width"]
    ) -> tuple[Int[Tensor, "permutations keys"], Float[Tensor, "keys"], Float[Tensor, "permutations keys"]]:
        """All permutations of the keys, and the real logits before and after each."""
        n = x.shape[0] - 1
        if n > MOST_PERMUTED:
            raise RotoscopeError(f"{n} keys have too many permutations; decide it by the matrix instead")
        orders = torch.tensor(list(itertools.permutations(range(n))))
        query = x[-1:].expand(len(orders), 1, -1)
        after = self.real_logits(torch.cat((x[orders], query), dim=1))
        return orders, self.real_logits(x)[:-1], after[:, :-1]
