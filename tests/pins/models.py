"""Tiny models whose weights depend on the names and shapes of the parameters alone, and a tokenizer of numbered words."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel

WORDS = 128
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": WORDS,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WINDOWED = {**GROUPED, "head_dim": 16, "sliding_window": 8}
GEMMA = {**WINDOWED, "query_pre_attn_scalar": 16}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GPTJ = {"vocab_size": WORDS, "n_positions": 512, "n_embd": 64, "n_layer": 3, "n_head": 4, "rotary_dim": 8}

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "llama": lambda: tf.LlamaConfig(**GROUPED, rope_parameters=SCALED),
    "qwen3": lambda: tf.Qwen3Config(**GROUPED, head_dim=16),
    "mistral": lambda: tf.MistralConfig(**WINDOWED),
    "gemma2": lambda: tf.Gemma2Config(**GEMMA, attn_logit_softcapping=2.0),
    "gemma3": lambda: tf.Gemma3TextConfig(**GEMMA, layer_types=["sliding_attention"] * 2 + ["full_attention"]),
    "gpt_oss": lambda: tf.GptOssConfig(**WINDOWED, num_local_experts=4, num_experts_per_tok=2),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**SIZES, rotary_pct=0.25),
    "gptj": lambda: tf.GPTJConfig(**GPTJ, bos_token_id=1, eos_token_id=2),
}
"""Scaled angles, normed queries, windows, a soft-cap that bites, two rotations, sinks, and partial rotary of two kinds."""


def tiny(name: str) -> Any:
    """A model whose attention is far from uniform."""
    model = tf.AutoModelForCausalLM.from_config(ARCHITECTURES[name]()).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=_generator(parameter_name))
            if parameter.ndim > 1:
                parameter.copy_(0.15 * noise)
            else:
                parameter.copy_(0.2 * noise + (1.0 if parameter_name.endswith("weight") else 0.0))
    return model


def _generator(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def tokens(count: int, n: int) -> torch.Tensor:
    """Random words, none of the special ones."""
    return torch.randint(3, WORDS, (count, n), generator=_generator("tokens"))


def tokenizer() -> Any:
    words = {f"w{k}": k for k in range(3, WORDS)} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    raw = Tokenizer(WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
