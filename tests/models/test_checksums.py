"""Checksums of tensors: every number counts, and the place where it stands."""

from __future__ import annotations

import pytest
import torch

from rotoscope.models.checksums import checksums


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("size", [1, 3, 65_536, 65_537, 200_001])
def test_checksums_see_every_single_number(dtype: torch.dtype, size: int) -> None:
    values = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(size)).to(dtype)
    before = checksums(values)
    for place in {0, size // 2, size - 1}:
        other = values.clone()
        other[place] = 1 - other[place].to(torch.int64)
        assert not torch.equal(checksums(other), before)


def test_checksums_see_where_a_number_stands() -> None:
    values = torch.arange(300_000, dtype=torch.float32)
    turned = values.roll(1)
    assert not torch.equal(checksums(turned), checksums(values))
