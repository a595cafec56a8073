"""What is no logit, no matrix or no tau is refused with its place, or gives the right number; never a plausible score."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import NumberError, RotoscopeError
from rotoscope.scores import swaps
from rotoscope.scores.blocks import Blocks, from_logits
from rotoscope.scores.frequency_scores import frequency_scores
from tests.factors import random_factors

NO_LOGITS = [float("nan"), float("inf")]


@pytest.mark.parametrize("wrong", NO_LOGITS)
@pytest.mark.parametrize("place", [(1, 2, 5), (0, 3, 3), (1, 6, 0)])
def test_no_logit_is_named_with_its_place(wrong: float, place: tuple[int, ...]) -> None:
    logits = torch.randn(2, 7, 7)
    logits[place] = wrong
    with pytest.raises(NumberError, match=rf"logits\[{place[0]}, {place[1]}, {place[2]}\] is {wrong}"):
        rs.swap_scores(logits)


def test_hidden_positions_are_no_error() -> None:
    logits = torch.randn(7, 7)
    logits[:2] = -torch.inf
    assert torch.isfinite(rs.swap_scores(logits).positional)


@pytest.mark.parametrize("wrong", NO_LOGITS)
@pytest.mark.parametrize("tile", [2, 128])
@pytest.mark.parametrize(("slot", "content"), [(1, 4), (4, 1)])
def test_no_logit_that_only_a_swap_would_meet(
    wrong: float, tile: int, slot: int, content: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real logits are fine; the swap of 1 and 4 is not."""
    monkeypatch.setattr(swaps, "TILE", tile)
    logits = torch.randn(3, 8, 8)
    logits[2, slot, content] = wrong
    real = logits.diagonal(dim1=-2, dim2=-1)
    words = rf"positions \[{content}, {content + 1}\] in the slot of \[{slot}, {slot + 1}\] at index \[2\] is {wrong}"
    with pytest.raises(NumberError, match=words):
        swaps.score_swaps(from_logits(logits), real, Blocks.tokens(7))


def test_no_logit_in_a_single_frequency() -> None:
    heads = random_factors(6)
    heads.keys[0, 0, 2, 3] = torch.nan
    with pytest.raises(NumberError, match="is nan"):
        frequency_scores(heads, Blocks.tokens(5), (1e-4,))


def test_a_matrix_is_square() -> None:
    for function in (rs.swap_scores, rs.exclusion):
        with pytest.raises(RotoscopeError, match="as many rows as columns; found 5 x 6"):
            function(torch.zeros(5, 6))
        with pytest.raises(RotoscopeError, match="found 2 x 6 x 5"):
            function(torch.zeros(2, 6, 5))


def test_arrays_are_as_good_as_tensors() -> None:
    array = np.random.default_rng(0).normal(size=(9, 9))
    ours, theirs = rs.swap_scores(array), rs.swap_scores(torch.tensor(array))
    assert ours.positional == theirs.positional
    assert ours.centred_symbolic == theirs.centred_symbolic
    assert rs.exclusion(array).d_pos == rs.exclusion(torch.tensor(array)).d_pos
    assert rs.discrepancy(array[0]) == rs.discrepancy(torch.tensor(array[0]))


@pytest.mark.parametrize(
    ("dtype", "tau"), [(torch.float32, 1e-40), (torch.float32, 1e-300), (torch.float64, 1e-320)]
)
def test_tau_that_divides_to_nothing_is_refused(dtype: torch.dtype, tau: float) -> None:
    with pytest.raises(RotoscopeError, match="tau must be at least 1e-30"):
        rs.swap_scores(torch.randn(5, 5, dtype=dtype), [1e-4, tau])


@pytest.mark.parametrize(("dtype", "tau"), [(torch.float32, 1e-30), (torch.float64, 1e-30)])
def test_a_very_small_tau_takes_the_heaviest_swap(dtype: torch.dtype, tau: float) -> None:
    logits = torch.randn(7, 7, dtype=dtype)
    found = rs.swap_scores(logits, tau, detail=True)
    attention = logits.diagonal().softmax(-1)
    gaps = (attention[found.detail.first] - attention[found.detail.second]).abs()
    assert found.effective_swaps == 1
    assert found.positional == found.detail.positional[gaps.argmax()]


def test_half_precision_does_not_overflow() -> None:
    """Squares and differences of logits that float16 holds need not fit into it."""
    logits = torch.tensor([[300.0, -300.0], [300.0, -300.0]], dtype=torch.float16)
    found, expected = rs.exclusion(logits), rs.exclusion(logits.double())
    for name in ("variance", "d_pos", "d_sym"):
        assert getattr(found, name).item() == pytest.approx(getattr(expected, name).item(), rel=1e-6)
    assert found.d_pos == 600**2 / 2  # float16 ends at 65504
    assert rs.discrepancy(torch.tensor([60000.0, -60000.0], dtype=torch.float16)) == 120_000 - 2 * (60_000 % 32)


def test_exclusion_is_over_visible_keys() -> None:
    logits = torch.randn(4, 4)
    logits[1] = -torch.inf
    with pytest.raises(NumberError, match=r"logits\[1, 0\] is -inf.*leave hidden positions out"):
        rs.exclusion(logits)


def test_discrepancy_of_one_logit_and_of_none() -> None:
    assert rs.discrepancy(torch.tensor([3.0])) == math.inf  # nothing competes
    assert rs.discrepancy(torch.zeros(2, 3, 1)).tolist() == [[math.inf] * 3] * 2
    assert rs.discrepancy(torch.tensor([3.0, -math.inf])) == math.inf
    with pytest.raises(RotoscopeError, match="at least one key; found none"):
        rs.discrepancy(torch.zeros(2, 0))
    for wrong in NO_LOGITS:
        with pytest.raises(NumberError, match=rf"logits\[1\] is {wrong}"):
            rs.discrepancy(torch.tensor([3.0, wrong, 1.0]))
