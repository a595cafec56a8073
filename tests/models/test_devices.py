"""Models whose layers lie on several devices are read where each layer is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import dispatch_model

import rotoscope as rs
from tests.tables import scores_agree
from tests.tiny_models import tiny, tokens

DEVICES = [
    "cpu",  # accelerate's hooks around every module, and nothing to move
    pytest.param(
        "cuda:0",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ],
    ),
]
ENDS = {
    "llama": ("model.layers", ("model.embed_tokens", "model.rotary_emb"), ("model.norm", "lm_head")),
    "gemma2": ("model.layers", ("model.embed_tokens", "model.rotary_emb"), ("model.norm", "lm_head")),
    "gptj": ("transformer.h", ("transformer.wte",), ("transformer.ln_f", "lm_head")),
}


def spread(name: str, device: str) -> Any:
    """The model begins on one device, changes it with every layer and ends on the CPU; weights stay where they are."""
    layers, first, last = ENDS[name]
    where: dict[str, Any] = dict.fromkeys(first, device) | dict.fromkeys(last, "cpu")
    where |= {f"{layers}.{k}": "cpu" if k % 2 == 0 else device for k in range(3)}
    return dispatch_model(tiny(name, tie_word_embeddings=False), where, main_device="cpu", force_hooks=True)


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("device", DEVICES)
def test_layers_on_two_devices(device: str, name: str) -> None:
    settings: dict[str, Any] = {
        "tokens": tokens(1, 12),
        "tau": [1e-4, 1e-2],
        "null": "none",
        "frequencies": True,
    }
    model = spread(name, device)
    assert {weight.device.type for weight in model.parameters()} == {"cpu", torch.device(device).type}
    whole = rs.profile(tiny(name, tie_word_embeddings=False), **settings)
    apart = rs.profile(model, **settings)
    scores_agree(whole.heads, apart.heads)
    scores_agree(whole.frequencies, apart.frequencies)
    assert apart.run.proof.layers == 3
