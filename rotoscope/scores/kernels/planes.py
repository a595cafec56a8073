"""All swaps of single planes; the plain twin is `scores.frequency_scores`.

A plane's logit is a product of two numbers and its scores need a few numbers per pair of blocks, so the cost is one
exponential per pair and offset, twice. The first kernel looks at a plane's real logits, in float64: attention on every
block, entropy, norm. In the second, one warp walks tiles of pairs of blocks above the diagonal, adds up exp B[a, b] and
exp B[b, a] in registers, forms both cosines with one reciprocal square root, weighs them and keeps four sums per tau.
Planes whose logits may grow too large for products of four exponentials are left to another form of the same kernel, with
running maxima.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from rotoscope.scores.blocks import Blocks
from rotoscope.scores.counterfactual import Factors
from rotoscope.scores.kernels.heads import taus_on
from rotoscope.shapes import Float, Tensor

TILE = 32
AT_ONCE = 256  # positions or blocks per step of the first kernel
BUSY = 32768  # programs that keep a card busy
REGISTERS = 128  # a thread's, at most: so that more warps fit
SMALL = tl.constexpr(28.0)
"""Products of four exponentials of such logits, to the base of 2, are still float32."""
LOG2E = tl.constexpr(1.4426950408889634)
INF = tl.constexpr(float("inf"))


@triton.jit
def _real(at, keys, cos, sin, q_real, q_imaginary, n, inside):
    """A plane's real logits at some positions, in float64, to the base of 2."""
    c = tl.load(cos + at, mask=inside, other=0.0).to(tl.float64)
    s = tl.load(sin + at, mask=inside, other=0.0).to(tl.float64)
    k_real = tl.load(keys + at, mask=inside, other=0.0).to(tl.float64)
    k_imaginary = tl.load(keys + n + at, mask=inside, other=0.0).to(tl.float64)
    return (q_real * c - q_imaginary * s) * k_real + (q_imaginary * c + q_real * s) * k_imaginary


