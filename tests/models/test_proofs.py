"""A model that was proven before is recognised, and anything that could change its reading is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

import rotoscope as rs
from rotoscope.models import proofs
from rotoscope.models.identity import model_identity
from rotoscope.models.reader import HeadReader
from tests.tiny_models import tiny, tokens


@pytest.fixture
def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small models are remembered as well; an entry for every layer that is proven."""
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(proofs, "SMALL", 0)
    monkeypatch.setattr(proofs, "_readings", {})
    layers: list[int] = []
    right = HeadReader.prove_layer

    def counting(self: HeadReader, site: Any, *args: Any, **options: Any) -> float:
        layers.append(site.layer)
        return right(self, site, *args, **options)

    monkeypatch.setattr(HeadReader, "prove_layer", counting)
    return layers


def reader_of(model: Any, **options: Any) -> HeadReader:
    return HeadReader(model, identity=model_identity(model), **options)


@pytest.mark.parametrize("name", ["llama", "gemma3", "smollm3", "gptj", "gpt_oss"])
@pytest.mark.parametrize("place", ["memory", "file", "neither"])
def test_a_proven_model_reads_the_same_without_a_proof(
    name: str, place: str, proven: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "neither":  # a cache that cannot be written
        monkeypatch.setenv("ROTOSCOPE_CACHE", "/dev/null/x")
    first, model = reader_of(tiny(name)), tiny(name)
    if place == "file":
        proofs._readings.clear()
    proven.clear()
    again = reader_of(model)
    assert proven == []
    assert again.proof == first.proof
    assert (again.head_counts, again.dead_planes, again.way) == (
        first.head_counts,
        first.dead_planes,
        first.way,
    )
    found: list[list[rs.models.LayerReading]] = [[], []]
    for reader, layers in zip((first, again), found, strict=True):
        reader.read(tokens(), (9, 19), layers.append)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.query, other.query)
        assert torch.equal(one.keys, other.keys)


def test_a_proof_is_made_where_it_is_asked_for_or_something_has_changed(
    proven: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")

    def proofs_of(**options: Any) -> int:
        proven.clear()
        reader_of(model, **options)
        return len(proven)

    assert [proofs_of(), proofs_of(), proofs_of(prove=True), proofs_of(prove=False)] == [3, 0, 3, 0]
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.add_(0.1)
    assert [proofs_of(), proofs_of()] == [3, 0]
    right = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda *args, **kwargs: right(*args, **kwargs))
    assert [proofs_of(), proofs_of()] == [3, 0]
    monkeypatch.setattr(proofs, "own_code", lambda folders: "newer")
    assert [proofs_of(), proofs_of()] == [3, 0]
    model.set_attn_implementation("eager")
    assert [proofs_of(), proofs_of()] == [3, 0]

    class Own(type(model)):  # type: ignore[misc]
        """Code that transformers does not have."""

    model.__class__ = Own
    assert [proofs_of(), proofs_of()] == [3, 3]


def test_damaged_entries_and_small_models_are_proven_again(
    proven: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")
    reader_of(model)
    (entry,) = (tmp_path / "proofs").iterdir()
    entry.write_text(entry.read_text()[:100])
    proofs._readings.clear()
    reader_of(model)
    monkeypatch.setattr(proofs, "SMALL", 10**7)
    reader_of(model)
    assert len(proven) == 9


def test_a_second_profile_proves_nothing(proven: list[int]) -> None:
    model, options = tiny("llama"), {"tokens": tokens(2, 10), "null": "none", "examples": False}
    first, second = rs.profile(model, **options), rs.profile(model, **options)
    assert len(proven) == 3
    assert first.run.proof == second.run.proof
    rs.profile(model, **options, prove=True)
    assert len(proven) == 6
