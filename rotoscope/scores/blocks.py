"""Blocks of tokens, and the logits between slots and contents.

A swap exchanges two contents and leaves everything else alone. For single tokens the numbers it needs
are A[a, a], A[b, b], A[a, b] and A[b, a]. For whole blocks they are the same four entries of the
**block logit matrix**

    B[I, J] = log mean over the tokens o of content J of exp A[slot I's o-th position, J_o]

so that exp B[I, I] is proportional to the attention a token of block I gets on average, and exp B[I, J]
to what it would be if content J stood in slot I. Single tokens are blocks of length one, and B is then A.

Only same-offset entries of A are touched: n * m numbers for m blocks, never n * n. When two blocks differ
in length, the swapped contents keep their order: the content that comes first now starts where the first
block started, and the one that comes last ends where the last block ended. Slots are therefore aligned at
their starts when the slot precedes the content (I < J) and at their ends when it follows it (I > J).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from rotoscope.errors import BlockError
from rotoscope.scores.attention import log_normaliser
from rotoscope.shapes import Bool, Float, Int, Tensor

if TYPE_CHECKING:
    from rotoscope.scores.plane_turns import Turns


@dataclass(frozen=True)
class Places:
    """Where the tokens of blocks stand. Offsets go up to the longest block."""

    starts: Int[Tensor, "offsets blocks"]
    """Position start + o of every block."""
    ends: Int[Tensor, "offsets blocks"]
    """Position stop - 1 - o of every block; blocks of equal length are aligned at their starts only."""
    lengths: Int[Tensor, "blocks"]
    inside: Bool[Tensor, "offsets blocks"]
    """Whether a block has so many tokens."""
    positions: Int[Tensor, "positions"]
    """All key positions that take part in swaps."""
    spans: Int[Tensor, "2 blocks"]
    """Where blocks start and stop."""

    def swapped(self, n: int) -> Int[Tensor, "n"]:
        """1 at positions that take part in swaps, of n; 0 elsewhere."""
        return torch.zeros(n, dtype=torch.int8, device=self.positions.device).index_fill_(0, self.positions, 1)


Gather = Callable[[Int[Tensor, "offsets slots"], Int[Tensor, "offsets contents"]], Tensor]
"""Looks up A[position, content] for every offset: [offsets, a] x [offsets, b] -> [..., offsets, a, b]."""


@dataclass(frozen=True)
class Blocks:
    """Spans [start, stop) of key positions, in order, without overlap, all before the query."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, spans: Sequence[Sequence[int]] | Tensor, query_position: int, *, equal: bool = False) -> Blocks:
        """Check spans given by a user against the query they are meant for."""
        if isinstance(spans, Tensor):
            spans = spans.tolist()
        ordered = tuple(sorted((int(start), int(stop)) for start, stop in spans))
        if len(ordered) < 2:
            raise BlockError(
                f"{len(ordered)} block before the query at position {query_position}: "
                "a swap needs at least two blocks; cut the prompt finer or give more facts"
            )
        for start, stop in ordered:
            if start < 0 or stop <= start:
                raise BlockError(f"block [{start}, {stop}) is empty or starts before the sequence")
            if start <= query_position < stop:
                raise BlockError(
                    f"block [{start}, {stop}) contains the query at position {query_position}: "
                    "the query itself is never swapped; end the block before it"
                )
            if stop > query_position:
                raise BlockError(
                    f"block [{start}, {stop}) lies after the query at position {query_position}, "
                    "which cannot attend to it"
                )
        for (_, stop), (start, _) in itertools.pairwise(ordered):
            if start < stop:
                raise BlockError(f"two blocks overlap at position {start}")
        blocks = cls(ordered)
        if equal and not blocks.equal_length:
            shortest, longest = min(blocks.lengths), max(blocks.lengths)
            raise BlockError(
                f"blocks of equal length were demanded, found lengths from {shortest} to {longest} tokens"
            )
        return blocks

    @classmethod
    def tokens(cls, query_position: int) -> Blocks:
        """Every key before the query as a block of its own."""
        return cls.of([(p, p + 1) for p in range(query_position)], query_position)

    def before(self, query_position: int) -> Blocks:
        """The blocks that a query at an earlier position can swap."""
        return Blocks.of([span for span in self.spans if span[1] <= query_position], query_position)

    def __len__(self) -> int:
        return len(self.spans)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in each block."""
        return tuple(stop - start for start, stop in self.spans)

    @property
    def equal_length(self) -> bool:
        """Whether all blocks have the same number of tokens, as centred scores need."""
        return len(set(self.lengths)) == 1

    def exchange(self, first: int, second: int, n: int) -> list[int]:
        """The order of n contents after blocks `first` < `second` changed places, order[p] standing at p."""
        (a, b), (c, d) = self.spans[first], self.spans[second]
        return [*range(a), *range(c, d), *range(b, c), *range(a, b), *range(d, n)]

    def slots(self, first: int, second: int) -> tuple[slice, slice]:
        """Where the two contents stand after the exchange: at the first block's start, at the second's end."""
        (a, b), (c, d) = self.spans[first], self.spans[second]
        return slice(a, a + d - c), slice(d - (b - a), d)

    @cached_property
    def positions(self) -> list[int]:
        """All key positions that take part in swaps."""
        return [p for start, stop in self.spans for p in range(start, stop)]

    def on(self, device: torch.device) -> Places:
        """Where the tokens of the blocks stand, as tensors on a device, made once."""
        if device not in self._places:
            self._places[device] = self._on(device)
        return self._places[device]

    @cached_property
    def _places(self) -> dict[torch.device, Places]:
        return {}

    @cached_property
    def turns(self) -> list[Turns]:
        """Interpolations between turns that were made for these blocks; see `scores.plane_turns`."""
        return []

    def _on(self, device: torch.device) -> Places:
        spans, lengths = torch.tensor(self.spans), torch.tensor(self.lengths)
        offsets = torch.arange(max(self.lengths))[:, None]
        starts = (spans[None, :, 0] + offsets).clamp(max=self.spans[-1][1] - 1)
        ends = starts if self.equal_length else (spans[None, :, 1] - 1 - offsets).clamp(min=0)
        tensors = (starts, ends, lengths, offsets < lengths, torch.tensor(self.positions), spans.T.contiguous())
        return Places(*(tensor.to(device) for tensor in tensors))


def from_logits(logits: Float[Tensor, "... n n"]) -> Gather:
    """Gather entries from a counterfactual logit matrix that is already there."""

    def gather(positions: Tensor, contents: Tensor) -> Tensor:
        return logits[..., positions[:, :, None], contents[:, None, :]]

    return gather


class BlockLogits:
    """Rectangles of the block logit matrix B, computed when asked for.

    With `linear`, exp B is given instead of B: for logits known to be small, where no exponential can overflow.
    """

    def __init__(self, gather: Gather, blocks: Blocks, device: torch.device, linear: bool = False) -> None:
        self.gather = gather
        self.linear = linear
        self.blocks = blocks
        places = blocks.on(device)
        self.starts, self.ends, self.lengths = places.starts, places.ends, places.lengths

    def before(self, slots: slice, contents: slice) -> Float[Tensor, "... slots contents"]:
        """B[I, J] where slot I does not come after content J: aligned at the start."""
        return self._rectangle(self.starts, slots, contents)

    def after(self, slots: slice, contents: slice) -> Float[Tensor, "... slots contents"]:
        """B[I, J] where slot I comes after content J: aligned at the end."""
        return self._rectangle(self.ends, slots, contents)

    def block_logits(
        self, rows: slice, columns: slice
    ) -> tuple[Float[Tensor, "... rows columns"], Float[Tensor, "... rows columns"]]:
        """B[a, b] and B[b, a] for rows a and columns b, where the columns begin with the rows."""
        upper = self.before(rows, columns)
        if not self.blocks.equal_length:
            return upper, self.after(columns, rows).mT
        shared = upper[..., : rows.stop - rows.start]  # rows against themselves: one matrix serves both
        if rows.stop == columns.stop:
            return upper, shared.mT
        rest = self.after(slice(rows.stop, columns.stop), rows)
        return upper, torch.cat((shared, rest), dim=-2).mT

    def own(self, real: Float[Tensor, "... n"]) -> Float[Tensor, "... blocks"]:
        """B[I, I]: each content where it really stands, from the real logits alone."""
        return self._log_mean(real[..., self.starts].unsqueeze(-2), slice(None)).squeeze(-2)

    def _rectangle(self, aligned: Tensor, slots: slice, contents: slice) -> Tensor:
        return self._log_mean(self.gather(aligned[:, slots], aligned[:, contents]), contents)

    def _log_mean(
        self, entries: Float[Tensor, "... offsets slots contents"], contents: slice
    ) -> Float[Tensor, "... slots contents"]:
        """log mean of exp over a content's own tokens; offsets past its length do not count."""
        if entries.shape[-3] == 1:
            return entries.squeeze(-3).exp() if self.linear else entries.squeeze(-3)
        lengths = self.lengths[contents]
        if not self.blocks.equal_length:
            offsets = torch.arange(entries.shape[-3], device=entries.device)
            beyond = offsets[:, None] >= lengths[None, :]
            entries = entries.masked_fill(beyond[:, None, :], -torch.inf)
        if self.linear:
            return entries.exp().sum(-3) / lengths.to(entries.dtype)
        return entries.logsumexp(-3) - lengths.to(entries.dtype).log()


