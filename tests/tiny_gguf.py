"""A tiny GGUF file: a random Llama with a byte-pair tokenizer, written tensor by tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WIDTH, HEADS, LAYERS, INNER = 64, 4, 2, 96
CHARACTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
VOCABULARY = ["<pad>", "<s>", "</s>", *CHARACTERS, "Ġ", *(f"{c}a" for c in CHARACTERS)]


def tensors() -> dict[str, np.ndarray]:
    """Every tensor of the model by its name in a GGUF file."""
    shapes = {"token_embd.weight": (len(VOCABULARY), WIDTH), "output_norm.weight": (WIDTH,)}
    shapes["output.weight"] = shapes["token_embd.weight"]
    for k in range(LAYERS):
        shapes |= {f"blk.{k}.attn_{part}.weight": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
        shapes |= {f"blk.{k}.{part}_norm.weight": (WIDTH,) for part in ("attn", "ffn")}
        shapes |= {f"blk.{k}.ffn_{part}.weight": (INNER, WIDTH) for part in ("gate", "up")}
        shapes[f"blk.{k}.ffn_down.weight"] = (WIDTH, INNER)
    draw = np.random.default_rng(0)
    return {name: draw.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(file: Path, without: tuple[str, ...] = (), start: bool | None = None) -> Path:
    """The file, without the tensors of these names; `start` says whether texts begin with the start token."""
    import gguf

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3, 3] + [1] * (len(VOCABULARY) - 3))
    writer.add_token_merges([f"{c} a" for c in CHARACTERS])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    if start is not None:
        writer.add_add_bos_token(start)
    for name, values in tensors().items():
        if name not in without:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
