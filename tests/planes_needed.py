"""A llama of one layer whose two key heads need one known plane each, and a text that it can go on with.

The text goes back and forth between two words, so that the next word is the one before the last. Both heads look one position back, key
head 0 by its fastest plane, key head 1 by the one after it. A slow plane of either is much larger and tells nothing: a **decoy**.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rotoscope as rs
from tests.models.test_load import word_tokenizer

NEEDED = {0: 1, 1: 2}
"""The frequency id that each key head needs."""
DECOY = 8
PLANES, WIDTH = 8, 64
COMMON, READ = 63, 32
"""Dimensions of the states: one that all tokens have, and the first of those that the layer writes into."""
WORDS = range(3, 13)


def planes_needed(gain: float = 60.0, decoy: float = 180.0) -> rs.Subject:
    """The model, with a tokenizer."""
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=WIDTH,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=2 * PLANES,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 256.0},
    )
    model = LlamaForCausalLM(config).eval()
    size = (WIDTH / 2) ** 0.5  # of each of the two numbers a token has, behind the norm
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
            if "q_proj" in name or "k_proj" in name:
                weight.normal_(std=1e-3, generator=torch.Generator().manual_seed(len(name)))
        model.model.embed_tokens.weight[:, COMMON] = 1.0
        attention = model.model.layers[0].self_attn
        scaled = (2 * PLANES) ** 0.25 / size
        for head, plane in NEEDED.items():
            first = head * 2 * PLANES
            angle = torch.tensor(2.0 ** (1 - plane))
            for k, strength, turn in ((plane - 1, gain, angle), (DECOY - 1, decoy, torch.tensor(0.0))):
                attention.q_proj.weight[first + k, COMMON] = strength**0.5 * scaled
                attention.k_proj.weight[first + k, COMMON] = strength**0.5 * scaled * turn.cos()
                attention.k_proj.weight[first + k + PLANES, COMMON] = strength**0.5 * scaled * turn.sin()
            for k, word in enumerate(WORDS):
                model.model.embed_tokens.weight[word, word] = 1.0
                attention.v_proj.weight[first + k, word] = 1.0
                attention.o_proj.weight[READ + k, first + k] = 1.0
                model.lm_head.weight[word, READ + k] = 1.0
    return rs.load((model, word_tokenizer()), name="planes needed")


def there_and_back(seed: int = 0) -> str:
    """Two words in turn, for a while, then two others."""
    dice, words = random.Random(seed), []
    for _ in range(40):
        words += dice.sample(list(WORDS), 2) * 30
    return " ".join(f"w{word}" for word in words)


def settings(text: Any) -> dict[str, Any]:
    """A plan that judges by such a text."""
    return {"sources": ("text",), "text": text, "passage": 12, "prompts": 6, "show_progress": False}
