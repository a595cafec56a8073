"""Training GPT-J on the multi-hop tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.settings.base import Settings
from rotoscope.settings.profile import check_tau

TASKS = ("number", "letter")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """Everything that decides what a training gives. The defaults are P2's experiment."""

    title: ClassVar = "Training"
    meant_for: ClassVar = {"letters": ("number",), "alphabet": ("letter",), "digits": ("letter",)}
    presets: ClassVar = {
        "paper": {},
        "mini": {
            "hops": 2,
            "target": 6,
            "window": 6,
            "train_sequences": 32_000,
            "validation_sequences": 1_000,
            "test_sequences": 4_000,
            "letters": 24,
            "layers": 4,
            "width": 64,
            "positions": 1024,
            "steps": 600,
            "batch": 128,
            "learning_rate": 2e-3,
            "warmup": 100,
            "watch_closely": 600,
        },
    }

    task: Literal["number", "letter"] = "number"
    """number (pointers are distances: needs positions) or letter (pointers are symbols)."""
    seed: int = 0
    """Weights, sequences, their order, dropout."""
    hops: int = 4
    """Most hops; sequences have one to this many in equal shares."""
    target: int = 8
    """Tokens in the target window."""
    window: int = 8
    """Tokens in the pointing window."""
    letters: int = 120
    """Letters of the number task."""
    alphabet: int = 8
    """Letters of the letter task."""
    digits: int = 8
    """Digits of the letter task."""
    train_sequences: int = 432_000
    """Sequences to train on."""
    validation_sequences: int = 2_400
    """Sequences to watch training with."""
    test_sequences: int = 45_600
    """Sequences to judge the result with."""
    layers: int = 12
    """Depth."""
    heads: int = 1
    """Heads per layer."""
    width: int = 128
    """Width of the residual stream."""
    rotary: int | None = None
    """Rotating dimensions per head; all by default."""
    nope: tuple[int, ...] = ()
    """Layers that do not rotate at all."""
    positions: int = 8192
    """Positions the model has."""
    dropout: float = 0.1
    """On embeddings, attention and both branches."""
    steps: int = 22_500
    """Training steps."""
    batch: int = 192
    """Sequences per step."""
    learning_rate: float = 1e-4
    """Peak of the schedule: linear warm-up, then linear decay to zero."""
    warmup: int = 750
    """Steps until the peak."""
    betas: tuple[float, float] = (0.95, 0.999)
    """Of AdamW."""
    weight_decay: float = 1e-4
    """Of AdamW."""
    watch_every: int = 50
    """Steps between evaluations, as long as `watch_closely` has not been reached; `watch_later` afterwards."""
    watch_closely: int = 6_750
    """Steps that are watched closely."""
    watch_later: int = 250
    """Steps between evaluations from then on."""
    checkpoints: int = 8
    """Models kept along the way, the first and the last included, spaced more densely early on."""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise RotoscopeError(f"unknown task '{self.task}'; choose {' or '.join(TASKS)}")
        parts = (f"{part}_sequences" for part in ("train", "validation", "test"))
        for name in (*parts, "steps", "batch", "layers", "heads"):
            if getattr(self, name) < 1:
                raise RotoscopeError(f"{name} must be at least 1, found {getattr(self, name)}")
        if self.batch > self.train_sequences:
            raise RotoscopeError(f"a batch of {self.batch} is more than the {self.train_sequences} sequences")
        if min(self.watch_every, self.watch_later) < 1 or self.checkpoints < 2:
            raise RotoscopeError(
                "evaluations need at least one step between them, and two checkpoints are kept"
            )

    @property
    def evaluations(self) -> list[int]:
        """The steps after which the model is looked at."""
        closely = min(self.watch_closely, self.steps)
        points = {*range(0, closely + 1, self.watch_every), *range(closely, self.steps + 1, self.watch_later)}
        return sorted(points | {self.steps})

    @property
    def kept(self) -> list[int]:
        """The evaluations whose models are kept: about half as far each time, counted from the end."""
        points = self.evaluations
        wanted = [0.0, *(self.steps * 0.5**k for k in range(self.checkpoints - 1))]
        return sorted({min(points, key=lambda point, goal=goal: abs(point - goal)) for goal in wanted})  # type: ignore[misc]

    @property
    def saved(self) -> list[int]:
        """The evaluations at which the state is saved to go on from: about forty."""
        points, last = [], 0
        for point in self.evaluations[1:]:
            if point - last >= self.steps / 40 or point == self.steps:
                points.append(point)
                last = point
        return points


@dataclass(frozen=True, kw_only=True)
class WatchSettings(Settings):
    """How heads are scored while a model is trained."""

    title: ClassVar = "Scoring heads on the way"

    inputs: int = 200
    """Held-out sequences on which every evaluation scores the heads."""
    queries: tuple[Literal["last", "path", "all"], ...] = ("last",)
    """Positions that are scored: the last token, every position of the path, all with two keys before them."""
    tau: tuple[float, ...] = (1e-4,)
    """Temperature of the swap weights; several are possible."""

    @classmethod
    def plain(cls, changes: dict[str, Any]) -> dict[str, Any]:
        """A single tau and a single kind of queries will do in Python."""
        found = super().plain(changes)
        if "tau" in found:
            found["tau"] = check_tau(found["tau"])
        if isinstance(found.get("queries"), str):
            found["queries"] = (found["queries"],)
        return found

    def __post_init__(self) -> None:
        check_tau(self.tau)
        if self.inputs < 1:
            raise RotoscopeError(f"at least one input is needed to score heads on, found {self.inputs}")
        for name in self.queries:
            if name not in ("last", "path", "all"):
                raise RotoscopeError(f"unknown queries '{name}'; choose last, path or all")
