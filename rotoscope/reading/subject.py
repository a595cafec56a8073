"""A subject: the model under study, its tokenizer and a name for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from rotoscope.reading.identity import hook_warnings, model_identity, weights_identity
from rotoscope.reading.offloaded import computes_on, each_once, weights
from rotoscope.shapes import Float, Tensor

SAMPLED = 1024
"""Numbers that stand for all weights of a model where checkpoints are compared; at least one of every matrix."""


@dataclass(frozen=True, repr=False)
class Subject:
    """A transformers model with its tokenizer, if it has one. `source` says where it came from, in plain words.

    `warnings` are sentences about the model itself that belong into everything that is made with it.
    """

    model: Any
    tokenizer: Any
    name: str
    source: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Which model this is, as it is now: see `identity`. Computed anew each time, since weights may have been changed."""
        return model_identity(self.model)

    @property
    def settings(self) -> dict[str, Any]:
        """The model as it stands among a run's settings, with the rotary settings it was loaded with, if any."""
        rope = {"rope": self.source["rope"]} if "rope" in self.source else {}
        return {"model": self.name, "fingerprint": self.fingerprint, **rope}

    @property
    def weights_fingerprint(self) -> str:
        """The same of the weights alone, for checkpoints of one training."""
        return weights_identity(self.model)

    @property
    def caveats(self) -> list[str]:
        """What belongs into everything made with this model as it is now: its warnings, and hooks that somebody has put on it."""
        return [*self.warnings, *hook_warnings(self.model)]

    def sampled_weights(self) -> Float[Tensor, "weight"]:
        """The same few numbers of every matrix, for distances between checkpoints of one model.

        Gains and biases are left out: they are few, large, and go back and forth in training.
        """
        matrices = sum(weight.ndim > 1 for _, weight in each_once(self.model))
        parts = [
            _sample(weight, max(1, SAMPLED // matrices)) for _, weight in weights(self.model) if weight.ndim > 1
        ]
        return torch.cat(parts)

    @property
    def device(self) -> torch.device:
        """Where the model begins: the device of its first parameter, or the one that is brought to."""
        return computes_on(self.model)

    def __repr__(self) -> str:
        config = self.model.config
        layers = getattr(config.get_text_config(), "num_hidden_layers", "unknown")
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"Subject({self.name!r}: {config.model_type}, {layers} layers, {self.device}, {dtype})"


def _sample(weight: Tensor, count: int) -> Float[Tensor, "weight"]:
    """At most so many numbers, evenly spread."""
    flat = weight.detach().flatten()
    return flat[:: max(1, flat.numel() // count)][:count].to("cpu", torch.float64)
