"""All swaps of whole heads in one kernel; the plain twin is the loop over tiles in `scores.swaps`.

One program takes one head and a few tiles of pairs (a, b) of blocks. For each tile it forms B[a, b] and B[b, a] as small
matrix products of seen queries and keys, offset by offset, turns them into cosines, weighs them and keeps sums; no logit
reaches memory.

Products run on the tensor cores and are as accurate as float32's: every number is split into two of half precision,
x = high + low, and a product is the sum of three, high high' + high low' + low high', what is left out being 2^-22 of it. The
halves come from `kernels.halves`.

The weights are known beforehand, from the real logits alone. A tile in which no swap weighs more than `scores.swap_pairs.LEAST`
of the largest is stepped over. Heads whose logits may grow too large to add up exponentials go with running maxima.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"
from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl

from rotoscope.scores.blocks import Blocks
from rotoscope.scores.counterfactual import Factors
from rotoscope.scores.kernels.attention import PerBlock, _focus, in_halves
from rotoscope.shapes import Tensor

TILE, COLUMNS = 64, 32  # blocks by blocks
DEPTH = 64  # dimensions at a time
WARPS, STAGES = 4, 2
PROGRAMS = 512  # per head, at most
SUMS = 16
"""Columns of sums that every tau has: plain 0-5, renormalised 6-9, equal symbols 10-13."""
COUNTS = 4
"""Columns that depend on no tau: swaps, swaps of equal symbols, the largest logit, whether one is no number."""
LARGE = 100.0
"""Logits, to the base of 2, whose exponentials can be added up as they are."""
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))


@triton.jit
def _log_means(
    q_high, q_low, k_high, k_low, slots, contents, lengths, visible, step, n, offsets, unit, softcap,
    PADDED: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    EQUAL: tl.constexpr, HIDES: tl.constexpr, SOFTCAP: tl.constexpr, LARGE: tl.constexpr, SINGLE: tl.constexpr,
):  # fmt: skip
    """B[slot, content], to the base of 2: slots and contents are walked from their first position by `step`, as long as
    the content has tokens. One step of the loop takes a part of the dimensions at one offset."""
    parts: tl.constexpr = PADDED // DEPTH
    dimension = tl.arange(0, DEPTH)
    product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    top = tl.full((ROWS, COLUMNS), -INF, dtype=tl.float32)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for turn in range(offsets * parts):
        offset = turn // parts
        at = slots + step * offset
        of = contents + step * offset
        if not EQUAL:  # beyond a content's tokens nothing counts, but it must be in memory
            at = tl.minimum(tl.maximum(at, 0), n - 1)
            of = tl.minimum(tl.maximum(of, 0), n - 1)
        begin = (turn % parts) * DEPTH
        row = (at * PADDED + begin)[:, None] + dimension[None, :]
        column = (of * PADDED + begin)[None, :] + dimension[:, None]
        a_high = tl.load(q_high + row)
        b_high = tl.load(k_high + column)
        a_low = tl.load(q_low + row)
        b_low = tl.load(k_low + column)
        product = tl.dot(a_high, b_high, product)
        product = tl.dot(a_high, b_low, product)
        product = tl.dot(a_low, b_high, product)
        last = turn % parts == parts - 1
        new = _capped(product * unit, softcap, SOFTCAP)
        if HIDES:
            new = tl.where((tl.load(visible + at) > 0)[:, None], new, -INF)
        if not EQUAL:
            new = tl.where((offset < lengths)[None, :], new, -INF)
        if SINGLE:
            top = tl.where(last, new, top)
        elif LARGE:
            higher = tl.maximum(top, new, propagate_nan=tl.PropagateNan.ALL)
            safe = tl.where(higher == -INF, 0.0, higher)
            total = tl.where(last, total * tl.exp2(top - safe) + tl.exp2(new - safe), total)
            top = tl.where(last, higher, top)
        else:
            total += tl.where(last, tl.exp2(new), 0.0)
        product = tl.where(last, 0.0, product)
    if SINGLE:
        result = top
    elif LARGE:
        result = tl.where(top == -INF, 0.0, top) + tl.log2(total / lengths[None, :])
    else:
        result = tl.log2(total / lengths[None, :])
    return result


@triton.jit
def _capped(logits, softcap, SOFTCAP: tl.constexpr):
    """softcap * tanh(logits / softcap), from an exponential that cannot overflow; both to the base of 2."""
    if SOFTCAP:
        size = tl.exp2(tl.abs(logits) * (-2.0 / softcap))
        value = softcap * LOG2E * (1.0 - size) / (1.0 + size)
        logits = tl.where(logits < 0, -value, value)
    return logits


@triton.jit
def _direction(difference):
    """The unit vector along (1, e^-x), for any x."""
    ratio = tl.exp2(tl.minimum(tl.maximum(-difference, -40.0), 40.0) * LOG2E)
    first = tl.rsqrt(ratio * ratio + 1.0)
    return first, ratio * first


@triton.jit
def _store(sums, column, mask, values):
    """Add what is found along the rows of a tile to a column of sums; rows are added up at the very end."""
    return sums + tl.where(column == mask, tl.sum(values, axis=1)[:, None], 0.0)


@triton.jit
def _swap_sums(
    q_high, q_low, k_high, k_low, starts, stops, visible, own, weights, centred, per_head, ids, work, taus, out,
    n, m, offsets, group, softcap, programs, ids_per, furthest,
    PADDED: tl.constexpr, DEPTH: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, TAUS: tl.constexpr,
    EQUAL: tl.constexpr, SINGLE: tl.constexpr, HIDES: tl.constexpr, SOFTCAP: tl.constexpr, VARIANTS: tl.constexpr,
    CENTRED: tl.constexpr, SYMBOLS: tl.constexpr, SKIPS: tl.constexpr, LARGE: tl.constexpr, WIDE: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    # Programs that run at the same time are of the same head, whose vectors the card's cache can hold.
    head = (tl.program_id(0) // programs).to(tl.int64)
    program = tl.program_id(0) % programs
    per_head += head * 8
    if (tl.load(per_head + 7) > 0) != LARGE:  # the other form has this head
        return
    unit = tl.load(per_head + 6)
    q_high += head * n * PADDED
    q_low += head * n * PADDED
    k_high += (head // group) * n * PADDED
    k_low += (head // group) * n * PADDED
    own += head * m
    weights += head * m * 4
    centred += head * m * 3
    ids += (head // ids_per) * m
    band = tl.load(work + 3 * program)
    first = tl.load(work + 3 * program + 1)
    last = tl.load(work + 3 * program + 2)
    wrong = 0
    column = tl.arange(0, WIDE)[None, :]
    sums = tl.zeros((TILE, WIDE), dtype=tl.float32)
    spare = tl.load(per_head)
    first_start = tl.load(starts)  # outside the blocks, any place that is in memory will do
    last_stop = tl.load(stops + m - 1)
    a = band * TILE + tl.arange(0, TILE)
    a_in = a < m
    own_a = tl.load(own + a, mask=a_in, other=-INF)
    below_a = tl.load(weights + a, mask=a_in, other=INF)
    above_a = tl.load(weights + m + a, mask=a_in, other=INF)
    start_a = tl.load(starts + a, mask=a_in, other=first_start)
    stop_a = tl.load(stops + a, mask=a_in, other=last_stop)
    top_logit = -INF
    for tile in range(first, last):
        b = tile * COLUMNS + tl.arange(0, COLUMNS)
        b_in = b < m
        own_b = tl.load(own + b, mask=b_in, other=-INF)
        below_b = tl.load(weights + b, mask=b_in, other=INF)
        above_b = tl.load(weights + m + b, mask=b_in, other=INF)
        start_b = tl.load(starts + b, mask=b_in, other=first_start)
        stop_b = tl.load(stops + b, mask=b_in, other=last_stop)
        counted = (a[:, None] < b[None, :]) & b_in[None, :]
        if HIDES and EQUAL:  # a slot is seen or not, whatever stands in it
            counted = counted & ((own_a > -INF)[:, None] | (own_b > -INF)[None, :])
        lack = tl.minimum(below_a[:, None] + above_b[None, :], above_a[:, None] + below_b[None, :])
        needed = counted & (lack <= furthest)
        if SYMBOLS:
            own_ids = tl.load(ids + a, mask=a_in, other=-1)
            alike = counted & (own_ids[:, None] == tl.load(ids + b, mask=b_in, other=-2)[None, :])
            needed = needed | alike
        if not SKIPS:
            needed = counted
        if tl.max(needed.to(tl.int32)) > 0:
            # B[a, b]: slot a comes first, so contents are aligned at their starts. B[b, a]: slot b comes last, at their ends.
            upper = LN2 * _log_means(
                q_high, q_low, k_high, k_low, start_a, start_b, stop_b - start_b, visible, 1, n, offsets, unit, softcap,
                PADDED, DEPTH, TILE, COLUMNS, EQUAL, HIDES, SOFTCAP, LARGE, SINGLE,
            )  # fmt: skip
            lower = LN2 * tl.trans(_log_means(
                q_high, q_low, k_high, k_low, stop_b - 1, stop_a - 1, stop_a - start_a, visible, -1, n, offsets, unit, softcap,
                PADDED, DEPTH, COLUMNS, TILE, EQUAL, HIDES, SOFTCAP, LARGE, SINGLE,
            ))  # fmt: skip
            inside = a_in[:, None] & b_in[None, :]
            largest = tl.where(inside, tl.maximum(upper, lower, propagate_nan=tl.PropagateNan.ALL), -INF)
            nothing = tl.max(((largest != largest) | (largest == INF)).to(tl.int32))
            wrong = tl.maximum(wrong, nothing)
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
                sums = _store(sums, column, t * SUMS, w)
                sums = _store(sums, column, t * SUMS + 1, w * w)
                sums = _store(sums, column, t * SUMS + 2, w * positional)
                sums = _store(sums, column, t * SUMS + 3, w * symbolic)
                if CENTRED:
                    sums = _store(sums, column, t * SUMS + 4, w * c_positional)
                    sums = _store(sums, column, t * SUMS + 5, w * c_symbolic)
                if VARIANTS:
                    r_lack = tl.minimum(
                        tl.load(weights + 2 * m + a, mask=a_in, other=INF)[:, None] + tl.load(weights + 3 * m + b, mask=b_in, other=INF)[None, :],
                        tl.load(weights + 3 * m + a, mask=a_in, other=INF)[:, None] + tl.load(weights + 2 * m + b, mask=b_in, other=INF)[None, :],
                    )  # fmt: skip
                    w = tl.where(counted, tl.exp2(r_lack * -per), 0.0)
                    sums = _store(sums, column, t * SUMS + 6, w)
                    sums = _store(sums, column, t * SUMS + 7, w * w)
                    sums = _store(sums, column, t * SUMS + 8, w * positional)
                    sums = _store(sums, column, t * SUMS + 9, w * symbolic)
                if SYMBOLS:
                    w = tl.where(alike, tl.exp2(tl.maximum(lack - spare, 0.0) * -per), 0.0)
                    sums = _store(sums, column, t * SUMS + 10, w)
                    sums = _store(sums, column, t * SUMS + 11, w * w)
                    sums = _store(sums, column, t * SUMS + 12, w * positional)
                    sums = _store(sums, column, t * SUMS + 13, w * symbolic)
        sums = _store(sums, column, TAUS * SUMS, counted.to(tl.float32))
        if SYMBOLS:
            sums = _store(sums, column, TAUS * SUMS + 1, alike.to(tl.float32))
    sums = tl.sum(sums, axis=0)
    column = tl.arange(0, WIDE)
    sums = tl.where(column == TAUS * SUMS + 2, top_logit, sums)
    sums = tl.where(column == TAUS * SUMS + 3, wrong.to(tl.float32), sums)
    tl.store(out + (head * programs + program) * WIDE + column, sums)


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
    keys, k_scale, k_size = in_halves(
        factors, factors.keys.float().contiguous().view(batch * key_heads, n * width), turned=False
    )
    q_halves, q_scale, q_size = in_halves(
        factors, factors.query.float().contiguous().view(heads, width), turned=True
    )
    per_head = per_block.per_head
    per_head[:, 6] = LOG2E.value / (q_scale * k_scale.repeat_interleave(group))
    single = max(blocks.lengths) == 1
    sums_up = not single and factors.softcap is None  # exponentials, of logits that know no bound
    if sums_up:
        per_head[:, 7] = q_size * k_size.repeat_interleave(group) * LOG2E.value > LARGE
    tile, columns = (min(size, max(16, triton.next_power_of_2(m))) for size in (TILE, COLUMNS))
    work, places = _work(m, tile, columns, device), blocks.on(device)
    wide = triton.next_power_of_2(len(taus) * SUMS + COUNTS)
    out = torch.empty(heads, len(work), wide, device=device)
    symbols = torch.zeros(1, 1, dtype=torch.int32, device=device) if ids is None else ids
    padded = keys[0].shape[-1]
    for large in (False, True) if sums_up else (False,):
        _swap_sums[(heads * len(work),)](
            *q_halves, *keys, places.spans[0], places.spans[1], factors.visible.to(torch.int8), per_block.own,
            per_block.weights, per_block.centred, per_head, symbols, work, taus_on(taus, device), out,
            n, m, max(blocks.lengths), group, factors.softcap or 1.0, len(work), heads // len(symbols), furthest,
            PADDED=padded, DEPTH=min(padded, DEPTH), TILE=tile, COLUMNS=columns, TAUS=len(taus), EQUAL=blocks.equal_length,
            SINGLE=single, HIDES=factors.hides, SOFTCAP=factors.softcap is not None, VARIANTS=renormalised, CENTRED=centred,
            SYMBOLS=ids is not None, SKIPS=blocks.equal_length or not factors.hides, LARGE=large, WIDE=wide, SUMS=SUMS,
            num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    sums = out.sum(1, dtype=torch.float64)
    counts = sums[:, len(taus) * SUMS : len(taus) * SUMS + COUNTS]
    counts[:, 2] = out[:, :, len(taus) * SUMS + 2].amax(1).double()
    return sums[:, : len(taus) * SUMS].unflatten(1, (len(taus), SUMS)), counts


@lru_cache(maxsize=64)
def taus_on(taus: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(taus, device=device)


@lru_cache(maxsize=64)
def _work(m: int, tile: int, columns: int, device: torch.device) -> Tensor:
    """What each program of a head does: a band of rows, and the first and last tile of it."""
    last = -(-m // columns)
    firsts = [band * tile // columns for band in range(-(-m // tile))]
    run = max(1, -(-sum(last - first for first in firsts) // PROGRAMS))
    rows = [
        (band, first, min(first + run, last))
        for band, begin in enumerate(firsts)
        for first in range(begin, last, run)
    ]
    return torch.tensor(rows, dtype=torch.int32, device=device)
