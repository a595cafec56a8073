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

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from rotoscope.errors import NumberError, RotoscopeError
from rotoscope.maths.attention import attention_entropy, log_normaliser
from rotoscope.maths.blocks import BlockLogits, Blocks, Gather, from_logits
from rotoscope.maths.centred import Centring
from rotoscope.maths.factors import Factors
from rotoscope.maths.kernels import fused
from rotoscope.maths.numbers import check_logits, logit_matrix, no_logit
from rotoscope.settings.profile import check_tau, one_tau
from rotoscope.shapes import Float, Int, Tensor

TILE = 128  # rows per tile: elementwise temporaries, not the matrix product, are the cost
LEAST = 1e-12
"""Weight, relative to the heaviest swap, below which a swap need not be computed."""


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
    several equal symbols looks purely symbolic without them. Where there is no such swap, or a window hides them
    all, there is no score: NaN.
    """

    positional: Float[Tensor, "..."]
    symbolic: Float[Tensor, "..."]
    swaps: Int[Tensor, "..."]
    """How many of them count."""


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
    highest: Float[Tensor, "..."]
    """The largest logit after a swap, of each head or of all; NaN where one is no number."""
    equal_symbols: EqualSymbolScores | None = None
    """The swaps between equal symbols alone, where symbols were given."""
    detail: SwapDetail | None = None

    @property
    def missing(self) -> Tensor:
        """Where the query sees no swap at all, so that scores mean nothing."""
        return self.swaps == 0


DEPEND_ON_TAU = (
    *("positional", "symbolic", "renormalised_positional", "renormalised_symbolic"),
    *("centred_positional", "centred_symbolic", "effective_swaps", "renormalised_effective_swaps"),
)

Symbols = Sequence[int] | Int[Tensor, "... blocks"]
"""An id for the symbol of each block, the same for all heads or, with leading axes, of each input its own."""


def swap_scores(
    logits: Float[Tensor, "... p c"] | Float[np.ndarray, "... p c"],
    tau: float | Sequence[float] = 1e-4,
    blocks: Sequence[Sequence[int]] | Blocks | None = None,
    *,
    sink: Float[Tensor, "..."] | None = None,
    symbols: Symbols | None = None,
    detail: bool = False,
) -> SwapScores:
    """Scores of all swaps from a counterfactual logit matrix A[p, c], a tensor or an array.

    The query's own position comes last: its row and column are never swapped, its diagonal entry belongs
    to the softmax. Hidden positions are rows of -inf. `blocks` are spans [start, stop) of positions that
    are swapped whole; without them every token is a block. `sink` is a logit that only draws attention.
    `symbols` names the symbol of each block, to report swaps between equal ones separately.
    """
    matrix = logit_matrix(logits)
    check_logits(matrix)
    position = matrix.shape[-1] - 1
    if not isinstance(blocks, Blocks):
        blocks = Blocks.tokens(position) if blocks is None else Blocks.of(blocks, position)
    real = matrix.diagonal(dim1=-2, dim2=-1)
    return score_swaps(from_logits(matrix), real, blocks, tau, sink=sink, symbols=symbols, detail=detail)


def score_swaps(
    gather: Gather | Factors,
    real: Float[Tensor, "... n"],
    blocks: Blocks,
    tau: float | Sequence[float] = 1e-4,
    *,
    sink: Float[Tensor, "..."] | None = None,
    symbols: Symbols | None = None,
    variants: bool = True,
    detail: bool = False,
) -> SwapScores:
    """The same from the real logits of all visible-or-not positions up to the query, and a way to look up
    counterfactual ones: the n x n matrix is never needed as a whole.

    `variants=False` leaves the centred and renormalised scores out. On a GPU nothing here waits for the device: logits
    that are no numbers show in `highest`, and scores of `Factors` come out of a fused kernel.
    """
    taus = check_tau(tau)
    if isinstance(gather, Factors) and fused(real.device) and not detail:
        from rotoscope.maths.fused_swaps import score_fused  # which needs Triton

        scores = score_fused(gather, real, blocks, taus, symbols, variants)
        return first_tau(scores) if one_tau(tau) else scores
    waits = real.device.type == "cpu"
    if waits:
        check_logits(real)
    block = BlockLogits(gather.gather if isinstance(gather, Factors) else gather, blocks, real.device)
    dtype, lengths = real.dtype, block.lengths.double()
    # Along the positions numbers are few and taken in float64, less the largest: tau = 1e-4 makes rounding visible.
    largest = real.amax(-1, keepdim=True)
    largest = torch.where(largest.isfinite(), largest, 0.0)
    precise = real.double() - largest
    sink = None if sink is None else sink.double() - largest[..., 0]
    log_z = log_normaliser(precise, sink)[..., None]
    own = block.own(precise)  # B[I, I], less the largest real logit
    log_mass = (own + lengths.log()).logsumexp(-1, keepdim=True)
    attention = (own - log_z).exp()
    plain = WeightedMean(attention, taus, dtype)
    renormalised = centring = equal = ids = None
    if variants:
        shares = torch.where(own.isfinite(), (own - log_mass).exp(), 0.0)
        renormalised = WeightedMean(shares, taus, dtype)
        if blocks.equal_length:
            centring = Centring(precise, own, log_z, blocks, largest, sink)
    if symbols is not None:
        ids, count = symbol_ids(symbols, len(blocks), real.device)
        equal = WeightedMean(attention, taus, dtype, largest_gap(attention, ids, count))
    swaps = _Swaps(own.to(dtype), plain, renormalised, equal, centring, ids)
    details: list[tuple[Any, ...]] = []
    swaps.sum_tiles(block, details if detail else None)
    if waits and bool(no_logit(swaps.highest).any()):
        _refuse(block)
    several = not one_tau(tau)

    def shaped(mean: Tensor) -> Tensor:
        return mean if several else mean[..., 0]

    means = [shaped(mean) for mean in plain.means()]
    alone = None
    if equal is not None:
        without = swaps.equal_count[..., None] == 0
        positional, symbolic = (shaped(mean.masked_fill(without, torch.nan)) for mean in equal.means())
        alone = EqualSymbolScores(positional, symbolic, swaps.equal_count)
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
        entropy=attention_entropy((precise - log_z).exp()).to(dtype),
        swapped_mass=(log_mass - log_z)[..., 0].exp().to(dtype),
        swaps=swaps.count,
        highest=swaps.highest,
        equal_symbols=alone,
        detail=_detail(details, plain, several) if detail else None,
    )


def first_tau(scores: SwapScores) -> SwapScores:
    """Without the tau axis, as whoever gave a single tau expects it."""
    on_axis = {
        field.name: value[..., 0]
        for field in fields(scores)
        if (value := getattr(scores, field.name)) is not None and field.name in DEPEND_ON_TAU
    }
    equal = scores.equal_symbols
    if equal is not None:
        equal = replace(equal, positional=equal.positional[..., 0], symbolic=equal.symbolic[..., 0])
    return replace(scores, **on_axis, equal_symbols=equal)


def furthest(taus: tuple[float, ...], swaps: int) -> float:
    """How much |D_a - D_b| may lack of the largest before a swap need not be computed.

    Such a swap weighs less than `LEAST` of the heaviest, and less than a millionth of all that is computed when millions of
    them are left out together: with w the weights left out, W >= 1 those of the rest (the heaviest is 1) and cosines
    between 0 and 1 (centred: between -1 and 1), a mean changes by at most 2 w / (W + w) <= 2e-6.
    """
    return max(taus) * max(-math.log(LEAST), math.log(1e6 * swaps))


class _Swaps:
    """All swaps of a head (or of many): what is known of the blocks beforehand, and the sums over pairs of them."""

    def __init__(
        self,
        own: Float[Tensor, "... blocks"],
        plain: WeightedMean,
        renormalised: WeightedMean | None,
        equal: WeightedMean | None,
        centring: Centring | None,
        ids: Int[Tensor, "... blocks"] | None,
    ) -> None:
        self.own, self.plain, self.renormalised, self.equal = own, plain, renormalised, equal
        self.centring, self.ids = centring, ids
        self.count = torch.zeros(own.shape[:-1], dtype=torch.long, device=own.device)
        """How many swaps count: those with at least one visible slot."""
        self.equal_count = torch.zeros_like(self.count)
        self.highest = torch.full((), -torch.inf, dtype=own.dtype, device=own.device)
        """The largest logit after a swap; NaN where one is NaN."""

    def sum_tiles(self, block: BlockLogits, details: list[tuple[Any, ...]] | None) -> None:
        """Tile by tile, in torch."""
        own, ids = self.own, self.ids
        all_visible = bool(own.isfinite().all())
        for rows, columns in tiles(own.shape[-1], TILE):
            upper, lower = block.both(rows, columns)  # B[a, b] and B[b, a]
            self.highest = torch.maximum(
                self.highest, torch.maximum(upper.amax(), lower.amax())
            )  # NaN where any is
            mine, other = own[..., rows, None], own[..., None, columns]
            counted = each_pair_once(rows, columns, upper.device)
            if not all_visible:  # a swap counts if the query sees one of its slots
                counted = counted & (mine.isfinite() | other.isfinite()) & (upper.isfinite() | lower.isfinite())
            self.count += counted.sum((-2, -1))
            both = cosines(upper - lower, mine - other)
            centred = self.centring.cosines(rows, columns, upper, lower) if self.centring is not None else ()
            alpha = self.plain.add(rows, columns, counted, (*both, *centred))
            if self.renormalised is not None:
                self.renormalised.add(rows, columns, counted, both)
            if self.equal is not None:
                assert ids is not None
                alike = counted & (ids[..., rows, None] == ids[..., None, columns])
                self.equal_count += alike.sum((-2, -1))
                self.equal.add(rows, columns, alike, both)
            if details is not None:
                details.append((rows, columns, *both, *alpha))


def _refuse(block: BlockLogits) -> None:
    """Name the first logit after a swap that is none."""
    for rows, columns in tiles(len(block.blocks), TILE):
        for side, found in zip(("upper", "lower"), block.both(rows, columns), strict=True):
            wrong = no_logit(found)
            if bool(wrong.any()):
                *index, row, column = wrong.nonzero()[0].tolist()
                pair = rows.start + row, columns.start + column
                slot, content = (block.blocks.spans[k] for k in (pair if side == "upper" else pair[::-1]))
                raise NumberError(
                    f"the logit of the content of positions {list(content)} in the slot of {list(slot)}"
                    f"{f' at index {index}' if index else ''} is {float(found[(*index, row, column)])}: a logit is a number"
                )


def symbol_ids(symbols: Symbols, m: int, device: torch.device) -> tuple[Int[Tensor, "... blocks"], int]:
    """Ids counted from 0, so that they can number groups, and how many there are."""
    found = torch.as_tensor(symbols)
    if found.shape[-1] != m:
        raise RotoscopeError(f"{found.shape[-1]} symbols were given for {m} blocks")
    groups, ids = found.unique(return_inverse=True)
    return ids.to(device), len(groups)


def largest_gap(attention: Tensor, ids: Tensor, count: int) -> Tensor:
    """The largest |D_a - D_b| between equal symbols: per symbol, the largest minus the smallest D."""
    groups = torch.zeros(*attention.shape[:-1], count, dtype=attention.dtype, device=ids.device)
    ids = ids.expand(attention.shape)
    ends = [groups.scatter_reduce(-1, ids, attention, end, include_self=False) for end in ("amax", "amin")]
    return (ends[0] - ends[1]).amax(-1)


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


def cosines(after: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """cos(v', v) and cos(v', mirrored v) from the two logit differences."""
    first, second = _direction(before)
    new_first, new_second = _direction(after)
    return new_first * first + new_second * second, new_first * second + new_second * first


class WeightedMean:
    """Means over swaps with weights softmax(|D_a - D_b| / tau), gathered tile by tile for several tau.

    The largest |D_a - D_b| of all pairs is max D - min D, known before the first tile, so no running maximum
    is needed. (The block with the largest D is visible, hence that pair counts.) What a pair lacks of it,

        min over both orders of  (max D - D_a) + (D_b - min D),

    is a sum of two numbers that are exact however small they are: weights do not hang on rounding.
    """

    def __init__(
        self,
        attention: Float[Tensor, "... blocks"],
        taus: tuple[float, ...],
        dtype: torch.dtype,
        top: Float[Tensor, "..."] | None = None,
    ) -> None:
        smallest = torch.finfo(dtype).tiny
        if min(taus) < smallest:
            kind = str(dtype).removeprefix("torch.")
            raise RotoscopeError(
                f"tau = {min(taus):g} is too small to divide {kind} numbers by: the smallest is {smallest:.1e}"
            )
        self.taus = taus
        most, least = attention.amax(-1, keepdim=True), attention.amin(-1, keepdim=True)
        self.below_most, self.above_least = (most - attention).to(dtype), (attention - least).to(dtype)
        self.spare = None if top is None else (most - least)[..., 0].sub(top).to(dtype)[..., None, None]
        """Where not all pairs take part: how far the largest gap of those that do stays behind."""
        self.totals: list[Tensor] | None = None

    def add(self, rows: slice, columns: slice, counted: Tensor, values: tuple[Tensor, ...]) -> list[Tensor]:
        below, above = self.below_most, self.above_least
        lack = torch.minimum(
            below[..., rows, None] + above[..., None, columns],
            above[..., rows, None] + below[..., None, columns],
        )
        if self.spare is not None:  # pairs that do not count may lack less than nothing; they must not overflow
            lack = (lack - self.spare).clamp_(min=0)
        weights = [(lack / -tau).exp_() * counted for tau in self.taus]
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
