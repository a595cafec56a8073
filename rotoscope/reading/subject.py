"""A subject: the model under study, its tokenizer and a name for it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from rotoscope.reading.offloaded import computes_on, each_once, weights
from rotoscope.shapes import Float, Tensor

SAMPLES_PER_WEIGHT = 64
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of so many bytes."""
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
    copies: tuple[Any, ...] = ()
    """The same model on further devices, which score other prompts at the same time."""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the configuration and of a sample of every weight: the same model, or not the same, wherever it is."""
        described = json.loads(self.model.config.to_json_string(use_diff=False))
        for told in ("_name_or_path", "distributed_config"):
            described.pop(told, None)
        for part in described.values():
            if isinstance(part, dict):  # a model within the model: its weights say their dtype themselves
                part.pop("dtype", None)
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        self._add_weights(digest)
        return digest.hexdigest()[:16]

    @property
    def weights_fingerprint(self) -> str:
        """The same of the weights alone, as they are now, with a sum of all bits of each: hardly a change is overlooked."""
        digest = hashlib.sha256()
        self._add_weights(digest)
        for _, weight in weights(self.model):
            bits = weight.contiguous().view(BITS[weight.dtype.itemsize])
            digest.update(str(int(bits.sum(dtype=torch.int64))).encode())
        return digest.hexdigest()[:16]

    def _add_weights(self, digest: Any) -> None:
        for name, weight in weights(self.model):
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            digest.update(_sample(weight, SAMPLES_PER_WEIGHT).numpy().tobytes())

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
