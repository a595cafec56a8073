"""Blocks in the order of their attention: the same scores as all swaps give, from fewer."""

from __future__ import annotations

import pytest
import torch

import rotoscope as rs
from rotoscope.scores import swap_pairs
from rotoscope.scores import swap_pairs as ordered
from rotoscope.scores.counterfactual import Factors
from rotoscope.scores.swap_pairs import furthest
from rotoscope.scores.swaps import SwapScores, score_swaps
from tests.factors import factors_of, random_factors

TAUS = (1e-4, 1e-2, 1.0)
SCORES = (
    *("positional", "symbolic", "centred_positional", "centred_symbolic"),
    *("renormalised_positional", "renormalised_symbolic"),
)
MOST = 2e-6


def spans(length: int, n: int) -> rs.Blocks:
    return rs.Blocks.of([(p, p + length) for p in range(1, n - length - 1, length)], n - 1)


def assert_alike(found: SwapScores, dense: SwapScores) -> None:
    for name in SCORES:
        assert (getattr(found, name) - getattr(dense, name)).abs().max() <= MOST, name
    assert torch.allclose(found.effective_swaps, dense.effective_swaps, rtol=2 * MOST)
    assert torch.equal(found.swaps, dense.swaps)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Heads, rows and columns of every rectangle of logits that is computed."""
    seen: list[tuple[int, int, int]] = []
    block_logits = ordered.OrderedLogits.block_logits

    def counted(self, heads, order, rows, columns):
        seen.append((len(heads), rows.stop - rows.start, columns.stop - columns.start))
        return block_logits(self, heads, order, rows, columns)

    monkeypatch.setattr(ordered.OrderedLogits, "block_logits", counted)
    return seen


def pairs(looked_at: list[tuple[int, int, int]]) -> int:
    return sum(heads * rows * columns for heads, rows, columns in looked_at)


@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("taus", [(1e-4,), TAUS], ids=["one tau", "several"])
@pytest.mark.parametrize("size", [0.01, 1.0, 8.0], ids=["flat", "mixed", "peaked"])
def test_what_is_skipped_changes_no_score(
    size: float, taus: tuple[float, ...], length: int, monkeypatch
) -> None:
    monkeypatch.setattr(ordered, "TILE", 7)
    heads = random_factors(40, 3, 2, batch=2, key_heads=2, size=size, dtype=torch.float64, softcap=30.0)
    blocks, sink = spans(length, 40), torch.full((2, 4), 0.5, dtype=torch.float64)
    found = score_swaps(heads, heads.real(), blocks, taus, sink=sink)
    assert_alike(found, rs.swap_scores(heads.logits(), taus, blocks, sink=sink))


def test_swaps_that_cannot_weigh_are_not_computed(looked_at) -> None:
    n, blocks = 60, spans(1, 60)
    m = len(blocks)
    peaked, flat = (random_factors(n, 3, size=size, dtype=torch.float64) for size in (8.0, 0.001))
    score_swaps(peaked, peaked.real(), blocks, 1e-4)
    assert 0 < pairs(looked_at) < 2 * m * m / 8
    looked_at.clear()
    score_swaps(peaked, peaked.real(), blocks, 1.0)  # at a large tau all weigh
    assert pairs(looked_at) >= 2 * m * (m - 1) / 2
    looked_at.clear()
    score_swaps(flat, flat.real(), blocks, 1e-4)
    assert pairs(looked_at) >= 2 * m * (m - 1) / 2


def test_each_head_needs_what_it_needs(looked_at) -> None:
    """A flat head beside peaked ones does not make them look at more."""
    heads = random_factors(60, 3, group=6, size=8.0, dtype=torch.float64)
    heads.query[:, :, 2] /= 8000
    blocks = spans(1, 60)
    found = score_swaps(heads, heads.real(), blocks, 1e-4)
    assert_alike(found, rs.swap_scores(heads.logits(), 1e-4, blocks))
    assert sorted(looked_at)[0][0] == 1  # the flat one is alone
    assert pairs(looked_at) < 2 * len(blocks) ** 2


def worst_case(tau: float, m: int) -> tuple[Factors, torch.Tensor]:
    """One swap that weighs is positional; all others of the first block are symbolic and lack a little too much."""
    lack = 1.0001 * furthest((tau,), m * (m - 1) // 2)
    attention = torch.full((m + 1,), 1e-3 + lack, dtype=torch.float64)
    attention[0], attention[m - 1] = 0.3, 1e-3
    attention[m] = 1 - attention[:m].sum()
    logits = torch.zeros(m + 1, m + 1, dtype=torch.float64) + attention.log()  # contents keep what they get
    logits[0, m - 1], logits[m - 1, 0] = attention[0].log(), attention[m - 1].log()  # but these two slots
    return factors_of(logits), logits


@pytest.mark.parametrize("least", [1e-12, 1e-3])
def test_the_bound_holds_where_all_that_is_left_out_differs(least: float, monkeypatch, looked_at) -> None:
    monkeypatch.setattr(swap_pairs, "LEAST", least)
    tau, m = 5e-4, 30
    heads, logits = worst_case(tau, m)
    blocks = rs.Blocks.tokens(m)
    found = score_swaps(heads, heads.real(), blocks, tau)
    dense = rs.swap_scores(logits, tau)
    assert pairs(looked_at) == 1
    assert found.positional.item() == pytest.approx(1, abs=1e-12)
    for name in SCORES:
        assert (getattr(found, name) - getattr(dense, name)).abs() <= MOST, name
    left_out = (m - 2) * float(torch.tensor(-1.0001 * furthest((tau,), m * (m - 1) // 2) / tau).exp())
    assert 0 < (dense.symbolic - found.symbolic).item() <= 2 * left_out


def test_equal_symbols_need_all_swaps(looked_at) -> None:
    heads = random_factors(30, 3, key_heads=2, size=8.0, dtype=torch.float64)
    blocks = spans(1, 30)
    symbols = torch.arange(len(blocks)) % 9
    found = score_swaps(heads, heads.real(), blocks, 1e-4, symbols=symbols)
    dense = rs.swap_scores(heads.logits(), 1e-4, blocks, symbols=symbols)
    assert_alike(found, dense)
    assert torch.equal(found.equal_symbols.swaps, dense.equal_symbols.swaps)
    for name in ("positional", "symbolic"):
        assert torch.allclose(getattr(found.equal_symbols, name), getattr(dense.equal_symbols, name), atol=1e-9)
    assert pairs(looked_at) >= 4 * len(blocks) * (len(blocks) - 1) / 2
