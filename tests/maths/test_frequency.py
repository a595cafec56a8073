"""One frequency at a time equals scoring that plane's own logit matrix."""

from __future__ import annotations

import math

import pytest
import torch

import rotoscope as rs
from rotoscope.maths import frequency
from rotoscope.maths.frequency import frequency_scores

TAUS = (1e-4, 1e-2, 1.0)
BLOCKS = {"equal": [(1, 3), (3, 5), (6, 8), (8, 10)], "unequal": [(0, 1), (2, 5), (5, 7), (8, 11)]}


@pytest.mark.parametrize("blocks", [None, *BLOCKS.values()], ids=["tokens", *BLOCKS])
@pytest.mark.parametrize("size", [1.0, 6.0], ids=["small logits", "large logits"])
@pytest.mark.parametrize("hidden", [(), (0, 1, 2)])
def test_every_plane_by_itself(blocks, size: float, hidden: tuple[int, ...]) -> None:
    heads, n, planes = 3, 12, 5
    seen = torch.randn(heads, n, planes, 2, dtype=torch.float64) * size
    keys = torch.randn(heads, n, planes, 2, dtype=torch.float64) * size
    visible = torch.tensor([p not in hidden for p in range(n)])
    spans = rs.Blocks.tokens(n - 1) if blocks is None else rs.Blocks.of(blocks, n - 1)
    found = frequency_scores(seen, keys, spans, TAUS, visible)
    for head in range(heads):
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
        lambda *a, **k: taken.append("logarithms") or rs.maths.swaps.score_swaps(*a, **k),
    )
    seen = torch.ones(1, 6, 1, 2)
    frequency_scores(seen, seen, rs.Blocks.tokens(5), [1.0])
    assert taken == []
    frequency_scores(seen * 10, seen, rs.Blocks.tokens(5), [1.0])
    assert taken == ["logarithms"]


@pytest.mark.parametrize(("chunk", "rows"), [(1, 64), (3 * 36 * 12, 5), (16 * 3 * 4 * 12, 4), (2**25, 512)])
def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch, chunk: int, rows: int) -> None:
    """A plane at a time, some planes of a head, two of three heads, everything: as on a CPU and as on a GPU."""
    seen, keys = torch.randn(3, 40, 8, 2), torch.randn(3, 40, 8, 2)
    blocks = rs.Blocks.of([(p, p + 3) for p in range(0, 36, 3)], 39)
    whole = frequency_scores(seen, keys, blocks, [1e-2])
    monkeypatch.setitem(frequency.CHUNK, "cpu", chunk)
    monkeypatch.setitem(frequency.ROWS, "cpu", rows)
    apart = frequency_scores(seen, keys, blocks, [1e-2])
    assert torch.allclose(whole.positional, apart.positional, atol=2e-5)
    assert torch.allclose(whole.symbolic, apart.symbolic, atol=2e-5)
    assert torch.allclose(whole.effective_swaps, apart.effective_swaps, rtol=1e-3)
    assert torch.allclose(whole.logit_norm, apart.logit_norm)


def test_a_still_plane_is_symbolic_and_a_shared_key_positional() -> None:
    angle = torch.tensor([0.0, 0.7], dtype=torch.float64)
    query = torch.randn(2, 2, dtype=torch.float64)
    keys = torch.randn(9, 2, 2, dtype=torch.float64)
    keys[:, 1] = keys[:1, 1]
    phase = (8 - torch.arange(9)).double()[:, None] * angle
    seen = rs.maths.turn(query, phase.cos(), phase.sin())
    found = frequency_scores(seen[None], keys[None], rs.Blocks.tokens(8), [1e-4])
    assert found.symbolic[0, 0].item() == pytest.approx(1, abs=1e-9)
    assert found.positional[0, 1].item() == pytest.approx(1, abs=1e-9)
    assert math.isfinite(found.positional[0, 0].item())
