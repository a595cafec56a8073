"""Scores of a head with a single frequency kept.

Replace the counterfactual logits by those of one rotation plane, A_f[p, c] = <key plane f, seen query plane f>, and
score the swaps of that. On a GPU with fused kernels `scores.kernels.planes` does it, and on a CPU `scores.plane_turns`, unless
blocks differ in length, positions are hidden or logits are large. What is left is scored here, chunk by chunk: small enough
for a CPU's cache, large enough to keep a GPU busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from rotoscope.scores.attention import attention_entropy
from rotoscope.scores.blocks import BlockLogits, Blocks, Gather
from rotoscope.scores.counterfactual import Factors
from rotoscope.scores.kernels import fused, on
from rotoscope.scores.plane_turns import SMALL, Planes
from rotoscope.scores.swap_pairs import (
    WeightedMean,
    each_pair_once,
    effective_swaps,
    furthest,
    mean_over_swaps,
    tiles,
)
from rotoscope.scores.swaps import score_swaps
from rotoscope.settings import check_tau
from rotoscope.shapes import Float, Tensor

CHUNK = {"cpu": 2**19, "cuda": 2**25}  # logits per chunk: as a cache holds them; as many as keep a GPU busy
ROWS = {"cpu": 64, "cuda": 512}  # rows per tile


@dataclass(frozen=True)
class FrequencyScores:
    """One entry per head and plane, fastest plane first."""

    positional: Float[Tensor, "*heads planes taus"]
    symbolic: Float[Tensor, "*heads planes taus"]
    effective_swaps: Float[Tensor, "*heads planes taus"]
    entropy: Float[Tensor, "*heads planes"]
    logit_norm: Float[Tensor, "*heads planes"]
    """L2 norm of the plane's logits over the visible keys."""
    max_logit: Float[Tensor, "*heads planes"]
    """Largest logit of the plane over the visible keys."""


def frequency_scores(factors: Factors, blocks: Blocks, tau: Sequence[float]) -> FrequencyScores:
    """Score every rotating plane of every head by itself. Soft-caps and sinks do not apply to a part."""
    taus = check_tau(tau)
    if fused(factors.keys.device):
        with on(factors.keys.device):
            return _fused(factors, blocks, taus)
    if factors.keys.device.type == "cpu" and blocks.equal_length and not factors.hides:
        return _ordered(factors, blocks, taus)
    return _plain(*factors.by_plane(), blocks, taus, factors.visible if factors.hides else None)


def _ordered(factors: Factors, blocks: Blocks, taus: tuple[float, ...]) -> FrequencyScores:
    """Planes with their blocks in the order of attention; those with large logits one exponent at a time."""
    scores = Planes(factors, blocks, taus).scores()
    means, left = (scores.positional, scores.symbolic, scores.effective), scores.left
    if bool(left.any()):
        query, keys = (x.transpose(1, 2)[left].unsqueeze(2) for x in factors.by_plane())
        slowly = _plain(query, keys, blocks, taus, None)
        for mean, part in zip(means, (slowly.positional, slowly.symbolic, slowly.effective_swaps), strict=True):
            mean[left] = part[:, 0]
    real = scores.real
    return FrequencyScores(*means, attention_entropy(real.softmax(-1)), real.norm(dim=-1), real.amax(-1))


