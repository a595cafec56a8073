"""Rotary tables that transformers makes anew for long inputs are no edits; edits of them are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from rotoscope.models.identity import model_identity
from tests.tiny_models import GROUPED, LLAMA3, tokens

Model = Any


GROWING: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    "llama3": LLAMA3,
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 16,
    },
}


def growing(rope: dict[str, Any]) -> Model:
    config = tf.LlamaConfig(**{**GROUPED, "max_position_embeddings": 16}, rope_parameters=rope)
    return tf.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("rope", GROWING.values(), ids=GROWING)
def test_a_long_input_leaves_no_trace(rope: dict[str, Any]) -> None:
    model = growing(rope)
    before = model_identity(model)
    for length in (40, 60, 8):
        with torch.no_grad():
            model(tokens(1, length))
        assert model_identity(model) == before


@pytest.mark.parametrize("table", ["inv_freq", "original_inv_freq"])
@pytest.mark.parametrize("rope", GROWING.values(), ids=GROWING)
def test_an_edited_table_is_noticed_where_tables_grow(rope: dict[str, Any], table: str) -> None:
    for length in (8, 40):
        model = growing(rope)
        with torch.no_grad():
            model(tokens(1, length))
        before = model_identity(model)
        getattr(model.model.rotary_emb, table)[3] *= 1.01
        assert model_identity(model) != before


def test_an_edited_table_for_long_inputs_is_noticed() -> None:
    model = growing(GROWING["longrope"])
    with torch.no_grad():
        model(tokens(1, 8))
    before = model_identity(model)
    model.model.rotary_emb.long_inv_freq *= 1.01
    assert model_identity(model) != before
