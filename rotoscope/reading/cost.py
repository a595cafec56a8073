"""What work is expected to take before it starts, and the one rule for what is too much.

Estimates are rough: they tell minutes from days, and a machine that is large enough from one that is not. Work that does not
fit what is free, or would take days, is refused with its figures; whoever means it says so (`force`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rotoscope.errors import TooLargeError
from rotoscope.reading.devices import free_memory

DAY = 86_400.0
MOST_SECONDS = 2 * DAY
OPERATIONS = {"cpu": 2e10, "cuda": 5e12}
"""Floating-point operations a second that small models reach, on two CPU cores and on a GPU."""


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
            found.append(f"{_long(self.seconds)} on {device.type}")
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


def size_of(config: Any, name: str, default: int = 1) -> int:
    """A size from a model's configuration; the largest, where layers differ."""
    found = getattr(config, name, None)
    sizes = [size for size in (found if isinstance(found, list | tuple) else [found]) if isinstance(size, int)]
    return max(sizes, default=default) or default


def _long(seconds: float) -> str:
    days = seconds / DAY
    return f"{days:,.0f} days" if days < 1000 else f"{days / 365:,.0f} years"
