"""Shapes of the largest attention weight over the answer's position (P1 Theorem 7)."""

from __future__ import annotations

import torch

from rotoscope.shapes import Float, Tensor


def positional_target_weight(keys: int, theta: float, beta: float) -> Float[Tensor, "keys"]:
    """w_max(j) of H_POS: softmax over p of beta cos((p - j) theta), taken at p = j. U-shaped while N theta < 2 pi."""
    p = torch.arange(1, keys + 1, dtype=torch.float64)
    return (beta * ((p[None, :] - p[:, None]) * theta).cos()).softmax(-1).diagonal()


def symbolic_target_weight(
    keys: int, theta: float, beta: float, constant: float = 0.0
) -> Float[Tensor, "keys"]:
    """w_max(j) of simplified H_SYM: one match at logit beta cos((j - (N+1)/2) theta), all others at a constant."""
    p = torch.arange(1, keys + 1, dtype=torch.float64)
    match = beta * ((p - (keys + 1) / 2) * theta).cos()
    return (
        match
        - torch.logaddexp(match, torch.tensor(constant).double() + torch.tensor(keys - 1.0).double().log())
    ).exp()


def falls_then_rises(weights: Float[Tensor, "keys"], tolerance: float = 1e-12) -> bool:
    """Whether a curve over positions is U-shaped: never rises before its lowest point, never falls after it."""
    steps = weights.diff()
    lowest = int(weights.argmin())
    return bool((steps[:lowest] <= tolerance).all() and (steps[lowest:] >= -tolerance).all()) and bool(
        weights[0] > weights[lowest] + tolerance
    )


def rises_then_falls(weights: Float[Tensor, "keys"], tolerance: float = 1e-12) -> bool:
    """Whether it is an inverse U."""
    return falls_then_rises(-weights, tolerance)
