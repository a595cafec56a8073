"""Llama models of any size with random weights, prompts for them, and what scoring and plain passes take."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from benchmarks.floor import wait
from rotoscope.measures.batches import Batch, batches
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.reader import HeadReader
from rotoscope.tasks.prompt import from_tokens

TAU = 1e-4
BLOCK = 8
REPEATS = 3
MOST_SECONDS = 8.0
"""After so long a row is measured no more often."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama model."""

    name: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int = 128_256
    positions: int = 65_536

    @property
    def planes(self) -> int:
        return self.layers * self.heads * self.head_dim // 2


def make_model(shape: Shape, device: torch.device) -> Any:
    """Random weights in bfloat16, made on the device."""
    config = transformers.LlamaConfig(
        hidden_size=shape.hidden, num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads, head_dim=shape.head_dim, intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary, max_position_embeddings=shape.positions,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": shape.positions // 8,
        },
    )  # fmt: skip
    torch.manual_seed(0)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    return model.eval()


def make_batch(vocabulary: int, prompts: int, n: int, blocks: int | None = None) -> Batch:
    """Random tokens; blocks of 8 tokens everywhere but at both ends, or so many as fill the same room."""
    ids = torch.randint(3, vocabulary, (prompts, n), generator=torch.Generator().manual_seed(n))
    first, last = 16, n - 20
    long = BLOCK if blocks is None else (last - first) // blocks
    spans = [(p, p + long) for p in range(first, last, long)][:blocks]
    return batches(from_tokens(ids, spans), "last", prompts * n)[0]


def score(reader: HeadReader, batch: Batch, *, planes: bool) -> None:
    score_batch(reader, batch, Scoring((TAU,), frequencies=planes), None)


def forward(model: Any, tokens: torch.Tensor) -> None:
    with torch.inference_mode():
        model(tokens, use_cache=False, logits_to_keep=1)


@dataclass
class Measured:
    """What one function took; an error, where it failed."""

    seconds: float | None = None
    gigabytes: float | None = None
    """At its peak, without what was held before; on a GPU."""
    error: str | None = None


def measure(
    functions: Sequence[Callable[[], object]], device: torch.device, most: float = MOST_SECONDS
) -> list[Measured]:
    """In turns, after a warm-up that memory is taken of: the best of several tries, of one where they are long."""
    found = [_warm_up(function, device) for function in functions]
    tries: list[list[float]] = [[] for _ in functions]
    began = time.perf_counter()
    for repeat in range(REPEATS):
        if repeat and (time.perf_counter() - began) * (repeat + 1) / repeat > most:
            break
        for one, times, function in zip(found, tries, functions, strict=True):
            if one.error is None:
                times.append(_timed(function, device))
    for one, times in zip(found, tries, strict=True):
        one.seconds = min(times, default=None)
    return found


def _warm_up(function: Callable[[], object], device: torch.device) -> Measured:
    """The first time, with the memory it takes; what goes wrong is noted, and the rest goes on."""
    free(device)
    on_gpu = device.type == "cuda"
    held = torch.cuda.memory_allocated(device) if on_gpu else 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    try:
        _timed(function, device)
    except Exception as problem:
        return Measured(error=f"{type(problem).__name__}: {str(problem).splitlines()[0]}")
    return Measured(gigabytes=(torch.cuda.max_memory_allocated(device) - held) / 1e9 if on_gpu else None)


def _timed(function: Callable[[], object], device: torch.device) -> float:
    wait(device)
    began = time.perf_counter()
    function()
    wait(device)
    return time.perf_counter() - began


def free(device: torch.device) -> None:
    """Give a GPU's memory back."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
