from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rotoscope as rs
from rotoscope.scores.exclusion_principle import Taken, exclusion_from_factors, exclusion_in_parts, exclusion_of
from tests.factors import random_factors
from tests.twin import all_permutations

CASES = json.loads((Path(__file__).parents[1] / "golden" / "exclusion.json").read_text())["cases"]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
@pytest.mark.parametrize("case", CASES)
def test_golden(case: dict, dtype: torch.dtype, limit: float) -> None:
    query, keys, angles = (torch.tensor(case[name], dtype=dtype) for name in ("query", "keys", "angles"))
    found = rs.exclusion(rs.counterfactual_logits(query, keys, angles, case["scale"], case["query_position"]))
    for name in ("variance", "d_pos", "d_sym"):
        assert getattr(found, name).item() == pytest.approx(case[name], abs=limit, rel=limit)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_equals_the_sum_over_all_permutations(size: int) -> None:
    logits = np.random.default_rng(size).normal(size=(size, size)) * 3
    found = rs.exclusion(torch.tensor(logits))
    expected = all_permutations(logits)
    assert (found.variance.item(), found.d_pos.item(), found.d_sym.item()) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 20), spread=st.floats(1e-3, 1e3))
def test_inequality(seed: int, size: int, spread: float) -> None:
    logits = torch.tensor(np.random.default_rng(seed).normal(size=(size, size)) * spread)
    found = rs.exclusion(logits)
    assert found.variance <= found.bound * (1 + 1e-12)


def test_equality_and_pure_heads() -> None:
    real = torch.randn(12, dtype=torch.float64)
    tight = rs.exclusion((real[:, None] + real[None, :]) / 2)
    assert tight.variance.item() == pytest.approx(tight.bound.item(), rel=1e-12)
    for pure in (real[:, None].expand(12, 12), real[None, :].expand(12, 12)):
        found = rs.exclusion(pure)
        assert found.variance.item() == pytest.approx(found.bound.item() / 2, rel=1e-12)


@pytest.mark.parametrize("hidden", [(), (1, 2, 9)])
def test_without_forming_the_matrix(hidden: tuple[int, ...]) -> None:
    """Over the blocks' positions that are seen; keys with much in common, where differences are small."""
    heads = random_factors(17, 3, rest=2, batch=2, key_heads=2, hidden=hidden)
    heads.keys.add_(5)
    found = exclusion_from_factors(heads, Taken.of(heads, rs.Blocks(((1, 4), (5, 6), (8, 16)))))
    kept = [p for p in (1, 2, 3, 5, *range(8, 16)) if p not in hidden]
    exact = replace(heads, **{name: getattr(heads, name).double() for name in ("query", "keys", "cos", "sin")})
    expected = rs.exclusion(exact.logits()[..., kept, :][..., kept])
    for name in ("variance", "d_pos", "d_sym"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_capped_heads_a_few_rows_at_a_time(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = random_factors(17, 3, rest=2, batch=2, key_heads=2, softcap=2.0, dtype=torch.float64)
    kept = torch.tensor([1, 2, 3, 5, *range(8, 16)])
    formed: list[int] = []
    gather = type(heads).gather

    def noted(self: object, positions: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
        formed.append(positions.shape[1])
        return gather(self, positions, contents)  # type: ignore[arg-type]

    monkeypatch.setattr(type(heads), "gather", noted)
    monkeypatch.setattr("rotoscope.scores.exclusion_principle.ROOM", 16 * len(kept) * 2 * 4 * rows)
    found = exclusion_in_parts(heads, kept)
    assert max(formed) == min(rows, len(kept))
    expected = rs.exclusion(heads.logits()[..., kept, :][..., kept])
    for name in ("variance", "d_pos", "d_sym"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), rtol=1e-12)


def test_nothing_seen_is_nothing() -> None:
    heads = random_factors(6, hidden=(0, 1, 2, 3))
    found = exclusion_from_factors(heads, Taken.of(heads, rs.Blocks(((0, 2), (2, 4)))))
    assert not found.variance.any()
    assert not found.bound.any()


@pytest.mark.parametrize("favour", ["symbolic", "positional"])
@pytest.mark.parametrize("size", [2, 5])
def test_the_penalty_is_the_mean_over_all_permutations(favour: str, size: int) -> None:
    logits = np.random.default_rng(size).normal(size=(size, size))
    variance, d_pos, d_sym = all_permutations(logits)
    found = rs.exclusion(torch.tensor(logits)).penalty(favour)
    assert found.item() == pytest.approx(
        (d_sym if favour == "symbolic" else d_pos) / (variance + 1e-3), rel=1e-12
    )


@pytest.mark.parametrize("favour", ["symbolic", "positional"])
def test_pure_heads_cost_nothing_where_they_are_favoured_and_flat_ones_little(favour: str) -> None:
    real = torch.randn(9, dtype=torch.float64)
    pure = real[None, :].expand(9, 9) if favour == "symbolic" else real[:, None].expand(9, 9)
    assert rs.exclusion(pure).penalty(favour) == 0
    assert rs.exclusion(pure.T).penalty(favour) > 1.9  # twice the variance
    assert rs.exclusion(1e-3 * pure.T).penalty(favour) < 1e-2


@pytest.mark.parametrize("hidden", [(), (0, 3)])
@pytest.mark.parametrize("favour", ["symbolic", "positional"])
def test_gradients_of_the_penalty(favour: str, hidden: tuple[int, ...]) -> None:
    """Against finite differences, with and without forming the matrix, and both ways alike."""
    heads = random_factors(6, 1, rest=1, group=1, hidden=hidden, dtype=torch.float64)
    blocks = rs.Blocks.tokens(5)
    seen = [p for p in range(5) if p not in hidden]

    def formed(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        own = replace(heads, query=query, keys=keys)
        return exclusion_of(own.logits()[:, :, seen][..., seen]).penalty(favour)

    def unformed(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        own = replace(heads, query=query, keys=keys)
        return exclusion_from_factors(own, Taken.of(own, blocks)).penalty(favour)

    given = (heads.query.requires_grad_(), heads.keys.requires_grad_())
    slopes = []
    for penalty in (formed, unformed):
        assert torch.autograd.gradcheck(penalty, given)
        slopes.append(torch.autograd.grad(penalty(*given).sum(), given))
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        assert one.abs().max() > 0.01


def test_gradients_of_heads_that_see_nothing_are_zero() -> None:
    heads = random_factors(5, 2, hidden=(0, 1, 2, 3), dtype=torch.float64)
    keys = heads.keys.requires_grad_()
    found = exclusion_from_factors(heads, Taken.of(heads, rs.Blocks.tokens(4)))
    (slope,) = torch.autograd.grad(found.penalty("symbolic").sum(), keys)
    assert slope.count_nonzero() == 0
    assert found.d_pos.max() == 0
