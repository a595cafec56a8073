"""What a model that learned nothing would give.

- **random**: the same architecture with freshly initialised weights. Its logits are far smaller than a trained
  model's, and small logits look uniform, so they are rescaled by one factor for the whole model (or one per layer) to
  the real model's median spread of block log-means.
- **gaussian**: the real model, with the keys of the swapped tokens replaced by Gaussian noise of the same mean and
  spread per key head and dimension: what is left is the query, the rotation and the keys' shared direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import Batch
from rotoscope.analysis.measures import Transform
from rotoscope.errors import ModelError
from rotoscope.maths.blocks import block_spread
from rotoscope.reading import HeadReader, LayerHeads, Subject

NullName = Literal["none", "random", "gaussian"]
NULLS: tuple[NullName, ...] = ("none", "random", "gaussian")
CALIBRATION_PROMPTS = 2


@dataclass(frozen=True)
class Null:
    """One draw: something to read, and what to do to each layer before it is scored."""

    name: str
    draw: int
    reader: HeadReader
    transform: Transform
    factors: list[float]
    """What the logits were multiplied by: one number, or one per layer."""


def check_null(subject: Subject, name: str) -> None:
    """Refuse early, before any work, what could not be made later."""
    if name not in NULLS:
        raise ModelError(f"unknown null '{name}'; choose one of {', '.join(NULLS)}")
    if name == "random":
        _initialise(subject, seed=0, device=torch.device("meta"))


def make_nulls(
    subject: Subject,
    reader: HeadReader,
    name: str,
    draws: Iterable[int],
    real: pd.DataFrame,
    work: list[Batch],
    *,
    per_layer: bool = False,
    seed: int = 0,
) -> Iterator[Null]:
    """Draws of a null by their numbers, one after the other. `real` holds the real model's scores per prompt."""
    for draw in draws:
        if name == "random":
            model = _initialise(subject, seed + draw, subject.device)
            fresh = HeadReader(model)
            factors = _calibrate(fresh, real, work[:CALIBRATION_PROMPTS], per_layer)
            yield Null(name, draw, fresh, _rescaled(factors), factors)
        elif name == "gaussian":
            yield Null(name, draw, reader, _noisy(seed + draw), [1.0])


def _initialise(subject: Subject, seed: int, device: torch.device) -> Any:
    """A model of the same class and configuration with the weights it would begin training with."""
    kind = type(subject.model)
    try:
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(seed)
            return kind(subject.model.config).to(subject.model.dtype).eval()
    except Exception as problem:
        raise ModelError(
            f"{kind.__name__} cannot be initialised from its configuration ({type(problem).__name__}: {problem}), "
            "so there is no random null for it; use --null gaussian or --null none"
        ) from problem


def _calibrate(reader: HeadReader, real: pd.DataFrame, work: list[Batch], per_layer: bool) -> list[float]:
    """The factor at which the fresh model's median spread of block log-means equals the real one's."""
    logits: list[list[tuple[torch.Tensor, Batch]]] = [[] for _ in range(reader.layers)]
    for batch in work:

        def visit(layer: LayerHeads, batch: Batch = batch) -> None:
            query = layer.at(len(batch.queries) - 1)
            logits[layer.layer].append((query.real(capped=False), batch))

        reader.read(batch.tokens, batch.queries, visit)

    def spread(layers: list[int], factor: float) -> float:
        found = [
            block_spread(tensor * factor, batch.blocks_for(batch.queries[-1])).flatten()
            for layer in layers
            for tensor, batch in logits[layer]
        ]
        return float(torch.cat(found).median())

    def solve(layers: list[int], wanted: float) -> float:
        low, high = -4.0, 8.0  # in powers of e
        for _ in range(40):
            middle = (low + high) / 2
            if spread(layers, float(np.exp(middle))) < wanted:
                low = middle
            else:
                high = middle
        return float(np.exp((low + high) / 2))

    everything = list(range(reader.layers))
    if per_layer:
        wanted = real.groupby("layer")["block_spread"].median()
        return [solve([layer], float(wanted[layer])) for layer in everything]
    return [solve(everything, float(real["block_spread"].median()))]


def _rescaled(factors: list[float]) -> Transform:
    def transform(layer: LayerHeads, batch: Batch) -> LayerHeads:
        factor = factors[layer.layer] if len(factors) > 1 else factors[0]
        return replace(layer, scaling=layer.scaling * factor)

    return transform


def _noisy(seed: int) -> Transform:
    def transform(layer: LayerHeads, batch: Batch) -> LayerHeads:
        positions = torch.tensor(batch.blocks_for(batch.queries[-1]).positions, device=layer.keys.device)
        swapped = layer.keys[:, :, positions]
        generator = torch.Generator().manual_seed((seed * 1009 + layer.layer) * 100_003 + batch.first)
        noise = torch.randn(swapped.shape, generator=generator).to(swapped)
        mean, spread = swapped.mean(2, keepdim=True), swapped.std(2, keepdim=True)
        keys = layer.keys.clone()
        keys[:, :, positions] = mean + spread * noise
        return replace(layer, keys=keys)

    return transform
