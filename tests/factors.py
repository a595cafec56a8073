"""Heads made of random numbers: a query, keys, and a rotation between them."""

from __future__ import annotations

from typing import Any

import torch

from rotoscope.scores.counterfactual import Factors
from rotoscope.shapes import Float, Tensor


def random_factors(
    n: int = 12,
    planes: int = 3,
    rest: int = 0,
    *,
    batch: int = 1,
    key_heads: int = 1,
    group: int = 2,
    size: float = 1.0,
    hidden: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **more: Any,
) -> Factors:
    """Angles like a model's, from one radian per position downwards; the query stands at the last position."""
    dice = torch.Generator().manual_seed(seed)
    phase = (n - 1 - torch.arange(n)).double()[:, None] * 1000.0 ** (
        -torch.arange(planes) / max(planes, 1)
    ).double()
    width = 2 * planes + rest
    return Factors(
        query=size * torch.randn(batch, key_heads, group, width, generator=dice, dtype=torch.float64).to(dtype),
        keys=torch.randn(batch, key_heads, n, width, generator=dice, dtype=torch.float64).to(dtype),
        cos=phase.cos().to(dtype),
        sin=phase.sin().to(dtype),
        visible=torch.tensor([p not in hidden for p in range(n)]),
        hides=bool(hidden),
        **more,
    )


def factors_of(logits: Float[Tensor, "n n"]) -> Factors:
    """A head with any counterfactual logits: as many planes as make the seen queries independent."""
    n = len(logits)
    phase = 2 * torch.pi / n * torch.arange(n, dtype=torch.float64)[:, None] * torch.arange(n // 2 + 1)
    cos, sin = phase.cos(), phase.sin()
    query = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(n // 2 + 1)
    seen = torch.stack((cos, sin), dim=-1).flatten(1)
    keys = torch.linalg.pinv(seen) @ logits
    return Factors(
        query=query[None, None, None], keys=keys.T[None, None].contiguous(), cos=cos, sin=sin,
        visible=torch.ones(n, dtype=torch.bool), hides=False,
    )  # fmt: skip