def block_logits(logits: Float[Tensor, "... n n"], blocks: Blocks) -> Float[Tensor, "... m m"]:
    """The whole block logit matrix B from the counterfactual logit matrix A."""
    rectangles = BlockLogits(from_logits(logits), blocks, logits.device)
    everything = slice(None)
    return torch.triu(rectangles.before(everything, everything)) + torch.tril(
        rectangles.after(everything, everything), diagonal=-1
    )


def block_spread(real: Float[Tensor, "... n"], blocks: Blocks) -> Float[Tensor, "..."]:
    """Standard deviation over the visible blocks of their log-mean real logits B[I, I]."""
    places = blocks.on(real.device)
    own = real[..., places.starts].masked_fill(~places.inside, -torch.inf).logsumexp(-2) - places.lengths.log()
    finite = own.isfinite()
    count = finite.sum(-1).clamp(min=1)
    own = own.masked_fill(~finite, 0.0)
    mean = own.sum(-1, keepdim=True) / count[..., None]
    return (((own - mean).square() * finite).sum(-1) / count).sqrt()


@dataclass(frozen=True)
class AttentionRow:
    """The query's real attention, in float64 less the largest logit: tau = 1e-4 makes rounding visible."""

    logits: Float[Tensor, "... n"]
    largest: Float[Tensor, "... 1"]
    sink: Float[Tensor, "..."] | None
    log_z: Float[Tensor, "... 1"]
    own: Float[Tensor, "... blocks"]
    """B[I, I]"""
    log_mass: Float[Tensor, "... 1"]
    """Of all blocks together, before the softmax divides by Z."""

    @classmethod
    def of(cls, real: Float[Tensor, "... n"], block: BlockLogits, sink: Tensor | None) -> AttentionRow:
        largest = real.amax(-1, keepdim=True)
        largest = torch.where(largest.isfinite(), largest, 0.0)
        logits = real.double() - largest
        sink = None if sink is None else sink.double() - largest[..., 0]
        own = block.own(logits)
        log_mass = (own + block.lengths.double().log()).logsumexp(-1, keepdim=True)
        return cls(logits, largest, sink, log_normaliser(logits, sink)[..., None], own, log_mass)

    @property
    def block_attention(self) -> Float[Tensor, "... blocks"]:
        return (self.own - self.log_z).exp()

    @property
    def block_shares(self) -> Float[Tensor, "... blocks"]:
        """Attention renormalised over the swapped part."""
        return torch.where(self.own.isfinite(), (self.own - self.log_mass).exp(), 0.0)
