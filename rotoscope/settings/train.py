"""Training GPT-J on the multi-hop tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from rotoscope.errors import RotoscopeError
from rotoscope.settings.angles import BASE, UNRESTRICTED
from rotoscope.settings.base import Settings
from rotoscope.settings.bounds import SEED, Bounds, amount, count, share
from rotoscope.settings.profile import TAU, check_tau, each_tau

TASKS = ("number", "letter")
TOKENS = "these are tokens of a sequence, and a model has a row of positions for it"
WEIGHTS = "a model has weights for each of them"
SEQUENCES = count(100_000_000, "at least one is needed, and all of them are in memory at once")
SEEDS = count(1_000, "a model is trained from each, and all are in memory at once")
STEPS: Bounds = count(10_000_000, "evaluations have at least one training step between them")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """Everything that decides what a training gives. The defaults are P2's experiment."""

    title: ClassVar = "Training"
    meant_for: ClassVar = {"letters": ("number",), "alphabet": ("letter",), "digits": ("letter",)}
    bounds: ClassVar = {
        "seed": SEED,
        "hops": count(10_000, TOKENS),
        "target": count(100_000, TOKENS),
        "window": count(100_000, TOKENS, least=0),
        "letters": count(26 * 27, "they are called a to z and aa to zz"),
        "alphabet": count(26, "they are called a to z"),
        "digits": count(1_000, "every pair of a letter and a digit is a token"),
        "train_sequences": SEQUENCES,
        "validation_sequences": SEQUENCES,
        "test_sequences": SEQUENCES,
        "layers": count(1_000, WEIGHTS),
        "heads": count(1_000, WEIGHTS),
        "width": count(100_000, WEIGHTS, least=2),
        "rotary": count(100_000, "they are dimensions of a head", least=0),
        "nope": count(1_000, "layers count from 0", least=0),
        "base": amount(
            1, 1e12, "planes would all turn alike, or too slowly to tell from none", least_itself=False
        ),
        "positions": count(10_000_000, TOKENS),
        "dropout": share("it is the share of numbers that are dropped, and some must be left", one=False),
        "steps": count(10_000_000, "nothing is learned without a step, and more would take weeks"),
        "batch": count(
            10_000_000, "a step needs at least one sequence, and all of a batch are in memory at once"
        ),
        "learning_rate": amount(0, 100, "a step against the gradient, or a larger one, learns nothing"),
        "warmup": count(10_000_000, "these are training steps", least=0),
        "betas": share("AdamW's averages forget, each step, a part of what they hold", one=False),
        "weight_decay": amount(0, 100, "weights would grow, or be gone after a step"),
        "watch_every": STEPS,
        "watch_closely": count(10_000_000, "these are training steps", least=0),
        "watch_later": STEPS,
        "checkpoints": count(10_000, "the first and the last are kept, and each is a whole model", least=2),
    }
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
    angles: str = UNRESTRICTED
    """Frequencies the heads have: all, fast, slow, ids from 1 (fastest) on, or by layer: 0-5:fast+6-11:slow."""
    base: float = BASE
    """Base of the angles."""
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
        if not isinstance(self.angles, str):
            raise RotoscopeError(f"angles are words such as fast or 1-8, found {self.angles!r}")
        super().__post_init__()
        if self.batch > self.train_sequences:
            raise RotoscopeError(f"a batch of {self.batch} is more than the {self.train_sequences} sequences")

    @classmethod
    def several(cls, preset: str, tasks: Sequence[str], seeds: int, **changes: Any) -> list[Self]:
        """One for each task, restriction of `angles` and seed, from `seed` on.

        A change meant for one task is made to the settings of that.
        """
        if not tasks or len(set(tasks)) < len(tasks):
            found = ", ".join(tasks) or "none"
            raise RotoscopeError(
                f"each task must be given once, found {found}; several models of a task are seeds"
            )
        SEEDS.check("seeds", seeds)
        angles = changes.pop("angles", UNRESTRICTED)
        restrictions = list(angles) if isinstance(angles, list | tuple) else [angles]
        if not restrictions or len(set(restrictions)) < len(restrictions):
            found = ", ".join(map(str, restrictions)) or "none"
            raise RotoscopeError(f"each restriction of angles must be given once, found {found}")
        cls.check_meant(changes, *tasks)
        first, made = cls.preset(preset, **changes).seed, list[Self]()
        for task in tasks:
            own = {name: changes[name] for name in changes if task in cls.meant_for.get(name, tasks)}
            made += [
                cls.preset(preset, **own | {"task": task, "angles": words, "seed": first + k})
                for words in restrictions
                for k in range(seeds)
            ]
        return made

    @property
    def name(self) -> str:
        """What a run of this among several is called."""
        restricted = f"-{self.angles.replace(':', '.')}" if self.angles != UNRESTRICTED else ""
        return f"{self.task}{restricted}-{self.seed}"

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
    bounds: ClassVar = {
        "inputs": count(
            1_000_000, "at least one input is needed to score heads on, and all are in memory at once"
        ),
        "tau": TAU,
    }

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
            found["tau"] = each_tau(found["tau"])
        if isinstance(found.get("queries"), str):
            found["queries"] = (found["queries"],)
        return found

    def __post_init__(self) -> None:
        check_tau(self.tau)
        super().__post_init__()
        for name in self.queries:
            if name not in ("last", "path", "all"):
                raise RotoscopeError(f"unknown queries '{name}'; choose last, path or all")