def _plain(
    query: Float[Tensor, "heads n planes 2"],
    keys: Float[Tensor, "heads n planes 2"],
    blocks: Blocks,
    taus: tuple[float, ...],
    visible: Tensor | None,
) -> FrequencyScores:
    """Chunk by chunk, blocks as they stand."""
    heads, _, planes, _ = query.shape
    m, longest = len(blocks), max(blocks.lengths)
    together = max(1, _on(CHUNK, query) // (longest * min(m, _on(ROWS, query)) * m))
    at_once = max(1, together // planes)
    parts = []
    # Each chunk holds several planes of one head, or all planes of several heads, contiguous in memory.
    for head in range(0, heads, at_once):
        for first in range(0, planes, together):
            part = (slice(head, head + at_once), slice(None), slice(first, first + together))
            queries, contents = (x[part].transpose(1, 2).flatten(0, 1).contiguous() for x in (query, keys))
            parts.append(_chunk(queries, contents, blocks, taus, visible))
    joined = {
        field.name: torch.cat([getattr(part, field.name) for part in parts])
        for field in fields(FrequencyScores)
    }
    return FrequencyScores(
        **{name: tensor.reshape(heads, planes, *tensor.shape[1:]) for name, tensor in joined.items()}
    )


def remainder_scores(factors: Factors, blocks: Blocks, tau: Sequence[float]) -> FrequencyScores:
    """The same for the dimensions that never turn, as one plane."""
    taus, still = check_tau(tau), factors.remainder()
    real = still.real()
    scores = score_swaps(still, real, blocks, taus, variants=False)
    shown = real.masked_fill(~still.visible, 0.0) if still.hides else real
    parts = (
        *(scores.positional, scores.symbolic, scores.effective_swaps),
        *(scores.entropy, shown.norm(dim=-1), real.amax(-1)),
    )
    return FrequencyScores(*(part.flatten(0, 1).unsqueeze(1) for part in parts))


def _fused(factors: Factors, blocks: Blocks, taus: tuple[float, ...]) -> FrequencyScores:
    """All planes of all heads at once, on a GPU."""
    from rotoscope.scores.kernels.planes import plane_sums

    m = len(blocks)
    sums, about = plane_sums(factors, blocks, taus, furthest(taus, m * (m - 1) // 2))
    weight, square, positional, symbolic = sums.unbind(-1)
    positional, symbolic = (mean_over_swaps(part, weight) for part in (positional, symbolic))
    entropy, norm, largest, _ = about.unbind(-1)
    return FrequencyScores(positional, symbolic, effective_swaps(weight, square), entropy, norm, largest)


def _on(sizes: dict[str, int], tensor: Tensor) -> int:
    return sizes.get(tensor.device.type, sizes["cpu"])


def _chunk(
    query: Tensor, keys: Tensor, blocks: Blocks, taus: tuple[float, ...], visible: Tensor | None
) -> FrequencyScores:
    """Planes [planes, n, width] of one head or several; the fields have no head axis yet."""
    hidden = None if visible is None or bool(visible.all()) else ~visible
    real = (query * keys).sum(-1)
    shown = real if hidden is None else real.masked_fill(hidden, 0.0)
    real = real if hidden is None else real.masked_fill(hidden, -torch.inf)

    def gather(positions: Tensor, contents: Tensor) -> Tensor:
        logits = query[:, positions] @ keys[:, contents].mT  # [planes, offsets, a, b]
        return logits if hidden is None else logits.masked_fill(hidden[positions][:, :, None], -torch.inf)

    largest = float(query.norm(dim=-1).amax() * keys.norm(dim=-1).amax())
    if hidden is None and largest < SMALL:
        positional, symbolic, effective, entropy = _small_logits(gather, real, blocks, taus)
    else:
        scores = score_swaps(gather, real, blocks, taus, variants=False)
        positional, symbolic = scores.positional, scores.symbolic
        effective, entropy = scores.effective_swaps, scores.entropy
    return FrequencyScores(
        positional, symbolic, effective, entropy, logit_norm=shown.norm(dim=-1), max_logit=real.amax(-1)
    )


def _small_logits(
    gather: Gather, real: Tensor, blocks: Blocks, taus: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`score_swaps` without logarithms: cosines straight from exponentials, three times as fast."""
    block = BlockLogits(gather, blocks, real.device, linear=True)
    weights = real.softmax(-1)
    own = block.own(real)
    mean = WeightedMean(own / real.exp().sum(-1, keepdim=True), taus, real.dtype)
    square = own * own
    for rows, columns in tiles(len(blocks), _on(ROWS, real)):
        upper, lower = block.block_logits(rows, columns)
        row_logits, other = own[..., rows, None], own[..., None, columns]
        size = torch.addcmul(upper * upper, lower, lower).rsqrt_()
        size *= (square[..., rows, None] + square[..., None, columns]).rsqrt_()
        positional = torch.addcmul(upper * row_logits, lower, other).mul_(size)
        symbolic = torch.addcmul(upper * other, lower, row_logits).mul_(size)
        mean.add(rows, columns, each_pair_once(rows, columns, real.device), (positional, symbolic))
    positional_mean, symbolic_mean = mean.means()
    return positional_mean, symbolic_mean, mean.effective(), attention_entropy(weights)
