"""Block logits of heads whose blocks stand in an order of their own: equal lengths, all positions visible."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rotoscope.maths.blocks import Blocks
from rotoscope.maths.factors import Factors
from rotoscope.shapes import Float, Int, Tensor

TILE = 128  # rows per tile


class OrderedLogits:
    """Rectangles of B[a, b] and B[b, a], a and b counted in each head's own order."""

    def __init__(self, factors: Factors, blocks: Blocks) -> None:
        self.factors, self.group = factors, factors.query.shape[2]
        self.places = blocks.on(factors.keys.device).starts  # [offsets, blocks]
        self.seen = factors.seen.movedim(3, 2).flatten(0, 2)  # [heads, n, d]
        self.keys = factors.keys.flatten(0, 1)

    def both(
        self, heads: Int[Tensor, "heads"], order: Int[Tensor, "heads blocks"], rows: slice, columns: slice
    ) -> tuple[Float[Tensor, "heads rows columns"], Float[Tensor, "heads rows columns"]]:
        """B[a, b] and B[b, a] of some heads, both in the layout [a, b]."""
        slots, contents = (
            [
                table[which[:, None, None], self.places[:, order[:, part]].transpose(0, 1)]
                for part in (rows, columns)
            ]
            for table, which in ((self.seen, heads), (self.keys, heads // self.group))
        )  # each [heads, offsets, blocks, d]
        upper, lower = slots[0] @ contents[1].mT, contents[0] @ slots[1].mT
        return self._log_mean(upper), self._log_mean(lower)

    def _log_mean(self, entries: Float[Tensor, "heads offsets rows columns"]) -> Tensor:
        entries = self.factors.capped(entries)
        if entries.shape[1] == 1:
            return entries[:, 0]
        return entries.logsumexp(1).sub_(math.log(entries.shape[1]))


def alike_heads(rows: Int[Tensor, "heads"], room: int) -> Iterator[Int[Tensor, "some"]]:
    """Heads that need about as many rows, so many together that their rows fit into `room`."""
    needed, heads = rows.sort()
    first = 0
    for last, size in enumerate([*needed.tolist()[1:], math.inf], start=1):
        if (last - first + 1) * min(size, TILE) > room or size > 2 * needed[first] + 8:
            yield heads[first:last]
            first = last


def needed_tiles(rows: int, first_column: int, m: int) -> Iterator[tuple[slice, slice]]:
    """Tiles of the pairs a < b of the first `rows` blocks with those from `first_column` on."""
    rows = min(rows, m - 1)
    for start in range(0, rows, TILE):
        yield slice(start, min(start + TILE, rows)), slice(max(start, first_column), m)
