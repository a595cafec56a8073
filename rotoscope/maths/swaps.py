"""Positional and symbolic scores of a head: every swap, exactly, from one logit matrix.

Swap contents a and b. The head's weights on the two slots were v = (D_a, D_b) and become v'. It acted by
position if v' points along v, and by symbol if v' points along v mirrored:

    positional = cos(v', (D_a, D_b))        symbolic = cos(v', (D_b, D_a))

A cosine ignores scale, so the softmax normaliser cancels and only two logit differences are left,

    x = B[a, a] - B[b, b]        y = B[a, b] - B[b, a]        (B: block logits; for single tokens, A)

with v along (1, e^-x) and v' along (1, e^-y). Nothing overflows, nothing is divided by zero. The swaps are
averaged with weights alpha = softmax over swaps of |D_a - D_b| / tau.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rotoscope.errors import RotoscopeError
from rotoscope.maths.attention import attention_entropy, log_normaliser
from rotoscope.maths.blocks import BlockLogits, Blocks, Gather, from_logits
from rotoscope.settings.profile import check_tau, one_tau
from rotoscope.shapes import Float, Int, Tensor

TILE = 128  # rows per tile: elementwise temporaries, not the matrix product, are the cost


@dataclass(frozen=True)
class SwapDetail:
    """Every single swap: which two blocks, both cosines, and its weight at each tau."""

    first: Int[Tensor, "swaps"]
    second: Int[Tensor, "swaps"]
    positional: Float[Tensor, "... swaps"]
    symbolic: Float[Tensor, "... swaps"]
    weight: Float[Tensor, "..."]


@dataclass(frozen=True)
class EqualSymbolScores:
    """Scores over swaps of equal symbols only, which show what tells equal symbols apart: their position.

    Such swaps move little attention and carry no weight among all swaps, so a head that picks the last of
    several equal symbols looks purely symbolic without them.
    """

    positional: Float[Tensor, "..."]
    symbolic: Float[Tensor, "..."]
    swaps: Int[Tensor, "..."]


@dataclass(frozen=True)
class SwapScores:
    """Scores of one head (or of many: leading axes) on one input.

    With a sequence of tau, everything that depends on tau has a trailing tau axis. Where the query sees no
    swap (`missing`), scores are 0 by convention and mean nothing.
    """

    positional: Float[Tensor, "..."]
    symbolic: Float[Tensor, "..."]
    renormalised_positional: Float[Tensor, "..."] | None
    """As `positional`, with D renormalised over the swapped part before tau acts on it."""
    renormalised_symbolic: Float[Tensor, "..."] | None
    centred_positional: Float[Tensor, "..."] | None
    """As `positional`, with 1 / (visible positions) subtracted from v and v'; equal block lengths only."""
    centred_symbolic: Float[Tensor, "..."] | None
    effective_swaps: Float[Tensor, "..."]
    """1 / sum of alpha squared: how many swaps decide the score."""
    renormalised_effective_swaps: Float[Tensor, "..."] | None
    entropy: Float[Tensor, "..."]
    """Entropy of the query's attention in nats."""
    swapped_mass: Float[Tensor, "..."]
    """Attention on the positions that take part in swaps."""
    swaps: Int[Tensor, "..."]
    """How many swaps count: those with at least one visible slot."""
    equal_symbols: EqualSymbolScores | None = None
    """The swaps between equal symbols alone, where symbols were given."""
    detail: SwapDetail | None = None

    @property
    def missing(self) -> Tensor:
        """Where the query sees no swap at all, so that scores mean nothing."""
        return self.swaps == 0


