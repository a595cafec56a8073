"""Exponentials interpolated between turns of a query, against every one by itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import rotoscope as rs
from rotoscope.errors import NumberError
from rotoscope.scores.counterfactual import Factors
from rotoscope.scores.frequency_scores import frequency_scores
from rotoscope.scores.plane_turns import Planes, Turns
from tests.factors import random_factors

TAUS = (1e-4, 1e-2)


def turns(angles: torch.Tensor, dtype: torch.dtype) -> Turns:
    return Turns(rs.Blocks.tokens(len(angles) - 1), angles.cos().to(dtype), angles.sin().to(dtype))


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (torch.float64, 1e-10)])
@pytest.mark.parametrize("reach", [0.05, 0.5, 1.0, 2.0, 6.0])
def test_between_nodes_exponentials_are_as_exact_as_numbers(
    reach: float, dtype: torch.dtype, most: float
) -> None:
    angles = torch.arange(-200.0, 1)[:, None].double() * torch.tensor([1, 0.1, 0.02, 0.008, 0.004, 0.001])
    made = turns(angles, dtype)
    needed = made.nodes_needed(torch.full((1, 6), reach, dtype=dtype))[0].tolist()
    assert needed[-1] > 0
    assert needed == sorted(needed, reverse=True) or 0 in needed  # slower planes need fewer
    towards = torch.linspace(0, 6.3, 50, dtype=torch.float64)
    for plane, count in enumerate(needed):
        if count:
            at_nodes = (reach * (made.nodes(count)[plane] - towards[:, None]).cos()).to(dtype).exp()
            exact = (reach * (made.angles[plane, :, 0, None] - towards).cos()).exp()
            assert ((made.table(count)[plane] @ at_nodes.T) / exact - 1).abs().max() < most


def assert_planes(heads: Factors, blocks: rs.Blocks) -> None:
    found = frequency_scores(heads, blocks, TAUS)
    seen, keys = heads.by_plane()
    logits = torch.einsum("hpfx,hcfx->hfpc", seen, keys)
    expected = rs.swap_scores(logits, TAUS, blocks)
    for name in ("positional", "symbolic"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), atol=1e-9)
    assert torch.allclose(found.effective_swaps, expected.effective_swaps, rtol=1e-6)


@pytest.mark.parametrize("scaled", [1.0, 1.3], ids=["plain", "as in YaRN"])
def test_planes_by_all_ways_equal_their_own_matrix(scaled: float) -> None:
    heads = random_factors(60, 6, key_heads=2, dtype=torch.float64)
    heads.query.mul_(torch.tensor([0.1, 0.3, 1.0, 3.0]).view(1, 2, 2, 1))
    heads = dataclasses.replace(heads, cos=heads.cos * scaled, sin=heads.sin * scaled)
    blocks = rs.Blocks.of([(p, p + 2) for p in range(3, 57, 2)], 59)
    planes = Planes(heads, blocks, TAUS)
    ways = planes.turns.nodes_needed(planes.query.norm(dim=-1) * 2 * scaled).unique().tolist()
    assert 0 in ways
    assert len(ways) > 3
    assert_planes(heads, blocks)


def test_turns_that_also_stretch_are_not_interpolated() -> None:
    heads = random_factors(30, 2, size=0.2, dtype=torch.float64)
    stretch = torch.linspace(1, 2, 30, dtype=torch.float64)[:, None]
    assert_planes(
        dataclasses.replace(heads, cos=heads.cos * stretch, sin=heads.sin * stretch), rs.Blocks.tokens(29)
    )


def test_layers_that_turn_alike_share_their_tables() -> None:
    blocks, heads = rs.Blocks.tokens(29), random_factors(30, 2)
    first = Turns.of(blocks, heads.cos, heads.sin)
    assert Turns.of(blocks, heads.cos.clone(), heads.sin.clone()) is first
    assert Turns.of(blocks, heads.cos, -heads.sin) is not first
    assert first.table(9) is first.table(9)


@pytest.mark.parametrize("place", [0, 11])
def test_no_logit_outside_the_blocks_is_refused_too(place: int) -> None:
    heads = random_factors(12)
    heads.keys[0, 0, place, 3] = torch.nan
    with pytest.raises(NumberError, match="is nan"):
        frequency_scores(heads, rs.Blocks.of([(2, 4), (4, 6), (6, 8)], 11), (1e-4,))
