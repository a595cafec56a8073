"""What work is expected to take before it starts, and the one rule for what is too much.

Estimates are rough: they tell minutes from days, and a machine that is large enough from one that is not. Work that does not
fit what is free, or would take days, is refused with its figures; whoever means it says so (`force`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rotoscope.errors import TooLargeError
from rotoscope.maths.kernels import fused
from rotoscope.reading.devices import free_memory

DAY = 86_400.0
MOST_SECONDS = 2 * DAY
OPERATIONS = {"cpu": 2e10, "cuda": 5e12}
"""Floating-point operations a second that small models reach, on two CPU cores and on a GPU."""


@dataclass(frozen=True)
class Speed:
    """What running and scoring a model takes on a kind of device, with one form of the scores; seconds unless said otherwise."""

    words: str
    """As an estimate says it."""
    operations: float
    """Floating-point operations a second of a forward pass."""
    half_operations: float
    """The same in half precision."""
    layer: float
    """Of every layer of a forward pass, however small it is."""
    scored_layer: float
    """Of every layer that is scored, however small it is, for a whole batch."""
    swap: float
    """Of one head on one pair of blocks."""
    entry: float
    """Of one head on one block at one position, where blocks have several tokens."""
    row: float
    """Of one head on one prompt, for its row of the table."""
    plane_logit: float
    """Of one plane on one block at one position."""
    weight: float
    """Of one weight of a random null, to be drawn."""
    holds_logits: bool = True
    """Whether logits of swaps are held in memory; fused kernels keep them in registers."""
    few_heads: bool = False
    """Whether, with blocks of equal length, they are held of a few heads at a time."""
    plane_bytes: float = 0.0
    """What single frequencies hold in memory, whatever their number."""


SPEEDS = {
    # SmolLM2-135M in float32, blocks of 4 tokens, 512 and 1,024 tokens: benchmarks/swaps.py.
    "cpu": Speed(
        words="two CPU cores", operations=1.5e11, half_operations=4e10, layer=1e-3, scored_layer=0.0,
        swap=1e-8, entry=4e-9, row=3e-5, plane_logit=1e-9, weight=1e-8, few_heads=True,
    ),
    # Llama-8B shape in bfloat16 on an H200, blocks of 8 tokens, 512 to 32,768 tokens: benchmarks/gpu.py. A forward pass of
    # 2,048 tokens takes 60 ms; scoring 18 ms a layer and 0.09 ns an entry; all 65,536 planes of a prompt 1.4 to 2.1 s.
    "gpu": Speed(
        words="a GPU without fused kernels", operations=4e13, half_operations=5.5e14, layer=2e-4, scored_layer=1.8e-2,
        swap=1e-10, entry=9e-11, row=1e-6, plane_logit=5e-11, weight=1e-10, plane_bytes=1.5e9,
    ),
    # The same card and model: scoring takes 33 ms at 2,048 tokens, 16 ms a prompt of eight, 0.1 s at 8,192 and 0.8 s at
    # 32,768; all planes 30 to 35 ms a prompt at 2,048 and 0.29 s at 8,192.
    "fused": Speed(
        words="a GPU with fused kernels", operations=4e13, half_operations=5.5e14, layer=2e-4, scored_layer=5e-4,
        swap=1e-11, entry=6e-12, row=8e-6, plane_logit=8e-13, weight=1e-10, holds_logits=False,
    ),
}  # fmt: skip


def speed_on(device: torch.device) -> Speed:
    """The speed that is expected on a device, with the form of the scores that is chosen there."""
    if device.type != "cuda":
        return SPEEDS["cpu"]
    return SPEEDS["fused" if fused(device) else "gpu"]


@dataclass(frozen=True)
class Cost:
    """What is expected of work, on top of what is taken already."""

    what: str
    """The work in a few words, with its numbers."""
    gigabytes: float
    seconds: float
    instead: str
    """What to ask for instead."""

    def check(self, device: torch.device, *, force: bool) -> None:
        """Refuse what does not fit what is free on a device, or would take days, unless it was asked for all the same."""
        free = free_memory(device)
        found = []
        if free is not None and self.gigabytes > free / 1e9:
            found.append(
                f"{self.gigabytes:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free on {device.type}"
            )
        if self.seconds > MOST_SECONDS:
            found.append(f"{how_long(self.seconds)} on {device.type}")
        if found and not force:
            raise TooLargeError(
                f"{self.what} would take about {'; and '.join(found)}: {self.instead}, or say that you mean it "
                "(--force, force=True)"
            )


def operations_per_second(device: torch.device) -> float:
    return OPERATIONS.get(device.type, OPERATIONS["cpu"])


def forward_operations(model: Any, n: int) -> float:
    """One prompt of n tokens through a transformers model."""
    config = model.config.get_text_config()
    weights = sum(weight.numel() for weight in model.parameters())
    return 2.0 * n * (weights + 2 * n * size_of(config, "hidden_size") * size_of(config, "num_hidden_layers"))


def forward_seconds(model: Any, n: int, device: torch.device, together: int = 1) -> float:
    """One of several prompts of n tokens that run through a transformers model together."""
    speed = speed_on(device)
    half = next(model.parameters()).dtype.itemsize <= 2
    layers = size_of(model.config.get_text_config(), "num_hidden_layers")
    operations = forward_operations(model, n) / (speed.half_operations if half else speed.operations)
    return operations + layers * speed.layer / together


def size_of(config: Any, name: str, default: int = 1) -> int:
    """A size from a model's configuration; the largest, where layers differ."""
    found = getattr(config, name, None)
    sizes = [size for size in (found if isinstance(found, list | tuple) else [found]) if isinstance(size, int)]
    return max(sizes, default=default) or default


def how_long(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size, most in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, MOST_SECONDS)):
        if seconds <= most:
            return f"{seconds / size:,.0f} {unit}"
    days = seconds / DAY
    return f"{days:,.0f} days" if days < 1000 else f"{days / 365:,.0f} years"