def at_least_float32(logits: Tensor) -> Tensor:
    """Exponentials and swap weights want float32 or better, whatever a model computes in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def swap_scores(
    logits: Float[Tensor, "... n n"],
    tau: float | Sequence[float] = 1e-4,
    blocks: Sequence[Sequence[int]] | Blocks | None = None,
    *,
    sink: Float[Tensor, "..."] | None = None,
    symbols: Sequence[int] | None = None,
    detail: bool = False,
) -> SwapScores:
    """Scores of all swaps from a counterfactual logit matrix A[p, c].

    The query's own position comes last: its row and column are never swapped, its diagonal entry belongs
    to the softmax. Hidden positions are rows of -inf. `blocks` are spans [start, stop) of positions that
    are swapped whole; without them every token is a block. `sink` is a logit that only draws attention.
    `symbols` names the symbol of each block, to report swaps between equal ones separately.
    """
    logits = at_least_float32(logits)
    position = logits.shape[-1] - 1
    if not isinstance(blocks, Blocks):
        blocks = Blocks.tokens(position) if blocks is None else Blocks.of(blocks, position)
    real = logits.diagonal(dim1=-2, dim2=-1)
    return score_swaps(from_logits(logits), real, blocks, tau, sink=sink, symbols=symbols, detail=detail)


def score_swaps(
    gather: Gather,
    real: Float[Tensor, "... n"],
    blocks: Blocks,
    tau: float | Sequence[float] = 1e-4,
    *,
    sink: Float[Tensor, "..."] | None = None,
    symbols: Sequence[int] | None = None,
    variants: bool = True,
    detail: bool = False,
) -> SwapScores:
    """The same from the real logits of all visible-or-not positions up to the query, and a way to look up
    counterfactual ones: the n x n matrix is never needed as a whole.

    `variants=False` leaves the centred and renormalised scores out.
    """
    taus = check_tau(tau)
    block = BlockLogits(gather, blocks, real.device)
    lengths = block.lengths.to(real.dtype)
    log_z = log_normaliser(real, sink)[..., None]
    own = block.own(real)  # B[I, I]
    log_mass = (own + lengths.log()).logsumexp(-1, keepdim=True)
    visible = own.isfinite()
    all_visible = bool(visible.all())
    plain = WeightedMean((own - log_z).exp(), taus)
    renormalised = centring = equal = None
    if variants:
        renormalised = WeightedMean((own - log_mass).exp().masked_fill(~visible, 0.0), taus)
        if blocks.equal_length:
            positions = real.isfinite().sum(-1, keepdim=True).clamp(min=1)
            centring = _Centring(log_z, uniform=1 / positions.to(real.dtype), length=lengths[0])
    if symbols is not None:
        ids = _symbol_ids(symbols, len(blocks), real.device)
        equal = WeightedMean(plain.attention, taus, _largest_gap(plain.attention, ids))

    details = []
    swaps = torch.zeros(own.shape[:-1], dtype=torch.long, device=own.device)
    equal_swaps = torch.zeros_like(swaps)
    for rows, columns in tiles(len(blocks), TILE):
        upper, lower = block.both(rows, columns)  # B[a, b] and B[b, a]
        mine, other = own[..., rows, None], own[..., None, columns]
        counted = each_pair_once(rows, columns, upper.device)
        if not all_visible:  # a swap counts if the query sees one of its slots
            counted = counted & (mine.isfinite() | other.isfinite()) & (upper.isfinite() | lower.isfinite())
        swaps += counted.sum((-2, -1))
        cosines = _cosines(upper - lower, mine - other)
        centred = centring.cosines(upper, lower, mine, other) if centring is not None else ()
        alpha = plain.add(rows, columns, counted, (*cosines, *centred))
        if renormalised is not None:
            renormalised.add(rows, columns, counted, cosines)
        if equal is not None:
            alike = counted & (ids[rows, None] == ids[None, columns])
            equal_swaps += alike.sum((-2, -1))
            equal.add(rows, columns, alike, cosines)
        if detail:
            details.append((rows, columns, *cosines, *alpha))

    several = not one_tau(tau)

    def shaped(mean: Tensor) -> Tensor:
        return mean if several else mean[..., 0]

    means = [shaped(mean) for mean in plain.means()]
    scale_free = [shaped(mean) for mean in renormalised.means()] if renormalised is not None else [None, None]
    return SwapScores(
        positional=means[0],
        symbolic=means[1],
        centred_positional=means[2] if centring is not None else None,
        centred_symbolic=means[3] if centring is not None else None,
        renormalised_positional=scale_free[0],
        renormalised_symbolic=scale_free[1],
        effective_swaps=shaped(plain.effective()),
        renormalised_effective_swaps=shaped(renormalised.effective()) if renormalised is not None else None,
        entropy=attention_entropy((real - log_z).exp()),
        swapped_mass=(log_mass - log_z)[..., 0].exp(),
        swaps=swaps,
        equal_symbols=None
        if equal is None
        else _equal_scores([shaped(mean) for mean in equal.means()], equal_swaps),
        detail=_detail(details, plain, several) if detail else None,
    )


def _equal_scores(means: list[Tensor], swaps: Tensor) -> EqualSymbolScores:
    return EqualSymbolScores(means[0], means[1], swaps)


def _symbol_ids(symbols: Sequence[int], m: int, device: torch.device) -> Tensor:
    if len(symbols) != m:
        raise RotoscopeError(f"{len(symbols)} symbols were given for {m} blocks")
    return torch.tensor(list(symbols), device=device)


def _largest_gap(attention: Tensor, ids: Tensor) -> Tensor:
    """The largest |D_a - D_b| between equal symbols: per symbol, the largest minus the smallest D."""
    groups = [attention[..., ids == symbol] for symbol in ids.unique()]
    return torch.stack([group.amax(-1) - group.amin(-1) for group in groups]).amax(0)


def tiles(m: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Row bands of the upper triangle: each holds the pairs of its rows with everything to their right."""
    for start in range(0, m - 1, rows):
        yield slice(start, min(start + rows, m)), slice(start, m)


def each_pair_once(rows: slice, columns: slice, device: torch.device) -> Tensor:
    """Which entries of a tile are pairs a < b."""
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    return torch.ones(shape, dtype=torch.bool, device=device).triu(diagonal=1)


def _direction(difference: Tensor) -> tuple[Tensor, Tensor]:
    """The unit vector along (1, e^-x), for any x: infinite, or undefined (a swap that does not count)."""
    far = 40.0 if difference.dtype == torch.float32 else 300.0  # e^-2x stays finite, the rest is rounding
    ratio = torch.nan_to_num(-difference, nan=0.0).clamp_(-far, far).exp_()
    first = (ratio * ratio + 1).rsqrt_()
    return first, ratio * first


