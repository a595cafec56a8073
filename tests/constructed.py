"""Llamas of three layers whose weights are set by hand, so that it is known what their heads follow.

One head a layer. Position 0 holds a start token, the last position a query token, and between them stand symbols. A
**writer** layer attends to everything alike and writes what it gets of the start token, 1 / (position + 1), into the states.
The **reader** in the last layer looks for the smallest such number, in a plane that hardly turns: whoever has it stands last.

With several heads a layer two of the writer layer's are positional, attending to what is near: one writes what it gets of the
start token, the **decoy** nothing. Where no place is written the reader looks for a symbol.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rotoscope.models.chunks import Pass
from rotoscope.models.reader import HeadReader
from rotoscope.tasks.prompt import Prompts, from_tokens

WIDTH, LAYERS, SYMBOLS = 16, 3, 12
START, QUERY = SYMBOLS, SYMBOLS + 1
MARK, ASK, PLACE, COMMON = 9, 10, 11, 12
"""Dimensions of the states: the start token's, the query token's, the one the place is written into, and all tokens'."""
HEADS, WRITER, DECOY = 8, 2, 5
"""Heads a layer where there are several, and which of the writer layer's write a place, or could."""
STILL = WIDTH // 2 - 1
"""A dimension of the slowest plane."""


def places_written(writer: int, *, gain: float = 20.0) -> Any:
    """A model that writes positions into its states at layer `writer` and reads them in its last."""
    model = _blank()
    with torch.no_grad():
        attention = model.model.layers[writer].self_attn
        attention.v_proj.weight[0, MARK] = 1.0
        attention.o_proj.weight[PLACE, 0] = 1.0
        _read(model, PLACE, -1.0, gain)
    return model


def places_written_by_a_head(writer: int, *, gain: float = 100.0) -> Any:
    """The same with eight heads a layer: head `WRITER` of that layer writes the place, `DECOY` attends as it does."""
    model = _blank(HEADS)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, COMMON] = 1.0
        attention = model.model.layers[writer].self_attn
        for head in (WRITER, DECOY):
            for projection in (attention.q_proj, attention.k_proj):
                projection.weight[head * WIDTH + 1, COMMON] = 12.0
        attention.v_proj.weight[WRITER * WIDTH, MARK] = 1.0
        attention.o_proj.weight[PLACE, WRITER * WIDTH] = 1.0
        _read(model, PLACE, -1.0, gain)
        model.model.layers[-1].self_attn.k_proj.weight[STILL, 0] = 0.01
    return model


def symbols_read(*, gain: float = 20.0) -> Any:
    """A model that writes nothing and reads what a symbol is."""
    model = _blank()
    with torch.no_grad():
        _read(model, 0, 1.0, gain)
    return model


def neighbours_read(*, gain: float = 20.0) -> Any:
    """A model whose first layer writes the symbol before into the states, which its last reads: an induction head of sorts."""
    model = _blank()
    with torch.no_grad():
        # Every token is told apart from its neighbours by a sharp look one place back, in the fastest plane.
        model.model.embed_tokens.weight[:, COMMON] = 1.0
        attention = model.model.layers[1].self_attn
        back = torch.tensor([math.cos(1.0), -math.sin(1.0)])  # the query turned by one place
        attention.k_proj.weight[[0, STILL + 1], COMMON] = torch.tensor([30.0, 0.0])
        attention.q_proj.weight[[0, STILL + 1], COMMON] = 30.0 * back
        attention.v_proj.weight[0, 0] = 1.0
        attention.o_proj.weight[PLACE, 0] = 1.0
        _read(model, PLACE, 1.0, gain)
    return model


def symbol_prompts(count: int = 6, length: int = 8, seed: int = 0) -> Prompts:
    """Start, distinct symbols, each of them a block, query."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(SYMBOLS, generator=generator)[:length].tolist() for _ in range(count)]
    return from_tokens([[START, *row, QUERY] for row in rows], [(k, k + 1) for k in range(1, length + 1)])


def _blank(heads: int = 1) -> Any:
    """Three layers that do next to nothing, over embeddings of equal length.

    Queries and keys hold a little noise, in which a reader finds the planes.
    """
    config = LlamaConfig(
        vocab_size=SYMBOLS + 2,
        hidden_size=WIDTH,
        intermediate_size=4,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        head_dim=WIDTH,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
            if "q_proj" in name or "k_proj" in name:
                weight.normal_(std=1e-3, generator=torch.Generator().manual_seed(len(name)))
        embeddings = model.model.embed_tokens.weight
        turns = torch.linspace(0.1, 1.4, SYMBOLS)
        embeddings[:SYMBOLS, 0], embeddings[:SYMBOLS, 1] = 2 * turns.cos(), 2 * turns.sin()
        embeddings[START, MARK] = embeddings[QUERY, ASK] = 2.0
    return model


def _read(model: Any, dimension: int, sign: float, gain: float) -> None:
    """Let the last layer's query ask, in the slowest plane, for much or little of one dimension, and not for itself."""
    attention = model.model.layers[-1].self_attn
    attention.q_proj.weight[STILL, ASK] = gain
    attention.k_proj.weight[STILL, dimension] = sign
    attention.k_proj.weight[STILL, ASK] = -5.0


def remembering(model: Any) -> Any:
    """A model whose last layer takes something from the first, past those between, unless they are stepped over."""
    first, last = model.model.layers[0], model.model.layers[-1]
    first.register_forward_hook(lambda module, args, out: setattr(last, "remembered", out))
    last.register_forward_hook(
        lambda module, args, out: out + module.remembered.flip(1) if "forward" not in vars(module) else out
    )
    return model


def first_for_last(reader: HeadReader) -> HeadReader:
    """A reader broken on purpose: it shows what the first position attends to, whatever is asked for."""
    right = reader._heads
    reader._heads = lambda *given, **how: right(*given[:3], Pass((0,)), **how)  # type: ignore[method-assign]
    return reader
