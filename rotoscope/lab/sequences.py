"""From training settings to what is trained: the sequences of each part, and the sizes of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from rotoscope.lab.gptj import GPTJShape
from rotoscope.settings import TrainSettings
from rotoscope.settings.angles import layer_ids
from rotoscope.tasks.multihop import MULTIHOP, MultiHops

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")


def training_sequences(
    settings: TrainSettings, part: Part, device: str | torch.device = "cpu", count: int | None = None
) -> MultiHops:
    """One of the three parts: rows of one dataset that do not overlap."""
    sizes = {name: int(getattr(settings, f"{name}_sequences")) for name in PARTS}
    first = sum(sizes[name] for name in PARTS[: PARTS.index(part)])
    own = ("letters",) if settings.task == "number" else ("alphabet", "digits")
    return MULTIHOP[settings.task](
        sizes[part] if count is None else min(count, sizes[part]),
        hops=settings.hops,
        target=settings.target,
        window=settings.window,
        seed=settings.seed,
        first=first,
        device=device,
        **{name: getattr(settings, name) for name in own},
    )


def token_bytes(settings: TrainSettings, part: Part, length: int) -> int:
    """The tokens of one of the parts, each an int64."""
    return 8 * length * int(getattr(settings, f"{part}_sequences"))


def model_shape(settings: TrainSettings, vocabulary: int) -> GPTJShape:
    """The sizes of the model these settings train."""
    head = settings.width // settings.heads
    shape = GPTJShape(
        vocabulary,
        settings.layers,
        settings.heads,
        settings.width,
        head if settings.rotary is None else settings.rotary,
        settings.nope,
        settings.positions,
        settings.dropout,
        settings.base,
    )
    return replace(shape, ids=layer_ids(settings.angles, shape.layers, shape.rotary // 2, shape.nope))
