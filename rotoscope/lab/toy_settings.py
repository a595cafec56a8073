"""Toy heads: what one grid of them is trained on and how, and the experiments made of such grids."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from rotoscope.settings import SEED, Settings, amount, count, share

GRID = tuple(10 ** (-k / 4) for k in range(21))


TABLES = "every model has a row of weights for each"


@dataclass(frozen=True, kw_only=True)
class ToyTraining(Settings):
    """How a grid is trained. The defaults are the `paper` preset."""

    title: ClassVar = "Training"
    python_only: ClassVar[tuple[str, ...]] = (
        "symbols", "entities", "batch", "repeats", "lr", "warmup", "floor", "gain", "embedding", "first",
    )  # fmt: skip
    bounds: ClassVar = {
        "seeds": count(10_000, "all models of a grid are trained at once"),
        "keys": count(10_000, TABLES),
        "symbols": count(10_000, TABLES),
        "entities": count(10_000, TABLES),
        "repeats": count(10_000, "the asked entity stands there at least once, and no input is longer"),
        "steps": count(10_000_000, "nothing is learned without a step, and more would take weeks"),
        "batch": count(1_000_000, "a step needs at least one input, and all of a batch are in memory at once"),
        "lr": amount(0, 100, "a step against the gradient, or a larger one, learns nothing"),
        "warmup": count(10_000_000, "these are training steps", least=0),
        "floor": share("it is a share of the peak, from 0 to 1"),
        "gain": amount(-1e6, 1e6, "logits beyond it overflow"),
        "embedding": count(10_000, TABLES),
        "seed": SEED,
        "first": SEED,
    }

    seeds: int = 3
    """Models per angle."""
    keys: int = 32
    """Keys in an input."""
    symbols: int = 32
    """Symbols or attributes."""
    entities: int = 32
    """Entities of retrieval and induction."""
    repeats: int = 3
    """Induction: how often the asked entity stands before its last occurrence."""
    steps: int = 2500
    """Training steps."""
    batch: int = 128
    """Inputs per step."""
    lr: float = 0.1
    """Peak of the learning rate."""
    warmup: int = 50
    """Steps until the peak."""
    floor: float = 0.05
    """The learning rate ends at this share of its peak."""
    gain: float = 5.0
    """What the output's gain begins with."""
    embedding: int | None = None
    """Width of learned embeddings; one-hot tables by default."""
    seed: int = 0
    """Shifts every initialisation and all data."""
    first: int = 0
    """Number of the first initialisation; the seeds of a grid are first, first + 1, ..."""


@dataclass(frozen=True, kw_only=True)
class CanonicalSettings(ToyTraining):
    """A whole experiment: tasks, angles, training, and how it is looked at."""

    python_only: ClassVar = (*ToyTraining.python_only, "tested", "evaluations")
    presets: ClassVar = {
        "quick": {"angles": (0.0, *GRID[::2]), "seeds": 1, "steps": 400, "tested": 2048, "evaluations": 4}
        | dict.fromkeys(("keys", "symbols", "entities"), 16),
        "paper": {},
    }
    bounds: ClassVar = {
        **ToyTraining.bounds,
        "angles": amount(0, 2 * math.pi, "angles are radians per position, and a full turn is as good as none"),
        "tested": count(10_000_000, "accuracy needs samples, and all of them are in memory at once", least=16),
        "evaluations": count(10_000, "the models are looked at once at least, and every look is kept"),
    }

    task: Literal["index", "retrieval", "induction", "all"] = "all"
    """index (positional), retrieval (symbolic), induction (needs both; also with two angles), or all."""
    angles: tuple[float, ...] = (0.0, *GRID)
    """Angles per position; 0 is NoPE."""
    tested: int = 16_384
    """Fresh samples at the end; a sixteenth of them along the way."""
    evaluations: int = 10
    """How often the models are looked at."""