@triton.jit
def _look(
    query, keys, cos, sin, visible, starts, lengths, own, weights, about,
    n, m, offsets, planes, group, HIDES: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Of one plane: B[I, I] less the largest real logit, what each block's attention lacks of the largest and exceeds the smallest by, and more."""
    row = tl.program_id(0).to(tl.int64)
    head, plane = row // planes, row % planes
    q_real = tl.load(query + head * 2 * planes + 2 * plane).to(tl.float64)
    q_imaginary = tl.load(query + head * 2 * planes + 2 * plane + 1).to(tl.float64)
    keys += ((head // group) * planes + plane) * 2 * n
    cos += plane * n
    sin += plane * n
    top = tl.full((), -INF, dtype=tl.float64)
    square = tl.zeros((), dtype=tl.float64)
    longest = tl.zeros((), dtype=tl.float32)
    for first in range(0, n, STEP):
        at = first + tl.arange(0, STEP)
        inside = at < n
        k_real = tl.load(keys + at, mask=inside, other=0.0)
        k_imaginary = tl.load(keys + n + at, mask=inside, other=0.0)
        longest = tl.maximum(longest, tl.max(k_real * k_real + k_imaginary * k_imaginary))
        if HIDES:
            inside = inside & (tl.load(visible + at, mask=inside, other=0) > 0)
        real = _real(at, keys, cos, sin, q_real, q_imaginary, n, inside)
        top = tl.maximum(top, tl.max(tl.where(inside, real, -INF)))
        square += tl.sum(tl.where(inside, real * real, 0.0))
    z = tl.zeros((), dtype=tl.float64)
    tilted = tl.zeros((), dtype=tl.float64)
    stretched = tl.zeros((), dtype=tl.float32)
    for first in range(0, n, STEP):
        at = first + tl.arange(0, STEP)
        inside = at < n
        c = tl.load(cos + at, mask=inside, other=0.0)
        s = tl.load(sin + at, mask=inside, other=0.0)
        stretched = tl.maximum(stretched, tl.max(c * c + s * s))
        if HIDES:
            inside = inside & (tl.load(visible + at, mask=inside, other=0) > 0)
        real = (_real(at, keys, cos, sin, q_real, q_imaginary, n, inside) - top) / LOG2E
        weight = tl.where(inside, tl.exp(real), 0.0)
        z += tl.sum(weight)
        tilted += tl.sum(weight * real)
    most = tl.full((), -INF, dtype=tl.float64)
    least = tl.full((), INF, dtype=tl.float64)
    for turn in tl.static_range(2):
        for first in range(0, m, STEP):
            block = first + tl.arange(0, STEP)
            in_block = block < m
            length = tl.load(lengths + block, mask=in_block, other=1)
            height = tl.full((STEP,), -INF, dtype=tl.float64)
            mean = tl.zeros((STEP,), dtype=tl.float64)
            for offset in range(offsets):
                inside = in_block & (offset < length)
                at = tl.load(starts + offset * m + block, mask=inside, other=0)
                if HIDES:
                    inside = inside & (tl.load(visible + at, mask=inside, other=0) > 0)
                real = (_real(at, keys, cos, sin, q_real, q_imaginary, n, inside) - top) / LOG2E
                real = tl.where(inside, real, -INF)
                higher = tl.maximum(height, real)  # a log mean must not be lost far below the largest logit
                safe = tl.where(higher == -INF, 0.0, higher)
                mean = mean * tl.exp(height - safe) + tl.exp(real - safe)
                height = higher
            mean = tl.log(mean / length) + tl.where(height == -INF, 0.0, height)
            attention = tl.exp(mean) / z
            if turn == 0:
                most = tl.maximum(most, tl.max(tl.where(in_block, attention, -INF)))
                least = tl.minimum(least, tl.min(tl.where(in_block, attention, INF)))
            else:
                tl.store(own + row * m + block, (mean * LOG2E).to(tl.float32), mask=in_block)
                tl.store(weights + (row * 2) * m + block, (most - attention).to(tl.float32), mask=in_block)
                tl.store(weights + (row * 2 + 1) * m + block, (attention - least).to(tl.float32), mask=in_block)
    about += row * 4
    tl.store(about, (tl.log(z) - tilted / z).to(tl.float32))  # entropy
    tl.store(about + 1, (tl.sqrt(square) / LOG2E).to(tl.float32))  # norm of the logits
    tl.store(about + 2, (top / LOG2E).to(tl.float32))  # the largest
    size = (q_real * q_real + q_imaginary * q_imaginary).to(tl.float32)
    tl.store(about + 3, tl.sqrt(size * stretched * longest))  # none is larger, wherever it stands


@triton.jit
def _turned_query(at, cos, sin, q_real, q_imaginary, inside):
    """The plane's query as seen from some positions."""
    c = tl.load(cos + at, mask=inside, other=0.0)
    s = tl.load(sin + at, mask=inside, other=0.0)
    return q_real * c - q_imaginary * s, q_imaginary * c + q_real * s


@triton.jit
def _swap_sums(
    query, keys, cos, sin, visible, starts, ends, lengths, own, weights, about, taus, out,
    n, m, offsets, planes, group, furthest,
    TILE: tl.constexpr, TAUS: tl.constexpr, EQUAL: tl.constexpr, HIDES: tl.constexpr, LARGE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    share, shares = tl.program_id(1), tl.num_programs(1)
    if (tl.load(about + row * 4 + 3) < SMALL) == LARGE:  # the other form has this plane
        return
    head, plane = row // planes, row % planes
    q_real = tl.load(query + head * 2 * planes + 2 * plane)
    q_imaginary = tl.load(query + head * 2 * planes + 2 * plane + 1)
    keys += ((head // group) * planes + plane) * 2 * n
    cos += plane * n
    sin += plane * n
    own += row * m
    weights += row * 2 * m
    top_real = tl.load(about + row * 4 + 2) * LOG2E
    column = tl.arange(0, WIDE)
    sums = tl.zeros((WIDE,), dtype=tl.float32)
    for band in range(share, tl.cdiv(m, TILE), shares):
        a = band * TILE + tl.arange(0, TILE)
        a_in = a < m
        own_a = tl.load(own + a, mask=a_in, other=-INF)
        below_a = tl.load(weights + a, mask=a_in, other=INF)
        above_a = tl.load(weights + m + a, mask=a_in, other=INF)
        length_a = tl.load(lengths + a, mask=a_in, other=1)
        for tile in range(band, tl.cdiv(m, TILE)):
            b = tile * TILE + tl.arange(0, TILE)
            b_in = b < m
            own_b = tl.load(own + b, mask=b_in, other=-INF)
            below_b = tl.load(weights + b, mask=b_in, other=INF)
            above_b = tl.load(weights + m + b, mask=b_in, other=INF)
            length_b = tl.load(lengths + b, mask=b_in, other=1)
            counted = (a[:, None] < b[None, :]) & b_in[None, :]
            lack = tl.minimum(below_a[:, None] + above_b[None, :], above_a[:, None] + below_b[None, :])
            if tl.min(tl.where(counted, lack, INF)) <= furthest:
                upper = tl.zeros((TILE, TILE), dtype=tl.float32)
                lower = tl.zeros((TILE, TILE), dtype=tl.float32)
                if LARGE:
                    upper_top = tl.full((TILE, TILE), -INF, dtype=tl.float32)
                    lower_top = tl.full((TILE, TILE), -INF, dtype=tl.float32)
                for offset in range(offsets):
                    at_a = tl.load(starts + offset * m + a, mask=a_in, other=0)
                    at_b = tl.load(starts + offset * m + b, mask=b_in, other=0)
                    s_real, s_imaginary = _turned_query(at_a, cos, sin, q_real, q_imaginary, a_in)
                    k_real = tl.load(keys + at_b, mask=b_in, other=0.0)
                    k_imaginary = tl.load(keys + n + at_b, mask=b_in, other=0.0)
                    first = s_real[:, None] * k_real[None, :] + s_imaginary[:, None] * k_imaginary[None, :]
                    if HIDES:
                        shown = tl.load(visible + at_a, mask=a_in, other=0) > 0
                        first = tl.where(shown[:, None], first, -INF)
                    if not EQUAL:
                        first = tl.where(offset < length_b[None, :], first, -INF)
                        at_a = tl.load(ends + offset * m + a, mask=a_in, other=0)
                        at_b = tl.load(ends + offset * m + b, mask=b_in, other=0)
                    s_real, s_imaginary = _turned_query(at_b, cos, sin, q_real, q_imaginary, b_in)
                    k_real = tl.load(keys + at_a, mask=a_in, other=0.0)
                    k_imaginary = tl.load(keys + n + at_a, mask=a_in, other=0.0)
                    second = k_real[:, None] * s_real[None, :] + k_imaginary[:, None] * s_imaginary[None, :]
                    if HIDES:
                        shown = tl.load(visible + at_b, mask=b_in, other=0) > 0
                        second = tl.where(shown[None, :], second, -INF)
                    if not EQUAL:
                        second = tl.where(offset < length_a[:, None], second, -INF)
                    if LARGE:
                        top = tl.maximum(upper_top, first)
                        safe = tl.where(top == -INF, 0.0, top)
                        upper = upper * tl.exp2(upper_top - safe) + tl.exp2(first - safe)
                        upper_top = top
                        top = tl.maximum(lower_top, second)
                        safe = tl.where(top == -INF, 0.0, top)
                        lower = lower * tl.exp2(lower_top - safe) + tl.exp2(second - safe)
                        lower_top = top
                    else:
                        upper += tl.exp2(first)
                        lower += tl.exp2(second)
                if not EQUAL:
                    upper = upper / length_b[None, :]
                    lower = lower / length_a[:, None]
                if HIDES:
                    counted = (
                        counted
                        & ((own_a > -INF)[:, None] | (own_b > -INF)[None, :])
                        & ((upper > 0) | (lower > 0))
                    )
                if LARGE:
                    # Differences of logarithms, the smaller of each pair relative to the larger.
                    before = tl.where(counted, own_a[:, None] - own_b[None, :], 0.0)
                    after = upper_top - lower_top + tl.log2(upper) - tl.log2(lower)
                    after = tl.where(counted, after, 0.0)
                    r = tl.exp2(tl.minimum(tl.maximum(-before, -60.0), 60.0))
                    v1 = tl.rsqrt(r * r + 1.0)
                    v2 = r * v1
                    r = tl.exp2(tl.minimum(tl.maximum(-after, -60.0), 60.0))
                    w1 = tl.rsqrt(r * r + 1.0)
                    w2 = r * w1
                    positional = w1 * v1 + w2 * v2
                    symbolic = w1 * v2 + w2 * v1
                else:
                    own_real = tl.exp2(own_a + top_real)
                    other = tl.exp2(own_b + top_real)
                    size = (upper * upper + lower * lower) * (
                        (own_real * own_real)[:, None] + (other * other)[None, :]
                    )
                    size = tl.rsqrt(tl.where(counted, size, 1.0))
                    positional = (upper * own_real[:, None] + lower * other[None, :]) * size
                    symbolic = (upper * other[None, :] + lower * own_real[:, None]) * size
                for t in tl.static_range(TAUS):
                    per = LOG2E / tl.load(taus + t)
                    w = tl.where(counted, tl.exp2(lack * -per), 0.0)
                    sums += tl.where(column == 4 * t, tl.sum(w), 0.0)
                    sums += tl.where(column == 4 * t + 1, tl.sum(w * w), 0.0)
                    sums += tl.where(column == 4 * t + 2, tl.sum(w * positional), 0.0)
                    sums += tl.where(column == 4 * t + 3, tl.sum(w * symbolic), 0.0)
    tl.store(out + (row * shares + share) * WIDE + column, sums)


def plane_sums(
    factors: Factors, blocks: Blocks, taus: tuple[float, ...], furthest: float
) -> tuple[Float[Tensor, "heads planes taus 4"], Float[Tensor, "heads planes 4"]]:
    """Sums over all swaps of every plane: weights, their squares, times the positional and the symbolic cosine; and of
    every plane its entropy, the norm of its logits, the largest, and a bound on all it can have."""
    device, m, planes = factors.keys.device, len(blocks), factors.planes
    batch, key_heads, n, _ = factors.keys.shape
    group, width = factors.query.shape[2], 2 * planes
    heads = batch * key_heads * group
    rows = heads * planes
    places = blocks.on(device)
    query = (factors.query[..., :width] * LOG2E.value).float().contiguous()
    # Planes apart from one another, positions side by side.
    keys = factors.keys[..., :width].float().transpose(2, 3).contiguous()
    cos, sin = factors.cos.T.float().contiguous(), factors.sin.T.float().contiguous()
    shown = factors.visible.to(torch.int8)
    own = torch.empty(rows, m, device=device)
    weights = torch.empty(rows, 2, m, device=device)
    about = torch.empty(rows, 4, device=device)
    offsets, hides = max(blocks.lengths), factors.hides
    step = min(AT_ONCE, triton.next_power_of_2(max(n, 16)))
    _look[(rows,)](
        query, keys, cos, sin, shown, places.starts, places.lengths, own, weights, about, n, m, offsets, planes, group,
        HIDES=hides, STEP=step, num_warps=4,
    )  # fmt: skip
    wide = triton.next_power_of_2(4 * len(taus))
    tile = min(TILE, max(8, triton.next_power_of_2(m)))
    shares = min(-(-m // tile), max(1, -(-BUSY // rows)))
    out = torch.empty(rows, shares, wide, device=device)
    for large in (False, True):
        _swap_sums[(rows, shares)](
            query, keys, cos, sin, shown, places.starts, places.ends, places.lengths, own, weights, about,
            taus_on(taus, device), out, n, m, offsets, planes, group, furthest,
            TILE=tile, TAUS=len(taus), EQUAL=blocks.equal_length, HIDES=hides, LARGE=large, WIDE=wide, num_warps=1,
            maxnreg=REGISTERS,
        )  # fmt: skip
    sums = out.sum(1)[:, : 4 * len(taus)].unflatten(1, (len(taus), 4))
    return sums.unflatten(0, (heads, planes)), about.unflatten(0, (heads, planes))
