"""Toy heads: what one grid of them is trained on and how, and the experiments made of such grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.settings.base import Settings

GRID = tuple(10 ** (-k / 4) for k in range(21))


@dataclass(frozen=True, kw_only=True)
class ToyTraining(Settings):
    """How a grid is trained. The defaults are the `paper` preset."""

    title: ClassVar = "Training"

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

    def __post_init__(self) -> None:
        if min(self.seeds, self.steps, self.batch) < 1:
            raise RotoscopeError("seeds, steps and batch must be at least 1")


@dataclass(frozen=True, kw_only=True)
class CanonicalSettings(ToyTraining):
    """A whole experiment: tasks, angles, training, and how it is looked at."""

    presets: ClassVar = {
        "quick": {"angles": (0.0, *GRID[::2]), "seeds": 1, "steps": 400, "tested": 2048, "evaluations": 4}
        | dict.fromkeys(("keys", "symbols", "entities"), 16),
        "paper": {},
    }

    task: Literal["index", "retrieval", "induction", "all"] = "all"
    """index (positional), retrieval (symbolic), induction (needs both; also with two angles), or all."""
    angles: tuple[float, ...] = (0.0, *GRID)
    """Angles per position; 0 is NoPE."""
    tested: int = 16_384
    """Fresh samples at the end; a sixteenth of them along the way."""
    evaluations: int = 10
    """How often the models are looked at."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.angles:
            raise RotoscopeError("the list of angles is empty; give at least one angle, 0 for NoPE")
