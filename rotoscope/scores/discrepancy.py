"""Discrepancy (P2 Definition 3.1): the largest logit minus the second largest.

P2 takes the maximum over inputs of a length and bounds it; as printed both bounds are false. What failure depends on is
the *worst* input. For it, the bounds are right after a small repair, and closed forms are given here, beside the printed
ones. The separation stands: Index decays like 1/n^2, Retrieval does not decay at theta = 0.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from rotoscope.errors import RotoscopeError
from rotoscope.scores.attention import at_least_float32, check_logits
from rotoscope.scores.constructions import index_gap, retrieval_gap
from rotoscope.shapes import Float, Tensor


def discrepancy(logits: Float[Tensor, "... n"] | Float[np.ndarray, "... n"]) -> Float[Tensor, "..."]:
    """Largest minus second-largest logit of a head on an input; hidden keys are -inf.

    Where the query sees a single key nothing competes with it: the discrepancy is infinite.
    """
    logits = at_least_float32(torch.as_tensor(logits))
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise RotoscopeError(
            "the discrepancy of a head needs the logits [..., n] of at least one key; found none"
        )
    check_logits(logits)
    if logits.shape[-1] == 1:
        return torch.full_like(logits[..., 0], torch.inf)
    top = logits.topk(2, dim=-1).values
    return torch.where(top[..., 1].isfinite(), top[..., 0] - top[..., 1], torch.inf)


def index_largest(theta: float, n: int) -> float:
    """T_Index, maximum over inputs of length n (integers reach half of it): 1 - max_{1<=t<=M} cos(t theta)."""
    return index_gap(theta, math.ceil((n - 1) / 2))


def index_largest_bound(theta: float, n: int) -> float:
    """What the maximum obeys: min{1 - cos theta, 8 pi^2 / (n+1)^2}."""
    return min(1 - math.cos(theta), 8 * math.pi**2 / (n + 1) ** 2)


def index_worst(theta: float, n: int) -> float:
    """T_Index, worst input of length n: a pointer to an end sees every offset up to n - 1."""
    return index_gap(theta, n - 1)


def index_worst_bound(n: int) -> float:
    """What the worst input obeys: 1 - cos(2 pi / n), tight at theta = 2 pi / n."""
    return 1 - math.cos(2 * math.pi / n)


def index_printed_bound(theta: float, n: int) -> float:
    """As printed in P2 Theorem 3.2, for the maximum: min{1 - cos theta, 2 pi^2 / n^2}."""
    return min(1 - math.cos(theta), 2 * math.pi**2 / n**2)


def retrieval_printed_bound(alphabet: int, theta: float, n: int) -> float:
    """As printed in P2 Theorem 3.2, for the maximum: 1 - cos(omega - n theta)."""
    return 1 - math.cos(2 * math.pi / alphabet - n * theta)


def retrieval_worst(alphabet: int, theta: float, n: int) -> float:
    """T_Retrieval, worst letter pair in a proper input of length n >= 3."""
    return retrieval_gap(alphabet, theta, n)
