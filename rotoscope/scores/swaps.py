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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from rotoscope.errors import NumberError
from rotoscope.scores.attention import attention_entropy, check_logits, logit_matrix, no_logit
from rotoscope.scores.blocks import AttentionRow, BlockLogits, Blocks, Gather, from_logits
from rotoscope.scores.counterfactual import Factors
from rotoscope.scores.kernels import fused, on
from rotoscope.scores.swap_pairs import (
    Centring,
    OrderedLogits,
    Pick,
    Symbols,
    WeightedMean,
    alike_heads,
    each_pair_once,
    furthest,
    largest_gap,
    needed_tiles,
    symbol_ids,
    tiles,
)
from rotoscope.settings import check_tau, one_tau
from rotoscope.shapes import Float, Int, Tensor

TILE = 128  # rows per tile: elementwise temporaries, not the matrix product, are the cost
ROOM = 2**18  # logits of heads that are looked at together: what a cache holds


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
        from rotoscope.scores.fused_swaps import score_fused

        with on(real.device):
            scores = score_fused(gather, real, blocks, taus, symbols, variants)
    else:
        scores = _score_in_tiles(gather, real, blocks, taus, sink, symbols, variants, detail)
    return first_tau(scores) if one_tau(tau) else scores


def _score_in_tiles(
    gather: Gather | Factors,
    real: Float[Tensor, "... n"],
    blocks: Blocks,
    taus: tuple[float, ...],
    sink: Float[Tensor, "..."] | None,
    symbols: Symbols | None,
    variants: bool,
    detail: bool,
) -> SwapScores:
    waits = real.device.type == "cpu"
    if waits:
        check_logits(real)
    block = BlockLogits(gather.gather if isinstance(gather, Factors) else gather, blocks, real.device)
    row = AttentionRow.of(real, block, sink)
    swaps = _Swaps.of(row, block, taus, real.dtype, symbols, variants)
    details: list[tuple[Any, ...]] = []
    if isinstance(gather, Factors) and waits and blocks.equal_length and not gather.hides and not detail:
        swaps.sum_ordered(gather, blocks)
    else:
        swaps.sum_tiles(block, details if detail else None)
    if waits and bool(no_logit(swaps.highest).any()):
        _refuse(block)
    return swaps.scores(row, _detail(details, swaps.plain) if detail else None)


def first_tau(scores: SwapScores) -> SwapScores:
    """Without the tau axis, as whoever gave a single tau expects it."""
    on_axis = {
        field.name: value[..., 0]
        for field in fields(scores)
        if (value := getattr(scores, field.name)) is not None and field.name in DEPEND_ON_TAU
    }
    equal, detail = scores.equal_symbols, scores.detail
    if equal is not None:
        equal = replace(equal, positional=equal.positional[..., 0], symbolic=equal.symbolic[..., 0])
    if detail is not None:
        detail = replace(detail, weight=detail.weight[..., 0])
    return replace(scores, **on_axis, equal_symbols=equal, detail=detail)


