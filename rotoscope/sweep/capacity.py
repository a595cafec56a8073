"""Capacity on paper: the time, memory and disk of profiles of many models, from their shapes alone.

The same figures and formulas that estimate a profile before it starts (`reading.cost`, `analysis.estimate`), written out
for devices that are not here. A forward pass of n tokens takes

    2 n (weights + 2 n width layers) / operations a second + layers * t_layer,

and scoring it, with m blocks that are swapped, layers * (heads * (t_swap m² + t_entry m n + t_row) + t_scored). Every draw of
a null takes as much again, and its weights have to be drawn. Models that no card holds are spread over as many as hold their
weights; layers run one after the other, so that more cards make nothing faster, and every card counts for the whole time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from rotoscope.analysis.estimate import BATCH_TOKENS, BYTES_PER_ROW, RUNTIME, SMALL_THINGS, Layer
from rotoscope.reading.cost import SPEEDS, Speed, how_long
from rotoscope.sweep.estimates import FILES, HEAD_BYTES, READ_S, ROW_BYTES, STARTING_S

HALF, WHOLE = 2, 4
"""Bytes of a weight."""
WORKING = 1.15
"""Memory of a card beside weights: room for activations and for what the allocator does not give back."""
DAYS = 86_400.0


@dataclass(frozen=True)
class Shape:
    """A decoder with rotary positions and a gated feed-forward part, as most language models are."""

    name: str
    layers: int
    width: int
    heads: int
    key_heads: int
    wide: int
    """Of the feed-forward part."""
    vocabulary: int
    tied: bool = False
    """Whether the words that come out are those that go in."""

    @property
    def parameters(self) -> float:
        """Weights of all layers and of the words; gains are too few to count."""
        attention = 2 * self.width**2 + 2 * self.width * self.width * self.key_heads / self.heads
        words = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * (attention + 3 * self.width * self.wide) + words


SHAPES = (
    Shape("0.1 B", 30, 576, 9, 3, 1_536, 49_152, tied=True),
    Shape("1 B", 16, 2_048, 32, 8, 8_192, 128_256, tied=True),
    Shape("8 B", 32, 4_096, 32, 8, 14_336, 128_256),
    Shape("70 B", 80, 8_192, 64, 8, 28_672, 128_256),
    Shape("400 B", 126, 16_384, 128, 8, 53_248, 128_256),
)
"""From SmolLM2-135M to the largest open ones; of every size one that is common."""


@dataclass(frozen=True)
class Machine:
    """What a profile runs on."""

    name: str
    speed: Speed
    gigabytes: float
    """Of one device."""
    bytes_per_weight: int
    batch_tokens: int
    """That run through the model together."""

    def operations(self) -> float:
        """Floating-point operations a second of a forward pass."""
        return self.speed.half_operations if self.bytes_per_weight == HALF else self.speed.operations


CPU = Machine("two CPU cores", SPEEDS["cpu"], 16.0, WHOLE, BATCH_TOKENS["cpu"])
CARD = Machine("one H200", SPEEDS["fused"], 139.0, HALF, BATCH_TOKENS["cuda"])


@dataclass(frozen=True)
class Work:
    """What every model is asked."""

    tokens: int = 512
    blocks: int = 32
    prompts: int = 16
    draws: int = 5
    """Of the null."""
    tasks: int = 1
    seeds: int = 1


@dataclass(frozen=True)
class Needed:
    """For one profile of a model of some shape."""

    seconds: float
    gigabytes: float
    """Of memory at the worst moment, over all devices that hold the model."""
    devices: int
    megabytes: float
    """On disk, the weights aside."""


def forward_seconds(shape: Shape, tokens: int, machine: Machine) -> float:
    """One prompt through the model."""
    operations = 2.0 * tokens * (shape.parameters + 2 * tokens * shape.width * shape.layers)
    return operations / machine.operations() + shape.layers * machine.speed.layer


def scoring_seconds(shape: Shape, work: Work, machine: Machine) -> float:
    """All heads on one prompt that has run through the model."""
    speed = machine.speed
    entries = work.blocks * work.tokens if work.tokens > work.blocks else 0
    head = speed.swap * work.blocks**2 + speed.entry * entries + speed.row
    return shape.layers * (shape.heads * head + speed.scored_layer)


def needed(shape: Shape, work: Work, machine: Machine) -> Needed:
    """What one profile takes: the model is read once, scored on all prompts, and so is every draw of its null."""
    weights = shape.parameters * machine.bytes_per_weight
    prompt = forward_seconds(shape, work.tokens, machine) + scoring_seconds(shape, work, machine)
    seconds = STARTING_S + READ_S * weights / 1e9 + (1 + work.draws) * work.prompts * prompt
    seconds += work.draws * shape.parameters * machine.speed.weight
    rows = shape.layers * shape.heads * (1 + work.draws)
    alive = beyond_weights(shape, work, machine) + BYTES_PER_ROW * rows * work.prompts
    drawn = WHOLE * shape.parameters if work.draws else 0.0
    # a random null is a second model beside the first: drawn in single precision, then run in the first one's
    most = max(drawn, alive + (weights if work.draws else 0.0))
    gigabytes = (RUNTIME + SMALL_THINGS + weights + most) / 1e9
    devices = max(1, math.ceil(WORKING * (weights + drawn) / 1e9 / machine.gigabytes))
    disk = FILES + rows * (HEAD_BYTES + ROW_BYTES * work.prompts)
    return Needed(seconds, gigabytes, devices, disk / 1e6)


def beyond_weights(shape: Shape, work: Work, machine: Machine) -> float:
    """Bytes of one batch of prompts at its worst moment, in one layer, and of what its words are told by."""
    together = max(1, min(work.prompts, machine.batch_tokens // work.tokens))
    layer = Layer(shape.heads, shape.width // shape.heads, shape.width, shape.wide, machine.bytes_per_weight)
    longest = max(1, work.tokens // work.blocks)
    worst = layer.most_bytes(together, work.tokens, work.blocks, longest, machine.speed)
    return worst + 4.0 * together * shape.vocabulary


def capacity(
    work: Work = Work(tasks=6, seeds=5),  # noqa: B008 - it cannot be changed
    models: tuple[int, ...] = (1, 100, 10_000),
    shapes: tuple[Shape, ...] = SHAPES,
) -> pd.DataFrame:
    """One row per size of model and number of them: profiles, time, memory and disk, on a CPU where they fit and on cards."""
    rows = []
    for shape in shapes:
        for machine in (CPU, CARD):
            one = needed(shape, work, machine)
            if machine is CPU and one.gigabytes > CPU.gigabytes:
                continue
            profiles = work.tasks * work.seeds
            for count in models:
                busy = one.seconds * profiles * count * one.devices
                rows.append(
                    {
                        "parameters": shape.name,
                        "models": count,
                        "on": machine.name,
                        "profiles": profiles * count,
                        "memory_gb": one.gigabytes,
                        "devices": one.devices,
                        "device_days": busy / DAYS,
                        "results_gb": one.megabytes * profiles * count / 1e3,
                        "weights_tb": shape.parameters * HALF * count / 1e12,
                    }
                )
    return pd.DataFrame(rows)


def in_words(table: pd.DataFrame) -> str:
    """The table as it stands in the documentation."""
    lines = [
        "| parameters | models | profiles | on | devices a model | memory | devices × time | results | weights |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table.itertuples():
        cells = (
            row.parameters,
            f"{row.models:,}",
            f"{row.profiles:,}",
            row.on,
            row.devices,
            f"{row.memory_gb:,.1f} GB" if row.memory_gb < 100 else f"{row.memory_gb:,.0f} GB",
            how_long(row.device_days * DAYS),
            _bytes(row.results_gb * 1e9),
            _bytes(row.weights_tb * 1e12),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            found = count / size
            return f"{found:,.0f} {unit}" if found >= 10 else f"{found:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"
