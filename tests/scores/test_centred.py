"""Centred scores against the same definition in 50 digits: peaked heads must not drown in rounding."""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext

import pytest
import torch

import rotoscope as rs

DIGITS = 50


def cosine(a: tuple[Decimal, Decimal], b: tuple[Decimal, Decimal]) -> Decimal:
    size = ((a[0] ** 2 + a[1] ** 2) * (b[0] ** 2 + b[1] ** 2)).sqrt()
    return (a[0] * b[0] + a[1] * b[1]) / size if size else Decimal(0)


def in_fifty_digits(
    logits: torch.Tensor, tau: float, length: int = 1, sink: float | None = None
) -> tuple[float, float]:
    """Centred scores of all swaps of blocks of one length, every normaliser added up again."""
    with localcontext() as context:
        context.prec = DIGITS
        n, m = len(logits), (len(logits) - 1) // length
        weight = [[Decimal(x).exp() for x in row] for row in logits.tolist()]
        outside = Decimal(0) if sink is None else Decimal(sink).exp()
        z = sum((weight[p][p] for p in range(n)), outside)
        uniform = 1 / Decimal(n)
        attention = [
            sum(weight[k * length + o][k * length + o] for o in range(length)) / z / length for k in range(m)
        ]
        gaps, cosines = [], []
        for a, b in itertools.combinations(range(m), 2):
            new = [
                sum(weight[to * length + o][of * length + o] for o in range(length))
                for to, of in ((a, b), (b, a))
            ]
            moved = {k * length + o for k in (a, b) for o in range(length)}
            after = sum((weight[p][p] for p in range(n) if p not in moved), outside) + sum(new)
            old = (attention[a] - uniform, attention[b] - uniform)
            now = (new[0] / after / length - uniform, new[1] / after / length - uniform)
            gaps.append(abs(attention[a] - attention[b]))
            cosines.append((cosine(now, old), cosine(now, old[::-1])))
        weights = [((gap - max(gaps)) / Decimal(tau)).exp() for gap in gaps]
        return tuple(
            float(sum(w * c[k] for w, c in zip(weights, cosines, strict=True)) / sum(weights)) for k in (0, 1)
        )


def random_logits(seed: int, n: int, scale: float, dtype: torch.dtype) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    return (torch.randn(n, n, generator=dice, dtype=torch.float64) * scale).to(dtype)


SCALES = [(torch.float32, scale) for scale in (1.0, 4.0, 12.0, 20.0, 40.0)]
SCALES += [(torch.float64, scale) for scale in (40.0, 1e3, 1e4)]


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
@pytest.mark.parametrize("tau", [1e-4, 1e-2])
def test_ten_keys_equal_fifty_digits(dtype: torch.dtype, scale: float, tau: float) -> None:
    for seed in range(20):
        logits = random_logits(seed, 11, scale, dtype)
        found = rs.swap_scores(logits, tau)
        expected = in_fifty_digits(logits, tau)
        assert (found.centred_positional.item(), found.centred_symbolic.item()) == pytest.approx(
            expected, abs=1e-4
        )


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 20.0), (torch.float32, 40.0), (torch.float64, 1e4)]
)
@pytest.mark.parametrize("sink", [None, 3.0])
def test_blocks_and_sinks_equal_fifty_digits(dtype: torch.dtype, scale: float, sink: float | None) -> None:
    blocks = [(k, k + 3) for k in range(0, 15, 3)]
    for seed in range(10):
        logits = random_logits(seed, 16, scale, dtype)
        given = None if sink is None else torch.tensor(sink, dtype=dtype)
        found = rs.swap_scores(logits, 1e-4, blocks, sink=given)
        expected = in_fifty_digits(logits, 1e-4, length=3, sink=sink)
        assert (found.centred_positional.item(), found.centred_symbolic.item()) == pytest.approx(
            expected, abs=1e-4
        )


def test_attention_in_two_places_equals_fifty_digits() -> None:
    """Where two blocks hold everything, what is left is lost to any subtraction, and it decides what a swap of the two
    does. (At a small tau that swap has no weight.)"""
    for seed in range(10):
        logits = random_logits(seed, 8, 1.0, torch.float32)
        logits.diagonal()[:2] = torch.tensor([45.0, 44.5])
        logits[0, 1], logits[1, 0] = -1.0, 0.5
        found = rs.swap_scores(logits, 1.0)
        expected = in_fifty_digits(logits, 1.0)
        assert (found.centred_positional.item(), found.centred_symbolic.item()) == pytest.approx(
            expected, abs=1e-4
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 500.0, -500.0, 3e4])
@pytest.mark.parametrize("blocks", [None, [(0, 3), (3, 6), (7, 10)]], ids=["tokens", "blocks"])
def test_a_uniform_head_centres_to_nothing_whatever_its_logits_share(dtype, offset, blocks) -> None:
    found = rs.swap_scores(torch.full((12, 12), offset, dtype=dtype), blocks=blocks)
    assert found.centred_positional == found.centred_symbolic == 0
    assert found.positional.item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_all_logits_share_changes_no_score(dtype: torch.dtype) -> None:
    logits = torch.randint(-64, 64, (9, 9), generator=torch.Generator().manual_seed(0)).to(dtype) / 16
    plain, moved = rs.swap_scores(logits), rs.swap_scores(logits + 512)  # exact in both precisions
    for name in ("positional", "centred_positional", "centred_symbolic", "renormalised_symbolic", "entropy"):
        assert torch.allclose(getattr(plain, name), getattr(moved, name), atol=1e-7), name


def test_weights_do_not_hang_on_rounding() -> None:
    """At tau = 1e-4 a rounding of attention in float32 moves the weights; they are those of float64."""
    for seed in range(20):
        logits = random_logits(seed, 33, 4.0, torch.float32)
        coarse, fine = rs.swap_scores(logits), rs.swap_scores(logits.double())
        assert coarse.positional.item() == pytest.approx(fine.positional.item(), abs=5e-6)
        assert coarse.effective_swaps.item() == pytest.approx(fine.effective_swaps.item(), rel=1e-4)
