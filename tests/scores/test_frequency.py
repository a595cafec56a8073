"""One frequency at a time equals scoring that plane's own logit matrix."""

from __future__ import annotations

import math

import pytest
import torch

import rotoscope as rs
from rotoscope.scores import frequency_scores as frequency
from rotoscope.scores import plane_turns as planes
from rotoscope.scores.frequency_scores import frequency_scores, remainder_scores
from rotoscope.scores.swaps import score_swaps
from tests.factors import random_factors

TAUS = (1e-4, 1e-2, 1.0)
BLOCKS = {"equal": [(1, 3), (3, 5), (6, 8), (8, 10)], "unequal": [(0, 1), (2, 5), (5, 7), (8, 11)]}


@pytest.mark.parametrize("blocks", [None, *BLOCKS.values()], ids=["tokens", *BLOCKS])
@pytest.mark.parametrize("size", [1.0, 6.0], ids=["small logits", "large logits"])
@pytest.mark.parametrize("hidden", [(), (0, 1, 2)])
def test_every_plane_by_itself(blocks, size: float, hidden: tuple[int, ...]) -> None:
    n, planes = 12, 5
    heads = random_factors(n, planes, group=3, size=size**2, hidden=hidden, dtype=torch.float64)
    (seen, keys), visible = heads.by_plane(), heads.visible
    spans = rs.Blocks.tokens(n - 1) if blocks is None else rs.Blocks.of(blocks, n - 1)
    found = frequency_scores(heads, spans, TAUS)
    for head in range(3):
        for plane in range(planes):
            logits = seen[head, :, plane] @ keys[head, :, plane].T
            logits[~visible] = -torch.inf
            one = rs.swap_scores(logits, TAUS, spans)
            assert torch.allclose(found.positional[head, plane], one.positional, atol=1e-9)
            assert torch.allclose(found.symbolic[head, plane], one.symbolic, atol=1e-9)
            assert torch.allclose(found.effective_swaps[head, plane], one.effective_swaps, rtol=1e-6)
            assert found.entropy[head, plane].item() == pytest.approx(one.entropy.item(), abs=1e-9)
            real = logits.diagonal()[visible]
            assert found.logit_norm[head, plane].item() == pytest.approx(real.norm().item())
            assert found.max_logit[head, plane].item() == pytest.approx(real.max().item())


def test_both_paths_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logits skip the logarithms; large ones must not."""
    taken = []
    monkeypatch.setattr(
        frequency,
        "score_swaps",
        lambda *a, **k: taken.append("logarithms") or score_swaps(*a, **k),
    )
    frequency_scores(random_factors(6, 1), rs.Blocks.tokens(5), [1.0])
    assert taken == []
    frequency_scores(random_factors(6, 1, size=100.0), rs.Blocks.tokens(5), [1.0])
    assert taken == ["logarithms"]


@pytest.mark.parametrize(("chunk", "rows"), [(1, 64), (3 * 36 * 12, 5), (16 * 3 * 4 * 12, 4), (2**25, 512)])
@pytest.mark.parametrize("last", [36, 38], ids=["equal", "unequal"])
def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch, chunk: int, rows: int, last: int) -> None:
    """A plane at a time, some planes of a head, two of three heads, everything: as on a CPU and as on a GPU."""
    heads = random_factors(40, 8, group=3)
    blocks = rs.Blocks.of([*((p, p + 3) for p in range(0, 33, 3)), (33, last)], 39)
    whole = frequency_scores(heads, blocks, [1e-2])
    monkeypatch.setitem(frequency.CHUNK, "cpu", chunk)
    monkeypatch.setitem(frequency.ROWS, "cpu", rows)
    monkeypatch.setattr(planes, "TOGETHER", chunk // 3)
    monkeypatch.setattr(planes, "ROWS", rows)
    apart = frequency_scores(heads, blocks, [1e-2])
    assert torch.allclose(whole.positional, apart.positional, atol=2e-5)
    assert torch.allclose(whole.symbolic, apart.symbolic, atol=2e-5)
    assert torch.allclose(whole.effective_swaps, apart.effective_swaps, rtol=1e-3)
    assert torch.allclose(whole.logit_norm, apart.logit_norm)


def test_a_still_plane_is_symbolic_and_a_shared_key_positional() -> None:
    heads = random_factors(9, 2, dtype=torch.float64)
    heads.keys[..., 2:] = heads.keys[..., :1, 2:]
    heads.cos[:, 0], heads.sin[:, 0] = 1, 0
    found = frequency_scores(heads, rs.Blocks.tokens(8), [1e-4])
    assert found.symbolic[0, 0].item() == pytest.approx(1, abs=1e-9)
    assert found.positional[0, 1].item() == pytest.approx(1, abs=1e-9)
    assert math.isfinite(found.positional[0, 0].item())


def test_what_never_turns_is_one_plane() -> None:
    heads = random_factors(12, 2, rest=5, hidden=(0,), dtype=torch.float64, softcap=1.0)
    spans = rs.Blocks.tokens(11)
    found = remainder_scores(heads, spans, TAUS)
    for head in range(2):
        logits = (heads.query[0, 0, head, 4:] @ heads.keys[0, 0, :, 4:].T).expand(12, -1).clone()
        logits[0] = -torch.inf
        one = rs.swap_scores(logits, TAUS, spans)
        assert torch.allclose(found.positional[head, 0], one.positional, atol=1e-9)
        assert torch.allclose(found.symbolic[head, 0], one.symbolic, atol=1e-9)
        real = logits.diagonal()[1:]
        assert found.logit_norm[head, 0].item() == pytest.approx(real.norm().item())
        assert found.max_logit[head, 0].item() == pytest.approx(real.max().item())
