"""The built-in measures: swap scores with their variants, how the attention is spread, and the exclusion principle."""

from __future__ import annotations

from typing import Any

import torch

from rotoscope.measures.measure import measure
from rotoscope.models.layer import LayerHeads
from rotoscope.scores.blocks import block_spread
from rotoscope.scores.exclusion_principle import Exclusion, exclusion_from_factors, exclusion_in_parts
from rotoscope.scores.swaps import score_swaps
from rotoscope.shapes import Tensor
from rotoscope.stats.aggregate import AT_TAU

SWAPS, HIGHEST = "swaps", "highest"
"""What is fetched besides the columns: how many swaps a head sees, and whether all logits after swaps are numbers."""


@measure
def swap_scores(heads: LayerHeads) -> dict[str, Tensor]:
    """Both scores with their variants at every tau, entropy, and attention on what is swapped."""
    assert heads.blocks is not None
    scores: Any = score_swaps(
        heads, heads.real_logits, heads.blocks, heads.taus, sink=heads.sinks, symbols=heads.symbols
    )
    columns: dict[str, Tensor] = {}
    for name in AT_TAU:
        plain_name = name.removeprefix("equal_symbol_")
        part = scores if plain_name == name else scores.equal_symbols
        tensor = getattr(part, plain_name.removesuffix("_score"), None)
        if tensor is not None:
            columns[name] = tensor
    return columns | {
        "entropy": scores.entropy,
        "relative_entropy": scores.entropy / heads.visible.sum().clamp(min=2).log(),
        "swapped_mass": scores.swapped_mass,
        SWAPS: scores.swaps,
        HIGHEST: scores.highest.expand(scores.swaps.shape),
    }


@measure
def logit_spread(heads: LayerHeads) -> dict[str, Tensor]:
    """How far the blocks' mean logits lie apart, by which random models are rescaled."""
    assert heads.blocks is not None
    return {"block_spread": block_spread(heads.real_logits, heads.blocks)}


@measure
def exclusion(heads: LayerHeads) -> dict[str, Tensor]:
    """Variance, D_pos and D_sym over the visible positions that take part in swaps."""
    terms = _exclusion(heads)
    return {"logit_variance": terms.variance, "d_pos": terms.d_pos, "d_sym": terms.d_sym}


def _exclusion(heads: LayerHeads) -> Exclusion:
    assert heads.taken is not None
    if heads.softcap is None:
        return exclusion_from_factors(heads, heads.taken)
    positions = heads.swapped[heads.visible[heads.swapped]] if heads.hides else heads.swapped
    if len(positions):
        return exclusion_in_parts(heads, positions)
    nothing = torch.zeros(heads.keys.shape[0], heads.heads, device=heads.keys.device)
    return Exclusion(nothing, nothing, nothing)


BUILT_IN = (swap_scores, logit_spread, exclusion)
