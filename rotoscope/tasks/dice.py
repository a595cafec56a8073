"""Random numbers that depend on a seed and a row number only.

Row 7 of a dataset is the same sequence whether rows are made one by one or a million at once, on a CPU or on a GPU:
every number is a hash of (seed, row, stream, column), and no generator is passed along.
"""

from __future__ import annotations

import torch

from rotoscope.shapes import Int, Tensor

# The increment and the two factors of splitmix64, as signed 64-bit integers; products wrap around.
STEP, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A logical shift to the right; torch's own keeps the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = bits + STEP
    bits = (bits ^ _shifted(bits, 30)) * FIRST
    bits = (bits ^ _shifted(bits, 27)) * SECOND
    return bits ^ _shifted(bits, 31)


class Dice:
    """Independent random numbers for each of the given rows; every call opens a stream of its own."""

    def __init__(self, seed: int, rows: Int[Tensor, "rows"]) -> None:
        self.rows = _mix(_mix(torch.full_like(rows, seed)) ^ rows)
        self.stream = 0

    def bits(self, columns: int) -> Int[Tensor, "rows columns"]:
        """62 random bits for each row and column."""
        self.stream += 1
        streams = _mix(self.rows + self.stream)[:, None]
        return _shifted(_mix(streams ^ torch.arange(columns, device=self.rows.device)), 2)

    def below(self, bounds: int | Tensor, columns: int) -> Int[Tensor, "rows columns"]:
        """Integers from 0 up to, but not including, the bound (which may differ by column or row)."""
        return self.bits(columns) % bounds
