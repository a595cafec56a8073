"""Scores of all swaps by fused kernels: `scores.swaps.score_swaps` on a GPU. Nothing here waits for the device."""

from __future__ import annotations

import torch

from rotoscope.scores.blocks import Blocks
from rotoscope.scores.counterfactual import Factors
from rotoscope.scores.kernels.attention import halves_bytes, look_at_blocks
from rotoscope.scores.kernels.heads import swap_sums
from rotoscope.scores.swap_pairs import (
    Symbols,
    effective_swaps,
    furthest,
    largest_gap,
    mean_over_swaps,
    symbol_ids,
)
from rotoscope.scores.swaps import EqualSymbolScores, SwapScores
from rotoscope.shapes import Float, Tensor


def score_fused(
    factors: Factors,
    real: Float[Tensor, "batch heads n"],
    blocks: Blocks,
    taus: tuple[float, ...],
    symbols: Symbols | None,
    variants: bool,
) -> SwapScores:
    """Everything with a trailing tau axis; sinks are those of the factors."""
    shape, m = real.shape[:2], len(blocks)
    sink = None if factors.sinks is None else factors.sinks.flatten().float().contiguous()
    known = look_at_blocks(real.flatten(0, 1).float().contiguous(), blocks, sink)
    ids = None
    if symbols is not None:
        ids, count = symbol_ids(symbols, m, real.device)
        attention = (known.own.double() - known.per_head[:, 1:2]).exp().view(*shape, m)
        gap = largest_gap(attention, ids, count)
        known.per_head[:, 0] = (attention.amax(-1) - attention.amin(-1) - gap).flatten().float()
        ids = ids.reshape(-1, m).int()
    centred = variants and blocks.equal_length
    scored, done, cut = [], 0, furthest(taus, m * (m - 1) // 2)
    for part in factors.parts(halves_bytes(factors)):
        inputs = slice(done, done + len(part.keys))
        own_ids = (
            ids if ids is None or len(ids) == 1 else ids.unflatten(0, (shape[0], -1))[inputs].flatten(0, 1)
        )
        part_known = known.of(slice(inputs.start * shape[1], inputs.stop * shape[1]))
        scored.append(
            swap_sums(part, blocks, taus, part_known, own_ids, cut, renormalised=variants, centred=centred)
        )
        done = inputs.stop
    sums, counts = (torch.cat(parts) for parts in zip(*scored, strict=True))
    swaps, alike, highest, nothing = counts.unflatten(0, shape).unbind(-1)
    sums = sums.unflatten(0, shape)

    def means(weight: int, values: slice) -> list[Tensor]:
        return list(mean_over_swaps(sums[..., values], sums[..., weight, None]).to(real.dtype).unbind(-1))

    def effective(weight: int) -> Tensor:
        return effective_swaps(sums[..., weight], sums[..., weight + 1]).to(real.dtype)

    positional, symbolic, *others = means(0, slice(2, 6))
    alone = None
    if ids is not None:
        without = alike[..., None] == 0
        by_position, by_symbol = (part.masked_fill(without, torch.nan) for part in means(10, slice(12, 14)))
        alone = EqualSymbolScores(by_position, by_symbol, alike.long())
    renormalised = means(6, slice(8, 10)) if variants else [None, None]
    return SwapScores(
        positional=positional,
        symbolic=symbolic,
        centred_positional=others[0] if centred else None,
        centred_symbolic=others[1] if centred else None,
        renormalised_positional=renormalised[0],
        renormalised_symbolic=renormalised[1],
        effective_swaps=effective(0),
        renormalised_effective_swaps=effective(6) if variants else None,
        entropy=known.entropy.view(shape),
        swapped_mass=known.swapped_mass.view(shape),
        swaps=swaps.long(),
        highest=torch.where(nothing > 0, torch.nan, highest).to(real.dtype),
        equal_symbols=alone,
    )