def cosines(after: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """cos(v', v) and cos(v', mirrored v) from the two logit differences."""
    first, second = _direction(before)
    new_first, new_second = _direction(after)
    return new_first * first + new_second * second, new_first * second + new_second * first


def _direction(difference: Tensor) -> tuple[Tensor, Tensor]:
    """The unit vector along (1, e^-x), for any x: infinite, or undefined (a swap that does not count)."""
    far = 40.0 if difference.dtype == torch.float32 else 300.0  # e^-2x stays finite, the rest is rounding
    ratio = torch.nan_to_num(-difference, nan=0.0).clamp_(-far, far).exp_()
    first = (ratio * ratio + 1).rsqrt_()
    return first, ratio * first


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

    @classmethod
    def of(
        cls,
        row: AttentionRow,
        block: BlockLogits,
        taus: tuple[float, ...],
        dtype: torch.dtype,
        symbols: Symbols | None,
        variants: bool,
    ) -> _Swaps:
        """All means over swaps that are asked for, still empty."""
        attention, blocks = row.block_attention, block.blocks
        renormalised = centring = equal = ids = None
        if variants:
            renormalised = WeightedMean(row.block_shares, taus, dtype)
            if blocks.equal_length:
                centring = Centring(row.logits, row.own, row.log_z, blocks, row.largest, row.sink)
        if symbols is not None:
            ids, count = symbol_ids(symbols, len(blocks), row.own.device)
            equal = WeightedMean(attention, taus, dtype, largest_gap(attention, ids, count))
        plain = WeightedMean(attention, taus, dtype)
        return cls(row.own.to(dtype), plain, renormalised, equal, centring, ids)

    def scores(self, row: AttentionRow, detail: SwapDetail | None) -> SwapScores:
        """What the sums come to, once every swap is in them."""
        positional, symbolic, *centred = self.plain.means()
        renormalised = self.renormalised
        scale_free = renormalised.means() if renormalised is not None else [None, None]
        return SwapScores(
            positional=positional,
            symbolic=symbolic,
            centred_positional=centred[0] if centred else None,
            centred_symbolic=centred[1] if centred else None,
            renormalised_positional=scale_free[0],
            renormalised_symbolic=scale_free[1],
            effective_swaps=self.plain.effective(),
            renormalised_effective_swaps=None if renormalised is None else renormalised.effective(),
            entropy=attention_entropy((row.logits - row.log_z).exp()).to(self.own.dtype),
            swapped_mass=(row.log_mass - row.log_z)[..., 0].exp().to(self.own.dtype),
            swaps=self.count,
            highest=self.highest,
            equal_symbols=self._equal_scores(),
            detail=detail,
        )

    def _equal_scores(self) -> EqualSymbolScores | None:
        if self.equal is None:
            return None
        without = self.equal_count[..., None] == 0
        positional, symbolic = (mean.masked_fill(without, torch.nan) for mean in self.equal.means())
        return EqualSymbolScores(positional, symbolic, self.equal_count)

    def sum_tiles(self, block: BlockLogits, details: list[tuple[Any, ...]] | None) -> None:
        """All of them, tile by tile."""
        self._sum(tiles(self.own.shape[-1], TILE), block.block_logits, details)

    def _sum(
        self,
        needed: Iterable[tuple[slice, slice]],
        look_up: Callable[[slice, slice], tuple[Tensor, Tensor]],
        details: list[tuple[Any, ...]] | None = None,
    ) -> None:
        own, ids = self.own, self.ids
        all_visible = bool(own.isfinite().all())
        for rows, columns in needed:
            upper, lower = look_up(rows, columns)  # B[a, b] and B[b, a]
            self.highest = torch.maximum(
                self.highest, torch.maximum(upper.amax(), lower.amax())
            )  # NaN where any is
            row_logits, other = own[..., rows, None], own[..., None, columns]
            counted = each_pair_once(rows, columns, upper.device)
            if not all_visible:  # a swap counts if the query sees one of its slots
                counted = (
                    counted & (row_logits.isfinite() | other.isfinite()) & (upper.isfinite() | lower.isfinite())
                )
            self.count += counted.sum((-2, -1))
            products = cosines(upper - lower, row_logits - other)
            centred = self.centring.cosines(rows, columns, upper, lower) if self.centring is not None else ()
            alpha = self.plain.add(rows, columns, counted, (*products, *centred))
            if self.renormalised is not None:
                self.renormalised.add(rows, columns, counted, products)
            if self.equal is not None:
                assert ids is not None
                alike = counted & (ids[..., rows, None] == ids[..., None, columns])
                self.equal_count += alike.sum((-2, -1))
                self.equal.add(rows, columns, alike, products)
            if details is not None:
                details.append((rows, columns, *products, *alpha))

    def sum_ordered(self, factors: Factors, blocks: Blocks) -> None:
        """Heads that need about as many swaps together, each with its blocks in the order of their attention, largest
        first: the swaps that weigh are those of the first blocks with the last. Others are not looked at; whatever they
        meet has a real logit too, which was looked at. Equal symbols need all."""
        batch, heads, m = self.own.shape
        limit = torch.inf if self.equal is not None else furthest(self.plain.taus, m * (m - 1) // 2)
        below, order = self.plain.below_most.flatten(0, 1).sort(-1)
        rows = (below <= limit).sum(-1)
        columns = (self.plain.above_least.flatten(0, 1) <= limit).sum(-1)
        logits = OrderedLogits(factors, blocks)
        parts, chosen = [], []
        for picked in alike_heads(rows, ROOM // (m * max(blocks.lengths))):
            part = self._ordered(Pick(picked, order[picked]))
            needed = needed_tiles(int(rows[picked].max()), m - int(columns[picked].max()), m)
            part._sum(needed, partial(logits.block_logits, picked, order[picked]))
            parts.append(part)
            chosen.append(picked)
        back = torch.cat(chosen).argsort()

        def joined(tensors: list[Tensor]) -> Tensor:
            return torch.cat(tensors)[back].unflatten(0, (batch, heads))

        for name in ("plain", "renormalised", "equal"):
            mean, values = getattr(self, name), [getattr(part, name) for part in parts]
            if mean is not None:
                mean.totals = [
                    joined(list(sums)) for sums in zip(*(part_mean.totals for part_mean in values), strict=True)
                ]
        self.count += m * (m - 1) // 2
        self.equal_count = joined([part.equal_count for part in parts])
        self.highest = torch.stack([part.highest for part in parts]).amax()

    def _ordered(self, pick: Pick) -> _Swaps:
        """Some heads, their blocks in another order."""
        renormalised = None if self.renormalised is None else self.renormalised.ordered(pick)
        equal = None if self.equal is None else self.equal.ordered(pick)
        centring = None if self.centring is None else self.centring.ordered(pick)
        ids = None if self.ids is None else pick(self.ids.expand(self.own.shape))
        return _Swaps(pick(self.own), self.plain.ordered(pick), renormalised, equal, centring, ids)


def _refuse(block: BlockLogits) -> None:
    """Name the first logit after a swap that is none."""
    for rows, columns in tiles(len(block.blocks), TILE):
        for side, values in zip(("upper", "lower"), block.block_logits(rows, columns), strict=True):
            wrong = no_logit(values)
            if bool(wrong.any()):
                *index, row, column = wrong.nonzero()[0].tolist()
                pair = rows.start + row, columns.start + column
                slot, content = (block.blocks.spans[k] for k in (pair if side == "upper" else pair[::-1]))
                raise NumberError(
                    f"the logit of the content of positions {list(content)} in the slot of {list(slot)}"
                    f"{f' at index {index}' if index else ''} is {float(values[(*index, row, column)])}: a logit is a number"
                )


def _detail(tiles: list[tuple[Any, ...]], plain: WeightedMean) -> SwapDetail:
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
    return SwapDetail(first, second, positional, symbolic, weight)
