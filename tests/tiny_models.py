"""Tiny random models of every architecture the reader must prove itself on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import transformers as tf

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
FIVE = {**GROUPED, "num_hidden_layers": 5}  # enough layers to hold one without rotation
GPTJ = {
    "vocab_size": 128,
    "n_positions": 512,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
GEMMA = {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "llama": lambda: tf.LlamaConfig(**GROUPED),
    "llama-3 scaling": lambda: tf.LlamaConfig(**GROUPED, rope_parameters=LLAMA3),
    "llama yarn": lambda: tf.LlamaConfig(**GROUPED, rope_parameters=YARN),
    "qwen2": lambda: tf.Qwen2Config(**GROUPED),
    "qwen3": lambda: tf.Qwen3Config(**GROUPED, head_dim=16),
    "gemma2": lambda: tf.Gemma2Config(**GROUPED, **GEMMA),
    "gemma3": lambda: tf.Gemma3TextConfig(**GROUPED, **GEMMA),
    "mistral": lambda: tf.MistralConfig(**GROUPED, sliding_window=8),
    "phi": lambda: tf.PhiConfig(**SIZES, partial_rotary_factor=0.5),
    "phi3": lambda: tf.Phi3Config(**GROUPED),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**SIZES, rotary_pct=0.25),
    "olmo2": lambda: tf.Olmo2Config(**GROUPED),
    "stablelm": lambda: tf.StableLmConfig(**GROUPED),
    "granite": lambda: tf.GraniteConfig(**GROUPED),
    "cohere": lambda: tf.CohereConfig(**GROUPED),
    "cohere2": lambda: tf.Cohere2Config(**FIVE, sliding_window=8),
    "smollm3": lambda: tf.SmolLM3Config(**FIVE),
    "glm4": lambda: tf.Glm4Config(**GROUPED, head_dim=16),
    "gpt_oss": lambda: tf.GptOssConfig(
        **GROUPED, head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2
    ),
    "deepseek_v3": lambda: tf.DeepseekV3Config(**{**SIZES, **MLA}),
    "llama4": lambda: tf.Llama4TextConfig(
        **{**GROUPED, "num_hidden_layers": 4},
        head_dim=16,
        num_local_experts=2,
        intermediate_size_mlp=64,
        attention_chunk_size=8,
    ),
    "gptj": lambda: tf.GPTJConfig(**GPTJ, rotary_dim=8),
    "codegen": lambda: tf.CodeGenConfig(**GPTJ, rotary_dim=8),
}

TYPICAL = ("llama", "gemma2", "phi", "cohere", "gpt_oss", "gptj", "deepseek_v3")
"""Half-split, with soft-caps and windows, partial, interleaved, with sinks, from a table, with latent keys."""


def typical_first(names: Iterable[str]) -> list[Any]:
    """Parameters of a test: the typical architectures in the quick tests, all of them in the slow ones."""
    return [name if name in TYPICAL else pytest.param(name, marks=pytest.mark.slow) for name in names]


EACH = typical_first(ARCHITECTURES)
PICTURES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 28,
    "patch_size": 14,
}
THREE_AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
QWEN_PICTURES = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}
OTHERS: dict[str, Callable[[], Any]] = {
    "modernbert": lambda: tf.ModernBertForMaskedLM(encoder()),
    "modernbert without a head": lambda: tf.ModernBertModel(encoder()),
    "llama without a head": lambda: tf.LlamaModel(tf.LlamaConfig(**GROUPED)),
    "llava": lambda: tf.LlavaForConditionalGeneration(
        tf.LlavaConfig(
            text_config=tf.LlamaConfig(**GROUPED), vision_config=tf.CLIPVisionConfig(**PICTURES), image_token_index=5
        )
    ),
    "smolvlm": lambda: tf.SmolVLMForConditionalGeneration(
        tf.SmolVLMConfig(text_config=tf.LlamaConfig(**GROUPED), vision_config=PICTURES, image_token_id=5)
    ),
    "qwen2_vl": lambda: tf.Qwen2VLForConditionalGeneration(
        tf.Qwen2VLConfig(
            text_config={**GROUPED, "rope_parameters": THREE_AXES}, vision_config=QWEN_PICTURES, image_token_id=5,
            video_token_id=6, vision_start_token_id=7, vision_end_token_id=8,
        )
    ),
}  # fmt: skip
"""Models that are no plain language models: encoders, backbones, models of pictures and text."""


def encoder(**changes: Any) -> Any:
    """Sees 4 positions to each side in two layers of three, everything in the first."""
    return tf.ModernBertConfig(**SIZES, local_attention=8, cls_token_id=1, sep_token_id=2, **changes)


def other(name: str, *, seed: int = 0, sharp: float = 5.0) -> Any:
    """One of `OTHERS`, as far from uniform as `tiny`."""
    torch.manual_seed(seed)
    return sharpened(OTHERS[name]().eval(), sharp)


def tiny(name: str, *, seed: int = 0, sharp: float = 5.0, **changes: Any) -> Any:
    """A random model whose attention is far from uniform, so that a wrong reading cannot look right."""
    config = ARCHITECTURES[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    return from_config(config, seed, sharp)


def from_config(config: Any, seed: int = 0, sharp: float = 5.0) -> Any:
    torch.manual_seed(seed)
    return sharpened(tf.AutoModelForCausalLM.from_config(config).eval(), sharp)


def sharpened(model: Any, sharp: float) -> Any:
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.mul_(sharp)
            else:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def tokens(count: int = 2, n: int = 20, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 128, (count, n), generator=torch.Generator().manual_seed(seed))
