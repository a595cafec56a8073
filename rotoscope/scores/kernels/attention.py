"""What is known of a head's blocks before any swap, from its real logits alone; the plain twin is in `scores.swaps`.

One program takes one head, in float64 and relative to the largest real logit: tau = 1e-4 makes rounding visible.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"
from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import triton
import triton.language as tl

from rotoscope.scores.blocks import Blocks
from rotoscope.scores.counterfactual import Factors
from rotoscope.shapes import Float, Tensor

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


STEP = 2048  # positions or blocks at a time
INF = tl.constexpr(float("inf"))


@triton.jit
def _focus(weight, uniform):
    """Attention beyond the uniform share; rounding noise is nothing."""
    beyond = weight - uniform
    return tl.where(tl.abs(beyond) > 7.62939453125e-06 * tl.maximum(weight, uniform), beyond, 0.0)


@triton.jit
def _added(total, top, values):
    """A running sum of exponentials, relative to a running maximum."""
    higher = tl.maximum(top, tl.max(values))
    safe = tl.where(higher == -INF, 0.0, higher)
    return total * tl.exp(top - safe) + tl.sum(tl.exp(values - safe)), higher


@triton.jit
def _blocks(
    real, sink, swapped, starts, lengths, own, weights, centred, per_head, about, logs, n, m, offsets,
    EQUAL: tl.constexpr, SINKS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    real += head * n
    own += head * m
    logs += head * m
    weights += head * 4 * m
    centred += head * 3 * m
    per_head += head * 8
    about += head * 2
    within = tl.arange(0, STEP)

    largest = tl.full((), -INF, dtype=tl.float32)
    visible = tl.zeros((), dtype=tl.float64)
    for first in range(0, n, STEP):
        values = tl.load(real + first + within, mask=first + within < n, other=-INF)
        largest = tl.maximum(largest, tl.max(values))
        visible += tl.sum((values > -INF).to(tl.float64))
    largest = tl.where(tl.abs(largest) < INF, largest, 0.0)
    z = tl.zeros((), dtype=tl.float64)
    tilted = tl.zeros((), dtype=tl.float64)
    outside = tl.zeros((), dtype=tl.float64)
    outside_top = tl.full((), -INF, dtype=tl.float64)
    if SINKS:
        outside_top = tl.load(sink + head).to(tl.float64) - largest
        outside = tl.exp(tl.zeros((), dtype=tl.float64))
    for first in range(0, n, STEP):
        at = first + within
        values = tl.load(real + at, mask=at < n, other=-INF).to(tl.float64) - largest
        weight = tl.exp(values)
        z += tl.sum(weight)
        tilted += tl.sum(tl.where(values > -INF, weight * values, 0.0))
        free = tl.load(swapped + at, mask=at < n, other=1) == 0
        outside, outside_top = _added(outside, outside_top, tl.where(free, values, -INF))
    everything = z
    if SINKS:
        everything += tl.exp(tl.load(sink + head).to(tl.float64) - largest)
    log_z = tl.log(everything)

    # Log means of all blocks; which has most mass.
    high = tl.full((), -INF, dtype=tl.float64)
    low = tl.full((), INF, dtype=tl.float64)
    top_mass = tl.full((), -INF, dtype=tl.float64)
    top = tl.full((), 0, dtype=tl.int32)
    total = tl.zeros((), dtype=tl.float64)
    total_top = tl.full((), -INF, dtype=tl.float64)
    for first in range(0, m, STEP):
        block = first + within
        in_block = block < m
        length = tl.load(lengths + block, mask=in_block, other=1)
        height = tl.full((STEP,), -INF, dtype=tl.float64)
        mean = tl.zeros((STEP,), dtype=tl.float64)
        for offset in range(offsets):
            inside = in_block & (offset < length)
            at = tl.load(starts + offset * m + block, mask=inside, other=0)
            values = tl.load(real + at, mask=inside, other=-INF).to(tl.float64) - largest
            higher = tl.maximum(height, values)
            safe = tl.where(higher == -INF, 0.0, higher)
            mean = mean * tl.exp(height - safe) + tl.exp(values - safe)
            height = higher
        mean = tl.where(height == -INF, 0.0, height) + tl.log(mean / length)
        tl.store(logs + block, mean, mask=in_block)
        tl.store(own + block, mean.to(tl.float32), mask=in_block)
        high = tl.maximum(high, tl.max(tl.where(in_block, mean, -INF)))
        low = tl.minimum(low, tl.min(tl.where(in_block, mean, INF)))
        mass = tl.where(in_block, mean + tl.log(length.to(tl.float64)), -INF)
        total, total_top = _added(total, total_top, mass)
        most = tl.max(mass)
        if most > top_mass:
            top = (first + tl.argmax(mass, axis=0)).to(tl.int32)
            top_mass = most
    tl.debug_barrier()
    log_mass = tl.where(total_top == -INF, 0.0, total_top) + tl.log(total)

    # The next after it; everything but the top block, and everything but both.
    after_mass = tl.full((), -INF, dtype=tl.float64)
    after = tl.full((), -1, dtype=tl.int32)
    if EQUAL:
        for first in range(0, m, STEP):
            block = first + within
            mass = tl.load(logs + block, mask=(block < m) & (block != top), other=-INF)
            most = tl.max(mass)
            if most > after_mass:
                after = (first + tl.argmax(mass, axis=0)).to(tl.int32)
                after_mass = most
    others = outside
    others_top = outside_top
    log_length = tl.log(tl.load(lengths).to(tl.float64))
    if EQUAL:
        for first in range(0, m, STEP):
            block = first + within
            mass = (
                tl.load(logs + block, mask=(block < m) & (block != top) & (block != after), other=-INF)
                + log_length
            )
            others, others_top = _added(others, others_top, mass)
    neither = tl.where(others_top == -INF, 0.0, others_top) + tl.log(others)
    step = tl.where(tl.arange(0, 2) == 0, neither, after_mass + log_length)
    sum_of_all, both_top = _added(tl.zeros((), dtype=tl.float64), tl.full((), -INF, dtype=tl.float64), step)
    without = tl.where(both_top == -INF, 0.0, both_top) + tl.log(sum_of_all)

    uniform = 1.0 / tl.maximum(visible, 1.0)
    most = tl.exp(high - log_z)
    least = tl.exp(low - log_z)
    most_share = tl.exp(high - log_mass)
    least_share = tl.exp(low - log_mass)
    for first in range(0, m, STEP):
        block = first + within
        in_block = block < m
        mean = tl.load(logs + block, mask=in_block, other=-INF)
        weight = tl.exp(mean - log_z)
        tl.store(weights + block, (most - weight).to(tl.float32), mask=in_block)
        tl.store(weights + m + block, (weight - least).to(tl.float32), mask=in_block)
        share = tl.where(mean > -INF, tl.exp(mean - log_mass), 0.0)
        tl.store(weights + 2 * m + block, (most_share - share).to(tl.float32), mask=in_block)
        tl.store(weights + 3 * m + block, (share - least_share).to(tl.float32), mask=in_block)
        if EQUAL:
            part = tl.where((block != top) & (block != after), tl.exp(mean + log_length - without), 0.0)
            rest = tl.where(block == after, neither, without + tl.log(1.0 - part))
            mass = tl.exp(mean + log_length - log_z)
            tl.store(centred + block, mass.to(tl.float32), mask=in_block)
            tl.store(centred + m + block, rest.to(tl.float32), mask=in_block)
            before = _focus((mass / tl.exp(log_length)).to(tl.float32), uniform.to(tl.float32))
            tl.store(centred + 2 * m + block, before, mask=in_block)
    tl.store(per_head + 1, log_z.to(tl.float32))
    tl.store(per_head + 2, uniform.to(tl.float32))
    tl.store(per_head + 3, largest)
    tl.store(per_head + 4, top.to(tl.float32))
    tl.store(per_head + 5, tl.load(lengths).to(tl.float32))
    tl.store(about, (log_z * (z / everything) - tilted / everything).to(tl.float32))  # entropy
    tl.store(about + 1, tl.exp(log_mass - log_z).to(tl.float32))


@dataclass(frozen=True)
class PerBlock:
    """What swaps are weighed and compared by, of all heads of all inputs, in float32."""

    own: Float[Tensor, "heads blocks"]
    """B[I, I], less the largest real logit."""
    weights: Float[Tensor, "heads 4 blocks"]
    """What each block lacks of the largest D and exceeds the smallest by; then the same of D renormalised."""
    centred: Float[Tensor, "heads 3 blocks"]
    """Shares, everything but the top block and each, focus before; blocks of equal length only."""
    per_head: Float[Tensor, "heads 8"]
    """spare, log Z, uniform share, largest real logit, top block, block length; the last two are the next kernel's."""
    entropy: Float[Tensor, "heads"]
    swapped_mass: Float[Tensor, "heads"]

    def of(self, heads: slice) -> PerBlock:
        """The same of some heads, in the same memory."""
        return PerBlock(**{field.name: getattr(self, field.name)[heads] for field in fields(self)})


def look_at_blocks(
    real: Float[Tensor, "heads n"], blocks: Blocks, sink: Float[Tensor, "heads"] | None
) -> PerBlock:
    """All of it from real logits; hidden positions are -inf."""
    heads, n = real.shape
    m, device, places = len(blocks), real.device, blocks.on(real.device)
    sizes = {"own": (m,), "weights": (4, m), "centred": (3, m)}
    outputs = {name: torch.empty(heads, *size, device=device) for name, size in sizes.items()}
    per_head, about = torch.zeros(heads, 8, device=device), torch.empty(heads, 2, device=device)
    step = min(STEP, max(16, triton.next_power_of_2(max(n, m))))
    _blocks[(heads,)](
        real, real if sink is None else sink, places.swapped(n), places.starts, places.lengths, *outputs.values(), per_head,
        about, torch.empty(heads, m, dtype=torch.float64, device=device), n, m, max(blocks.lengths),
        EQUAL=blocks.equal_length, SINKS=sink is not None, STEP=step, num_warps=8,
    )  # fmt: skip
    return PerBlock(**outputs, per_head=per_head, entropy=about[:, 0], swapped_mass=about[:, 1])
