"""Layers that are alike are scored together, and nothing about a score changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rotoscope as rs
from rotoscope.measures import built_in
from rotoscope.measures import scoring as measures
from rotoscope.models.layer import LayerReading, alike, stacked
from rotoscope.models.reader import HeadReader
from rotoscope.scores.swaps import score_swaps
from tests.tables import scores_agree
from tests.tiny_models import tiny, tokens


def read(name: str) -> list[LayerReading]:
    layers: list[LayerReading] = []
    HeadReader(tiny(name)).read(tokens(2, 14), (9, 13), layers.append)
    return layers


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_a_stack_holds_each_layer(name: str) -> None:
    """Inputs of one layer, then those of the other: logits, what is hidden, and sinks."""
    first, between, last = read(name)
    assert alike(first) == alike(last)
    assert alike(first) != alike(between)  # sees through another window
    together = stacked([first, last])
    for index in range(2):
        apart, here = [layer.at(index) for layer in (first, last)], together.at(index)
        assert torch.allclose(here.logits(), torch.cat([one.logits() for one in apart]), atol=1e-5)
        assert torch.allclose(here.real(), torch.cat([one.real() for one in apart]), atol=1e-5)
        if name == "gpt_oss":
            assert torch.equal(here.sinks, torch.cat([one.sinks for one in apart]))
    assert stacked([between]) is between


def test_layers_together_score_as_layers_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two windows, several queries, equal symbols, single frequencies of some heads."""
    sizes: list[int] = []

    def noted(layers: list[LayerReading]) -> LayerReading:
        sizes.append(len(layers))
        return stacked(layers)

    monkeypatch.setattr(measures, "stacked", noted)
    settings: dict[str, Any] = {"queries": [11, 19], "tau": [1e-4, 1e-2], "null": "none", "examples": False}
    found = []
    for room in (0, 2**60):
        sizes.clear()
        monkeypatch.setitem(measures.TOGETHER, "cpu", room)
        shown = tokens(3, 20) % 7 + 3
        whole = rs.profile(tiny("gemma2"), tokens=shown, frequencies=[(0, 1), (2, 0), (2, 3)], **settings)
        found.append((whole, sizes[:]))
    (apart, alone), (together, grouped) = found
    assert (alone, grouped) == ([1, 1, 1], [2, 1])
    assert together.heads.equal_symbol_positional_score.notna().all()
    scores_agree(apart.queries, together.queries)
    scores_agree(apart.frequencies, together.frequencies)


def test_products_are_exact_whatever_training_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noted(*given: Any, **more: Any) -> Any:
        seen.append(torch.get_float32_matmul_precision())
        return score_swaps(*given, **more)

    monkeypatch.setattr(built_in, "score_swaps", noted)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        rs.profile(tiny("llama"), tokens=tokens(1, 12), null="none", examples=False)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}
