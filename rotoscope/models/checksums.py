"""Checksums of tensors, computed where they are."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from rotoscope.shapes import Int, Tensor

COLUMNS = 2**16
"""Words that are summed into one number."""
WORDS_AT_ONCE = {"cpu": 2**18, "cuda": 2**25}
"""Words whose products are in memory together; on a CPU they stay in its cache."""
WORD = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def checksums(tensor: Tensor) -> Int[Tensor, "rows"]:
    """Sums of a tensor's bits, as words times fixed odd numbers modulo 2^64: any change of one word changes its sum.

    The words are 32 bits where a tensor's size allows it. A row is `COLUMNS` words; the last one may be shorter.
    """
    width = tensor.dtype.itemsize
    size = next(size for size in (4, 2, 1) if tensor.numel() * width % size == 0)
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.storage_offset() * width % size:
        flat = flat.clone()
    words = flat.view(WORD[size]) if flat.dtype != torch.bool else flat.view(torch.int8)
    factors = _factors().to(words.device)
    sums: list[Tensor] = []
    full = len(words) // COLUMNS * COLUMNS
    step = WORDS_AT_ONCE.get(words.device.type, WORDS_AT_ONCE["cpu"])
    for start in range(0, full, step):
        rows = words[start : min(start + step, full)].view(-1, COLUMNS)
        sums.append((rows * factors).sum(1))
    rest = words[full:]
    sums.append((rest * factors[: len(rest)]).sum(0, keepdim=True))
    return torch.cat(sums)


@cache
def _factors() -> Int[Tensor, "columns"]:
    """Odd 64-bit numbers that look random and are the same everywhere and for ever."""
    raw = np.random.PCG64(20_251_114).random_raw(COLUMNS) | np.uint64(1)
    return torch.from_numpy(raw.view(np.int64).copy())
