"""Rotation planes, and the counterfactual logit matrix they give.

RoPE turns plane k of a key at position p by p * g_k, and plane k of the query at position i by
i * g_k. Their product depends on i - p only, so one may leave every key as it is and turn the query
instead: "the query as seen from position p". The logit that key content c would have at position p is

    A[p, c] = scale * < key_c , query turned by (i - p) g >

which is one matrix product between n seen queries and n un-rotated keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rotoscope.settings import BASE
from rotoscope.shapes import Float, Tensor


def turn(
    pairs: Float[Tensor, "... planes 2"], cos: Float[Tensor, "..."], sin: Float[Tensor, "..."]
) -> Float[Tensor, "... planes 2"]:
    """Turn each plane's (real, imaginary) pair by the angle whose cosine and sine are given.

    `cos` and `sin` broadcast against the plane axis and everything before it. A common factor in both
    (as in YaRN) scales the pair.
    """
    real, imaginary = pairs[..., 0], pairs[..., 1]
    return torch.stack((real * cos - imaginary * sin, imaginary * cos + real * sin), dim=-1)


def split_planes(
    vectors: Float[Tensor, "... d"], rotated: int | None = None, *, interleaved: bool = False
) -> Float[Tensor, "... planes 2"]:
    """Queries or keys of a head as planes of (real, imaginary), as `counterfactual_logits` takes them.

    Most models turn dimension k of the rotated ones with dimension k + rotated / 2 (Llama, Pythia); GPT-J turns
    neighbours: `interleaved`. Dimensions from `rotated` on do not turn. They follow as planes, whose angle is 0.
    """
    width = vectors.shape[-1] if rotated is None else rotated
    turning, rest = vectors[..., :width], vectors[..., width:]
    pairs = turning.unflatten(-1, (-1, 2)) if interleaved else turning.unflatten(-1, (2, -1)).mT
    return torch.cat((pairs, rest.unflatten(-1, (-1, 2))), dim=-2)


def rope_angles(planes: int, base: float = BASE, ids: Sequence[int] = ()) -> Float[Tensor, "planes"]:
    """RoPE's g_k = base^(-2(k-1)/d), in the float32 arithmetic of models' own tables.

    With `ids` (from 1 on, the fastest) only those angles, the planes dealt out evenly over them in order.
    """
    usual = 1.0 / base ** (torch.arange(0, 2 * planes, 2, dtype=torch.int64) / (2 * planes))
    return usual[[ids[plane * len(ids) // planes] - 1 for plane in range(planes)]] if ids else usual


def relative_phases(
    angles: Float[Tensor, "... planes"], n: int, query_position: int
) -> Float[Tensor, "... positions planes"]:
    """(i - p) * g_k for p = 0..n-1, always in float64: long positions need the digits."""
    distance = query_position - torch.arange(n, dtype=torch.float64, device=angles.device)
    return distance[:, None] * angles.to(torch.float64).unsqueeze(-2)


def counterfactual_logits(
    query: Float[Tensor, "... planes 2"],
    keys: Float[Tensor, "... n planes 2"],
    angles: Float[Tensor, "... planes"],
    scale: float = 1.0,
    query_position: int | None = None,
) -> Float[Tensor, "... n n"]:
    """The logit A[p, c] if key content c stood at position p, for one query.

    `query` and `keys` are un-rotated, split into planes of (real, imaginary); `angles[k]` is how far
    plane k turns per position; axes in front of theirs go with those of the query. Keys stand at positions
    0..n-1 and the query at `query_position` (default n-1: it is the last token itself). The diagonal holds the head's real logits.
    """
    n = keys.shape[-3]
    position = n - 1 if query_position is None else query_position
    phases = relative_phases(angles, n, position)
    cos, sin = phases.cos().to(keys.dtype), phases.sin().to(keys.dtype)
    turned = turn(query.unsqueeze(-3), cos, sin)  # [..., n, planes, 2]
    return scale * turned.flatten(-2) @ keys.flatten(-2).transpose(-1, -2)
