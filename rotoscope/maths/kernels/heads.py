"""All swaps of whole heads in one kernel; the plain twin is the loop over tiles in `maths.swaps`.

One program takes one head and a few tiles of pairs (a, b) of blocks. For each tile it forms B[a, b] and B[b, a] as small
matrix products of seen queries and keys, offset by offset, with running maxima, so that logits of any size are safe; turns
them into cosines; weighs them; and keeps sums. Products are as accurate as float32 (three TF32 products each).

The weights are known beforehand, from the real logits alone. A tile in which no swap weighs more than `maths.swaps.LEAST`
of the largest is stepped over.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl

from rotoscope.maths.blocks import Blocks
from rotoscope.maths.factors import Factors
from rotoscope.shapes import Tensor

TILE, DEPTH = 64, 32  # blocks by blocks; planes per product
PROGRAMS = 512  # per head, at most
SUMS = 16
"""Columns of sums that every tau has: plain 0-5, renormalised 6-9, equal symbols 10-13."""
COUNTS = 4
"""Columns that depend on no tau: swaps, swaps of equal symbols, the largest logit, whether one is no number."""
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))


@triton.jit
def _logits(query, keys, cos, sin, slots, contents, inside_slots, inside_contents, PLANES: tl.constexpr, REST: tl.constexpr,
            ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """A[slot, content] for positions of slots and contents: the query turned here, where it is needed."""
    width: tl.constexpr = 2 * PLANES + REST
    found = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, PLANES, DEPTH):
        plane = first + tl.arange(0, DEPTH)
        real = plane < PLANES
        q_real = tl.load(query + 2 * plane, mask=real, other=0.0)
        q_imaginary = tl.load(query + 2 * plane + 1, mask=real, other=0.0)
        rows = slots[:, None] * PLANES + plane[None, :]
        seen = inside_slots[:, None] & real[None, :]
        c = tl.load(cos + rows, mask=seen, other=0.0)
        s = tl.load(sin + rows, mask=seen, other=0.0)
        columns = contents[None, :] * width + 2 * plane[:, None]
        there = inside_contents[None, :] & real[:, None]
        k_real = tl.load(keys + columns, mask=there, other=0.0)
        k_imaginary = tl.load(keys + columns + 1, mask=there, other=0.0)
        found = tl.dot(q_real[None, :] * c - q_imaginary[None, :] * s, k_real, found, input_precision="tf32x3")
        found = tl.dot(
            q_imaginary[None, :] * c + q_real[None, :] * s, k_imaginary, found, input_precision="tf32x3"
        )
    if REST > 0:  # what never turns is the same from everywhere
        still = tl.zeros((COLUMNS,), dtype=tl.float32)
        for first in range(0, REST, DEPTH):
            part = first + tl.arange(0, DEPTH)
            real = part < REST
            q = tl.load(query + 2 * PLANES + part, mask=real, other=0.0)
            k = tl.load(keys + contents[None, :] * width + 2 * PLANES + part[:, None],
                        mask=inside_contents[None, :] & real[:, None], other=0.0)  # fmt: skip
            still += tl.sum(q[:, None] * k, axis=0)
        found += still[None, :]
    return found


@triton.jit
def _capped(logits, softcap, SOFTCAP: tl.constexpr):
    """softcap * tanh(logits / softcap), from an exponential that cannot overflow."""
    if SOFTCAP:
        size = tl.exp2(tl.abs(logits) * (-2.0 * LOG2E / softcap))
        value = softcap * (1.0 - size) / (1.0 + size)
        logits = tl.where(logits < 0, -value, value)
    return logits


@triton.jit
def _direction(difference):
    """The unit vector along (1, e^-x), for any x."""
    ratio = tl.exp2(tl.minimum(tl.maximum(-difference, -40.0), 40.0) * LOG2E)
    first = tl.rsqrt(ratio * ratio + 1.0)
    return first, ratio * first


@triton.jit
def _focus(weight, uniform):
    """Attention beyond the uniform share; rounding noise is nothing."""
    beyond = weight - uniform
    return tl.where(tl.abs(beyond) > 7.62939453125e-06 * tl.maximum(weight, uniform), beyond, 0.0)


@triton.jit
def _swap_sums(
    query, keys, cos, sin, starts, ends, lengths, visible, own, weights, centred, per_head, ids, work, taus, out,
    n, m, offsets, group, softcap, programs, ids_per, furthest,
    PLANES: tl.constexpr, REST: tl.constexpr, DEPTH: tl.constexpr, TILE: tl.constexpr, TAUS: tl.constexpr,
    EQUAL: tl.constexpr, HIDES: tl.constexpr, SOFTCAP: tl.constexpr, VARIANTS: tl.constexpr, CENTRED: tl.constexpr,
    SYMBOLS: tl.constexpr, SKIPS: tl.constexpr, WIDE: tl.constexpr, SUMS: tl.constexpr, COUNTS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    query += head * (2 * PLANES + REST)
    keys += (head // group) * n * (2 * PLANES + REST)
    own += head * m
    weights += head * m * 4
    centred += head * m * 3
    per_head += head * 8
    ids += (head // ids_per) * m
    band = tl.load(work + 3 * program)
    first = tl.load(work + 3 * program + 1)
    last = tl.load(work + 3 * program + 2)
    column = tl.arange(0, WIDE)
    sums = tl.zeros((WIDE,), dtype=tl.float32)
    spare = tl.load(per_head)
    a = band * TILE + tl.arange(0, TILE)
    a_in = a < m
    own_a = tl.load(own + a, mask=a_in, other=-INF)
    below_a = tl.load(weights + a, mask=a_in, other=INF)
    above_a = tl.load(weights + m + a, mask=a_in, other=INF)
    length_a = tl.load(lengths + a, mask=a_in, other=0)
    top_logit = -INF
    for tile in range(first, last):
        b = tile * TILE + tl.arange(0, TILE)
        b_in = b < m
        own_b = tl.load(own + b, mask=b_in, other=-INF)
        below_b = tl.load(weights + b, mask=b_in, other=INF)
        above_b = tl.load(weights + m + b, mask=b_in, other=INF)
        length_b = tl.load(lengths + b, mask=b_in, other=0)
        counted = (a[:, None] < b[None, :]) & b_in[None, :]
        if HIDES and EQUAL:  # a slot is seen or not, whatever stands in it
            counted = counted & ((own_a > -INF)[:, None] | (own_b > -INF)[None, :])
        lack = tl.minimum(below_a[:, None] + above_b[None, :], above_a[:, None] + below_b[None, :])
        needed = counted & (lack <= furthest)
        if SYMBOLS:
            alike = counted & (
                tl.load(ids + a, mask=a_in, other=-1)[:, None] == tl.load(ids + b, mask=b_in, other=-2)[None, :]
            )
            needed = needed | alike
        if not SKIPS:
            needed = counted
        if tl.max(needed.to(tl.int32)) > 0:
            upper = tl.full((TILE, TILE), -INF, dtype=tl.float32)
            lower = tl.full((TILE, TILE), -INF, dtype=tl.float32)
            upper_sum = tl.zeros((TILE, TILE), dtype=tl.float32)
            lower_sum = tl.zeros((TILE, TILE), dtype=tl.float32)
            for offset in range(offsets):
                # B[a, b]: slot a comes first, so contents are aligned at their starts.
                slots = tl.load(starts + offset * m + a, mask=a_in, other=0)
                contents = tl.load(starts + offset * m + b, mask=b_in, other=0)
                new = _logits(
                    query, keys, cos, sin, slots, contents, a_in, b_in, PLANES, REST, TILE, TILE, DEPTH
                )
                new = _capped(new, softcap, SOFTCAP)
                if HIDES:
                    shown = tl.load(visible + slots, mask=a_in, other=0) > 0
                    new = tl.where(shown[:, None], new, -INF)
                if not EQUAL:
                    new = tl.where(offset < length_b[None, :], new, -INF)
                top = tl.maximum(upper, new, propagate_nan=tl.PropagateNan.ALL)
                safe = tl.where(top == -INF, 0.0, top)
                upper_sum = upper_sum * tl.exp2((upper - safe) * LOG2E) + tl.exp2((new - safe) * LOG2E)
                upper = top
                # B[b, a]: slot b comes last, so contents are aligned at their ends.
                slots = tl.load(ends + offset * m + b, mask=b_in, other=0)
                contents = tl.load(ends + offset * m + a, mask=a_in, other=0)
                new = tl.trans(
                    _logits(query, keys, cos, sin, slots, contents, b_in, a_in, PLANES, REST, TILE, TILE, DEPTH)
                )
                new = _capped(new, softcap, SOFTCAP)
                if HIDES:
                    shown = tl.load(visible + slots, mask=b_in, other=0) > 0
                    new = tl.where(shown[None, :], new, -INF)
                if not EQUAL:
                    new = tl.where(offset < length_a[:, None], new, -INF)
                top = tl.maximum(lower, new, propagate_nan=tl.PropagateNan.ALL)
                safe = tl.where(top == -INF, 0.0, top)
                lower_sum = lower_sum * tl.exp2((lower - safe) * LOG2E) + tl.exp2((new - safe) * LOG2E)
                lower = top
            if offsets > 1:  # log means over the contents' own tokens
                upper += LN2 * (tl.log2(upper_sum) - tl.log2(length_b.to(tl.float32))[None, :])
                lower += LN2 * (tl.log2(lower_sum) - tl.log2(length_a.to(tl.float32))[:, None])
            inside = a_in[:, None] & b_in[None, :]
            largest = tl.where(inside, tl.maximum(upper, lower, propagate_nan=tl.PropagateNan.ALL), -INF)
            nothing = tl.max(((largest != largest) | (largest == INF)).to(tl.int32))
            sums += tl.where(column == TAUS * SUMS + 3, nothing.to(tl.float32), 0.0)
            top_logit = tl.maximum(top_logit, tl.max(tl.where(largest == largest, largest, -INF)))
            if HIDES:
                counted = counted & ((own_a > -INF)[:, None] | (own_b > -INF)[None, :])
                counted = counted & ((upper > -INF) | (lower > -INF))
                if SYMBOLS:
                    alike = alike & counted
            before = tl.where(counted, own_a[:, None] - own_b[None, :], 0.0)
            after = tl.where(counted, upper - lower, 0.0)
            v1, v2 = _direction(before)
            w1, w2 = _direction(after)
            positional = w1 * v1 + w2 * v2
            symbolic = w1 * v2 + w2 * v1
            c_positional = positional
            c_symbolic = symbolic
            if CENTRED:
                log_z = tl.load(per_head + 1)
                uniform = tl.load(per_head + 2)
                shift_all = tl.load(per_head + 3)
                most = tl.load(per_head + 4).to(tl.int32)
                length = tl.load(per_head + 5)
                share_a = tl.load(centred + a, mask=a_in, other=0.0)
                share_b = tl.load(centred + b, mask=b_in, other=0.0)
                rest = tl.log2(tl.maximum(1.0 - share_a[:, None] - share_b[None, :], 0.0)) * LN2 + log_z
                without_a = tl.load(centred + m + a, mask=a_in, other=0.0)
                without_b = tl.load(centred + m + b, mask=b_in, other=0.0)
                rest = tl.where((a == most)[:, None], without_b[None, :], rest)
                rest = tl.where((b == most)[None, :], without_a[:, None], rest)
                e1 = upper - shift_all
                e2 = lower - shift_all
                shift = tl.maximum(tl.maximum(e1, e2), rest)
                shift = tl.where(tl.abs(shift) < INF, shift, 0.0)
                e1 = tl.exp2((e1 - shift) * LOG2E)
                e2 = tl.exp2((e2 - shift) * LOG2E)
                z = tl.maximum(tl.exp2((rest - shift) * LOG2E) + length * (e1 + e2), 1.1754943508222875e-38)
                f1 = _focus(e1 / z, uniform)
                f2 = _focus(e2 / z, uniform)
                u1 = tl.load(centred + 2 * m + a, mask=a_in, other=0.0)[:, None]
                u2 = tl.load(centred + 2 * m + b, mask=b_in, other=0.0)[None, :]
                norm = (u1 * u1 + u2 * u2) * (f1 * f1 + f2 * f2)
                scale = tl.where(counted & (norm > 0), tl.rsqrt(tl.where(norm > 0, norm, 1.0)), 0.0)
                c_positional = tl.where(counted, f1 * u1 + f2 * u2, 0.0) * scale
                c_symbolic = tl.where(counted, f1 * u2 + f2 * u1, 0.0) * scale
            for t in tl.static_range(TAUS):
                per = LOG2E / tl.load(taus + t)
                w = tl.where(counted, tl.exp2(lack * -per), 0.0)
                sums += tl.where(column == t * SUMS, tl.sum(w), 0.0)
                sums += tl.where(column == t * SUMS + 1, tl.sum(w * w), 0.0)
                sums += tl.where(column == t * SUMS + 2, tl.sum(w * positional), 0.0)
                sums += tl.where(column == t * SUMS + 3, tl.sum(w * symbolic), 0.0)
                if CENTRED:
                    sums += tl.where(column == t * SUMS + 4, tl.sum(w * c_positional), 0.0)
                    sums += tl.where(column == t * SUMS + 5, tl.sum(w * c_symbolic), 0.0)
                if VARIANTS:
                    r_lack = tl.minimum(
                        tl.load(weights + 2 * m + a, mask=a_in, other=INF)[:, None] + tl.load(weights + 3 * m + b, mask=b_in, other=INF)[None, :],
                        tl.load(weights + 3 * m + a, mask=a_in, other=INF)[:, None] + tl.load(weights + 2 * m + b, mask=b_in, other=INF)[None, :],
                    )  # fmt: skip
                    w = tl.where(counted, tl.exp2(r_lack * -per), 0.0)
                    sums += tl.where(column == t * SUMS + 6, tl.sum(w), 0.0)
                    sums += tl.where(column == t * SUMS + 7, tl.sum(w * w), 0.0)
                    sums += tl.where(column == t * SUMS + 8, tl.sum(w * positional), 0.0)
                    sums += tl.where(column == t * SUMS + 9, tl.sum(w * symbolic), 0.0)
                if SYMBOLS:
                    w = tl.where(alike, tl.exp2(tl.maximum(lack - spare, 0.0) * -per), 0.0)
                    sums += tl.where(column == t * SUMS + 10, tl.sum(w), 0.0)
                    sums += tl.where(column == t * SUMS + 11, tl.sum(w * w), 0.0)
                    sums += tl.where(column == t * SUMS + 12, tl.sum(w * positional), 0.0)
                    sums += tl.where(column == t * SUMS + 13, tl.sum(w * symbolic), 0.0)
        sums += tl.where(column == TAUS * SUMS, tl.sum(counted.to(tl.float32)), 0.0)
        if SYMBOLS:
            sums += tl.where(column == TAUS * SUMS + 1, tl.sum(alike.to(tl.float32)), 0.0)
    sums = tl.where(column == TAUS * SUMS + 2, top_logit, sums)
    tl.store(out + (head * programs + program) * WIDE + column, sums)


@dataclass(frozen=True)
class PerBlock:
    """What the kernel is told of every head and block, all in float32 and known before any counterfactual logit."""

    own: Tensor
    """B[I, I], less the largest real logit [heads, blocks]."""
    weights: Tensor
    """What each block lacks of the largest D and exceeds the smallest by; then the same of D renormalised [heads, 4, blocks]."""
    centred: Tensor
    """Shares, everything but the top block and each, focus before [heads, 3, blocks]."""
    per_head: Tensor
    """spare, log Z, uniform share, largest real logit, top block, block length, unused [heads, 8]."""


def swap_sums(
    factors: Factors, blocks: Blocks, taus: tuple[float, ...], per_block: PerBlock, ids: Tensor | None, furthest: float,
    *, renormalised: bool, centred: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sums over all swaps [heads, taus, SUMS], and counts [heads, COUNTS]; heads of all inputs, one after the other.

    `furthest` is how much a swap may lack of the largest |D_a - D_b| and still be computed.
    """
    device, m = factors.keys.device, len(blocks)
    batch, key_heads, n, width = factors.keys.shape
    group = factors.query.shape[2]
    heads = batch * key_heads * group
    places = blocks.on(device)
    depth = 16 if factors.planes <= 16 else DEPTH
    tile = min(TILE, max(16, triton.next_power_of_2(m)))
    work = _work(m, tile, device)
    wide = triton.next_power_of_2(len(taus) * SUMS + COUNTS)
    out = torch.empty(heads, len(work), wide, device=device)
    symbols = torch.zeros(1, 1, dtype=torch.int32, device=device) if ids is None else ids
    skips = not (factors.hides and not blocks.equal_length)
    _swap_sums[(heads, len(work))](
        factors.query.contiguous(), factors.keys.contiguous(), factors.cos.contiguous(), factors.sin.contiguous(),
        places.starts, places.ends, places.lengths, factors.visible.to(torch.int8), per_block.own, per_block.weights, per_block.centred,
        per_block.per_head, symbols, work, taus_on(taus, device), out,
        n, m, max(blocks.lengths), group, factors.softcap or 1.0, len(work), heads // len(symbols), furthest,
        PLANES=factors.planes, REST=width - 2 * factors.planes, DEPTH=depth, TILE=tile, TAUS=len(taus),
        EQUAL=blocks.equal_length, HIDES=factors.hides, SOFTCAP=factors.softcap is not None, VARIANTS=renormalised,
        CENTRED=centred, SYMBOLS=ids is not None, SKIPS=skips, WIDE=wide, SUMS=SUMS, COUNTS=COUNTS, num_warps=8 if tile == TILE else 4,
    )  # fmt: skip
    found = out.double().sum(1)
    counts = found[:, len(taus) * SUMS : len(taus) * SUMS + COUNTS]
    counts[:, 2] = out[:, :, len(taus) * SUMS + 2].amax(1).double()
    return found[:, : len(taus) * SUMS].unflatten(1, (len(taus), SUMS)), counts


@lru_cache(maxsize=64)
def taus_on(taus: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(taus, device=device)


@lru_cache(maxsize=64)
def _work(m: int, tile: int, device: torch.device) -> Tensor:
    """What each program of a head does: a band of tiles, and the first and last tile of it."""
    bands = -(-m // tile)
    total = bands * (bands + 1) // 2
    run = max(1, -(-total // PROGRAMS))
    rows = [
        (band, first, min(first + run, bands)) for band in range(bands) for first in range(band, bands, run)
    ]
    return torch.tensor(rows, dtype=torch.int32, device=device)