def _cosines(after: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """cos(v', v) and cos(v', mirrored v) from the two logit differences."""
    first, second = _direction(before)
    new_first, new_second = _direction(after)
    return new_first * first + new_second * second, new_first * second + new_second * first


@dataclass(frozen=True)
class _Centring:
    """What the centred variant needs beyond directions: the scale of the attention weights."""

    log_z: Tensor
    uniform: Tensor
    length: Tensor

    def cosines(self, upper: Tensor, lower: Tensor, mine: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines after subtracting 1 / (visible positions) from every entry; 0 if nothing is focused.

        The weights after the swap have their own normaliser Z' = Z - old pair + new pair, formed relative
        to the largest term, since a counterfactual logit may lie far above every real one.
        """
        log_z, uniform = self.log_z[..., None], self.uniform[..., None]
        old_first, old_second = (mine - log_z).exp(), (other - log_z).exp()
        rest = (1 - self.length * (old_first + old_second)).clamp_(min=0)
        shift = torch.maximum(upper, lower).sub_(log_z).clamp_(min=0)
        new_first, new_second = (upper - log_z - shift).exp_(), (lower - log_z - shift).exp_()
        z = rest * (-shift).exp() + self.length * (new_first + new_second)
        z = z.clamp_(min=torch.finfo(z.dtype).tiny)
        u1, u2 = _focus(old_first, uniform), _focus(old_second, uniform)
        w1, w2 = _focus(new_first / z, uniform), _focus(new_second / z, uniform)
        norm = ((u1 * u1 + u2 * u2) * (w1 * w1 + w2 * w2)).sqrt_()
        scale = torch.where(norm > 0, 1 / norm, 0.0)
        return (w1 * u1 + w2 * u2) * scale, (w1 * u2 + w2 * u1) * scale


def _focus(weight: Tensor, uniform: Tensor) -> Tensor:
    """Attention beyond the uniform share, with rounding noise around it taken for what it is: nothing."""
    noise = 64 * torch.finfo(weight.dtype).eps * torch.maximum(weight, uniform)
    beyond = weight - uniform
    return torch.where(beyond.abs() > noise, beyond, 0.0)


class WeightedMean:
    """Means over swaps with weights softmax(|D_a - D_b| / tau), gathered tile by tile for several tau.

    The largest |D_a - D_b| of all pairs is max D - min D, known before the first tile, so no running maximum
    is needed. (The block with the largest D is visible, hence that pair counts.)
    """

    def __init__(self, attention: Tensor, taus: tuple[float, ...], top: Tensor | None = None) -> None:
        self.attention = attention
        self.taus = taus
        largest = attention.amax(-1) - attention.amin(-1) if top is None else top
        self.top = largest[..., None, None]
        self.totals: list[Tensor] | None = None

    def add(self, rows: slice, columns: slice, counted: Tensor, values: tuple[Tensor, ...]) -> list[Tensor]:
        # Pairs that do not count may differ by more than the largest gap of those that do; they must not overflow.
        gap = (self.attention[..., rows, None] - self.attention[..., None, columns]).abs_()
        gap = (gap - self.top).clamp_(max=0)
        weights = [(gap / tau).exp_() * counted for tau in self.taus]
        sums = [torch.stack([w.sum((-2, -1)) for w in weights], dim=-1)]
        sums.append(torch.stack([(w * w).sum((-2, -1)) for w in weights], dim=-1))
        for value in values:
            sums.append(torch.stack([(w * value).sum((-2, -1)) for w in weights], dim=-1))
        if self.totals is None:
            self.totals = sums
        else:
            self.totals = [total + part for total, part in zip(self.totals, sums, strict=True)]
        return weights

    def means(self) -> list[Tensor]:
        assert self.totals is not None
        weight, _, *values = self.totals
        return [torch.where(weight > 0, value / weight, 0.0) for value in values]

    def effective(self) -> Tensor:
        assert self.totals is not None
        weight, square = self.totals[:2]
        return torch.where(square > 0, weight * weight / square, 0.0)


def _detail(tiles: list[tuple[Any, ...]], plain: WeightedMean, several: bool) -> SwapDetail:
    """Put the tiles' swaps back into one list, ordered by first and second block."""
    assert plain.totals is not None
    parts: list[list[Tensor]] = []
    for rows, columns, *tensors in tiles:
        offset = torch.triu_indices(rows.stop - rows.start, columns.stop - columns.start, offset=1)
        picked = [tensor[..., offset[0], offset[1]] for tensor in tensors]
        parts.append([offset[0] + rows.start, offset[1] + columns.start, *picked])
    first, second, positional, symbolic, *alpha = (
        torch.cat(pieces, dim=-1) for pieces in zip(*parts, strict=True)
    )
    total = plain.totals[0][..., None, :]
    weight = torch.where(total > 0, torch.stack(alpha, dim=-1) / total, 0.0)
    return SwapDetail(first, second, positional, symbolic, weight if several else weight[..., 0])
