"""What training and making sequences is expected to take."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rotoscope.lab.sequences import PARTS
from rotoscope.reading.cost import OPERATIONS, Cost, operations_per_second
from rotoscope.settings import CanonicalSettings, TrainSettings

# Measured on two CPU cores; only for the estimates.
SECONDS_PER_STEP, SECONDS_PER_KEY = 5e-3, 1.5e-7
BYTES_PER_TOKEN = 48
"""A sequence's token while sequences are made: several tensors of whole numbers."""
ACTIVATIONS = 34
"""Tensors of the width that a layer keeps of every token until its gradient is there."""


def tokens_of(settings: TrainSettings) -> int:
    """Tokens in a sequence."""
    return settings.target + settings.window + 1


def training_cost(settings: TrainSettings, device: torch.device, watched: int = 0) -> Cost:
    """A whole training; `watched` is the number of inputs on which every evaluation scores the heads."""
    n, width, layers, batch = tokens_of(settings), settings.width, settings.layers, settings.batch
    words = {
        "number": settings.letters + n,
        "letter": settings.alphabet * (settings.alphabet + settings.digits),
        "either": settings.target * settings.alphabet * (1 + settings.digits),
    }[settings.task]
    weights = layers * 12 * width**2 + 2 * (words + 1) * width
    closely = min(settings.watch_closely, settings.steps)
    looks = 2 + closely // settings.watch_every + (settings.steps - closely) // settings.watch_later
    passes = 3 * settings.steps * batch + looks * settings.validation_sequences + settings.test_sequences
    attention = 2 * n * layers * width
    seconds = 2.0 * passes * n * (weights + attention) / operations_per_second(device)
    scored = min(watched, settings.validation_sequences) * layers * settings.heads * n**2
    slower = OPERATIONS["cpu"] / operations_per_second(device)
    seconds += settings.steps * SECONDS_PER_STEP * slower + looks * scored * SECONDS_PER_KEY * slower
    rows = sum(int(getattr(settings, f"{part}_sequences")) for part in PARTS)
    kept = batch * n * layers * (ACTIVATIONS * width + 5 * settings.heads * n)
    order = settings.steps * batch + settings.train_sequences
    memory = 4.0 * (4 * weights + kept + 2 * settings.positions * width + 20 * scored) + 8.0 * order
    what = (
        f"{settings.steps:,} steps of {batch:,} sequences of {n:,} tokens, and a model of {weights:,} weights"
    )
    instead = "use fewer steps, smaller batches or a smaller model"
    return Cost(what, (memory + BYTES_PER_TOKEN * rows * n) / 1e9, seconds, instead)


def trainings_cost(each: Sequence[TrainSettings], device: torch.device, watched: int = 0) -> Cost:
    """Several models trained as one: as much as all of them take alone, which on a GPU is more than they do."""
    costs = [training_cost(one, device, watched) for one in each]
    if len(costs) == 1:
        return costs[0]
    memory, seconds = sum(cost.gigabytes for cost in costs), sum(cost.seconds for cost in costs)
    what = f"{len(costs)} models as one, each {costs[0].what}"
    return Cost(what, memory, seconds, f"{costs[0].instead}, or train fewer as one")


def grid_cost(settings: CanonicalSettings, models: int, experiments: int, device: torch.device) -> Cost:
    """Grids of toy heads, one after the other."""
    inputs = settings.keys + 1
    tested = settings.tested * (1 + settings.evaluations / 16)  # along the way, a sixteenth each time
    tables = (
        (2 * settings.entities + settings.symbols + settings.keys) * models * max(1, settings.embedding or 1)
    )
    keys = settings.steps * settings.batch * inputs + tested * inputs
    seconds = experiments * models * keys * SECONDS_PER_KEY * OPERATIONS["cpu"] / operations_per_second(device)
    memory = 4.0 * (30 * max(settings.batch, 512) * (inputs + settings.symbols) * models + 16 * tables)
    what = f"{experiments} grids of {models:,} models, {settings.steps:,} steps of {settings.batch:,} inputs of {inputs:,} tokens"
    return Cost(what, memory / 1e9, seconds, "use fewer steps, angles or seeds, or smaller batches")
