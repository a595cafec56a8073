"""Keys, and queries as they are seen from every position, split into halves: x = high + low, both of half precision.

They are scaled by powers of two first, so that what is lost is lost relative to the largest number of a vector.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from rotoscope.scores.factors import Factors
from rotoscope.shapes import Tensor

POSITIONS = 16  # per program
HEIGHT = 8
"""The largest number before it is split: 2 to the power of this."""


@triton.jit
def _split(
    vectors, cos, sin, scale, high, low, n, PLANES: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    REACH: tl.constexpr, TURNED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Vectors as two halves [.., n, PADDED], real parts first, then imaginary ones, then what never turns.

    Keys come as they are, one for every position. A query (`TURNED`) is turned to be seen from every position.
    """
    index = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, REACH)
    inside = (row < n)[:, None] & (column < WIDTH)[None, :]
    plane = tl.where(column < PLANES, column, column - PLANES)
    turns = column < 2 * PLANES
    real = tl.where(turns, 2 * plane, column)
    if TURNED:
        vectors += index * WIDTH
        known = column < WIDTH
        real_part = tl.load(vectors + real, mask=known, other=0.0)
        imaginary_part = tl.load(vectors + real + 1, mask=known & turns, other=0.0)
        at = row[:, None] * PLANES + plane[None, :]
        c = tl.load(cos + at, mask=inside & turns[None, :], other=1.0)
        s = tl.load(sin + at, mask=inside & turns[None, :], other=0.0)
        first = real_part[None, :] * c - imaginary_part[None, :] * s
        second = imaginary_part[None, :] * c + real_part[None, :] * s
        values = tl.where((column < PLANES)[None, :] | (column >= 2 * PLANES)[None, :], first, second)
    else:
        vectors += index * n * WIDTH
        source = tl.where(turns & (column >= PLANES), real + 1, real)
        values = tl.load(vectors + row[:, None] * WIDTH + source[None, :], mask=inside, other=0.0)
    values = tl.where(inside, values, 0.0) * tl.load(scale + index)
    upper = values.to(tl.float16)
    at = (index * n + row[:, None]) * PADDED + column[None, :]
    kept = (row < n)[:, None] & (column < PADDED)[None, :]
    tl.store(high + at, upper, mask=kept)
    tl.store(low + at, (values - upper.to(tl.float32)).to(tl.float16), mask=kept)


def _padded(width: int) -> int:
    """Dimensions of a head, filled up with zeros to what products can take."""
    return triton.next_power_of_2(max(width, 16)) if width <= 128 else -(-width // 64) * 64


def halves_bytes(factors: Factors) -> int:
    """What the halves of one input take: of its keys, and of all its queries as they are seen."""
    _, key_heads, n, width = factors.keys.shape
    return 4 * key_heads * (1 + factors.query.shape[2]) * n * _padded(width)


def in_halves(
    factors: Factors, vectors: Tensor, *, turned: bool
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Both halves of keys, or of queries seen from all positions; what they were scaled by; the longest vector's length."""
    n, width = factors.keys.shape[2:]
    padded = _padded(width)
    # A query is no longer seen from elsewhere than it is, unless the tables scale.
    stretched = (
        (factors.cos.square() + factors.sin.square()).amax().sqrt() if turned and factors.planes else 1.0
    )
    length = vectors.norm(dim=-1) * stretched if turned else vectors.view(-1, n, width).norm(dim=-1).amax(-1)
    _, power = torch.frexp(length.clamp(min=torch.finfo(torch.float32).tiny))
    scale = torch.ldexp(torch.ones_like(length), HEIGHT - power)
    halves = torch.empty(2, len(vectors), n, padded, dtype=torch.float16, device=vectors.device)
    _split[(len(vectors), -(-n // POSITIONS))](
        vectors, factors.cos.float().contiguous(), factors.sin.float().contiguous(), scale, halves[0], halves[1], n,
        PLANES=factors.planes, WIDTH=width, PADDED=padded, REACH=triton.next_power_of_2(padded), TURNED=turned, ROWS=POSITIONS, num_warps=4,
    )  # fmt: skip
    return (halves[0], halves[1]), scale, length
