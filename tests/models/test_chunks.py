"""A prompt that runs through a model in chunks is read as one that runs whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rotoscope as rs
from rotoscope.models import chunks
from rotoscope.models.layer import LayerReading
from rotoscope.models.reader import HeadReader
from tests.tables import scores_agree
from tests.tiny_models import EACH, other, tiny, tokens


def read(reader: HeadReader, size: int, queries: tuple[int, ...], keep: tuple[int, ...] = (3, -1)) -> Any:
    layers: list[LayerReading] = []
    return reader.read(tokens(2, 20), queries, layers.append, keep, size=size), layers


@pytest.mark.parametrize("name", EACH)
def test_every_architecture_is_read_alike(name: str) -> None:
    """Queries in the first, a middle and the last chunk; what windows hide stays hidden."""
    reader = HeadReader(tiny(name), prove=False)
    assert reader.direct
    queries = (4, 9, 19)
    (whole, layers), (parts, found) = read(reader, 0, queries), read(reader, 7, queries)
    assert torch.allclose(whole, parts, atol=1e-5)
    assert [layer.layer for layer in found] == [layer.layer for layer in layers]
    for one, two in zip(layers, found, strict=True):
        assert torch.equal(one.visible, two.visible)
        assert one.hides == two.hides
        for part in ("query", "keys", "residual_norm", "cos", "sin"):
            assert torch.allclose(getattr(one, part), getattr(two, part), atol=2e-5), part
        assert torch.allclose(one.attention(), two.attention(), atol=1e-5)
    assert chunks.same_in_chunks(reader)


def test_a_last_chunk_of_one_token() -> None:
    """Which comes without a mask: it sees everything before it."""
    reader = HeadReader(tiny("llama"), prove=False)
    (_, layers), (_, found) = read(reader, 0, (19,)), read(reader, 19, (19,))
    assert torch.equal(layers[0].visible, found[0].visible)
    assert torch.allclose(layers[2].attention(), found[2].attention(), atol=1e-5)


@pytest.mark.parametrize("name", ["mistral", pytest.param("gemma2", marks=pytest.mark.slow), "gptj"])
def test_scores_do_not_depend_on_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {
        "tokens": tokens(2, 40),
        "null": "gaussian",
        "null_draws": 2,
        "tau": 1e-2,
        "frequencies": True,
    }
    whole = rs.profile(tiny(name), **how)
    sizes: list[int] = []
    run = chunks.Chunks.run

    def counted(self: Any, tokens: Any, keep: Any, size: int) -> Any:
        sizes.append(size)
        return run(self, tokens, keep, size)

    monkeypatch.setattr(chunks.Chunks, "run", counted)
    monkeypatch.setattr("rotoscope.models.reader.chunk_size", lambda reader, n: 16)
    parts = rs.profile(tiny(name), **how)
    assert sizes[0] == chunks.TRIED
    assert sizes.count(16) >= 2
    for table in ("prompts", "frequencies", "null_prompts"):
        one, two = (getattr(p, table) if hasattr(p, table) else p.tables[table] for p in (whole, parts))
        scores_agree(one, two)
    assert np.allclose(*(np.stack(p.attention["attention"]) for p in (whole, parts)), atol=1e-5)


def test_no_mask_of_all_pairs_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model with a window, whose masks would grow with the square of the tokens."""
    monkeypatch.setattr(chunks, "ROOM", chunks.MASK_BYTES * 512 * 64)
    reader = HeadReader(tiny("mistral"))
    largest: list[int] = []
    inner = chunks.visible_under

    def looked(mask: Any, *args: Any, **how: Any) -> Any:
        largest.append(0 if mask is None else mask.numel())
        return inner(mask, *args, **how)

    monkeypatch.setattr(chunks, "visible_under", looked)
    reader.read(tokens(1, 512), (511,), lambda layer: None, size=None)
    assert 0 < max(largest) <= 64 * 512


def test_who_runs_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows make masks, eager attention makes weights; a plain causal model makes neither and runs whole."""
    monkeypatch.setattr(chunks, "ROOM", 2**16)
    windowed, plain = HeadReader(tiny("mistral"), prove=False), HeadReader(tiny("llama"), prove=False)
    assert chunks.chunk_size(plain, 100_000) is None
    assert chunks.chunk_size(windowed, 8) is None, "nothing is hidden yet"
    assert chunks.chunk_size(windowed, 512) == chunks.SMALLEST
    assert chunks.chunk_size(windowed, 60) is None, "there is room for all"
    plain.model.set_attn_implementation("eager")
    assert chunks.chunk_size(plain, 512) == chunks.SMALLEST
    assert HeadReader(other("modernbert"))._chunk(512) == 0, "an encoder looks ahead"


def test_a_model_that_reads_otherwise_in_chunks_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("mistral")
    reader = HeadReader(model)
    forward = model.forward

    def forgets(*args: Any, past_key_values: Any = None, use_cache: bool = False, **kwargs: Any) -> Any:
        return forward(*args, use_cache=False, **kwargs)

    monkeypatch.setattr("rotoscope.models.reader.chunk_size", lambda reader, n: 8)
    assert reader._chunk(20) == 8
    other_reader = HeadReader(model)
    monkeypatch.setattr(type(model), "forward", lambda self, *a, **k: forgets(*a, **k))
    assert other_reader._chunk(20) == 0
