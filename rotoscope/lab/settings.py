"""Which frequencies the heads of a model in training have: the words of `--angles`, and what they mean.

Restricted heads have only the frequencies that are listed. Their rotating planes are dealt out evenly over these, in order: with the
ids 1 and 3 the first half of the planes turns like plane 1 and the second half like plane 3. So a head keeps its width, and no
plane stands still; one that did would be a perfect channel for symbols, whatever the others do.

Ids count from 1, the fastest. A restriction is one word:

    all                     every plane turns at its own frequency, as usual
    fast, slow              the faster or the slower half of the ids; the middle one of an odd number belongs to both
    1-8, 1,3,5, 1-4,61-64   these ids
    0-5:fast+6-11:slow      by layer; layers that are not named are not restricted
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from rotoscope.errors import RotoscopeError
from rotoscope.settings import (
    BASE,
    ROTARY_BASE,
    SEED,
    TAU,
    Bounds,
    Settings,
    amount,
    check_tau,
    count,
    each_tau,
    listed,
    share,
)

UNRESTRICTED = "all"


def layer_ids(angles: str, layers: int, planes: int, nope: Collection[int] = ()) -> tuple[tuple[int, ...], ...]:
    """The frequency ids each layer has, by the words of a restriction; nothing where no layer is restricted."""
    all_ids = tuple(range(1, planes + 1))
    if ":" not in angles:
        ids_by_layer = [_ids(angles, angles, planes)] * layers
    else:
        named: dict[int, tuple[int, ...]] = {}
        for part in angles.split("+"):
            layer_words, _, ids = part.partition(":")
            for layer in _numbers(layer_words, angles, "layers", 0, layers - 1):
                if layer in (*named, *nope):
                    problem = "does not rotate (nope)" if layer in nope else "is named twice"
                    raise RotoscopeError(
                        f"angles '{angles}' name layer {layer}, which {problem}; name another, or none"
                    )
                named[layer] = _ids(ids, angles, planes)
        ids_by_layer = [named.get(layer, all_ids) for layer in range(layers)]
    return () if all(ids == all_ids for ids in ids_by_layer) else tuple(ids_by_layer)


def _ids(words: str, angles: str, planes: int) -> tuple[int, ...]:
    if words == UNRESTRICTED:
        return tuple(range(1, planes + 1))
    if words == "fast":
        return tuple(range(1, (planes + 1) // 2 + 1))
    if words == "slow":
        return tuple(range(planes // 2 + 1, planes + 1))
    return tuple(sorted(set(_numbers(words, angles, "frequency ids", 1, planes))))


def _numbers(words: str, angles: str, noun: str, least: int, most: int) -> list[int]:
    """The numbers of `1-4,7`, each within its bounds."""
    numbers: list[int] = []
    for part in words.split(","):
        matched = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if matched is None:
            raise RotoscopeError(
                f"angles '{angles}' cannot be understood at '{part}'; give all, fast, slow, ids such as 1-8 or 1,3,5, or "
                "layers with theirs such as 0-5:fast+6-11:slow"
            )
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if not least <= first <= last <= most:
            raise RotoscopeError(
                f"angles '{angles}' ask for {noun} {part}; this model has {least} to {most}, from the lower to the higher"
            )
        numbers += range(first, last + 1)
    return numbers


# Training GPT-J on the multi-hop tasks.


FAVOURING = ("strength", "favour_layers", "favour_from", "favour_until")
"""Settings that only a favoured kind has."""
TOKENS = "these are tokens of a sequence, and a model has a row of positions for it"
WEIGHTS = "a model has weights for each of them"
SEQUENCES = count(100_000_000, "at least one is needed, and all of them are in memory at once")
SEEDS = count(1_000, "a model is trained from each, and all are in memory at once")
STEPS: Bounds = count(10_000_000, "evaluations have at least one training step between them")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    """Everything that decides what a training gives. The defaults are P2's experiment."""

    title: ClassVar = "Training"
    python_only: ClassVar = (
        "target", "window", "letters", "alphabet", "digits", "train_sequences", "validation_sequences", "test_sequences",
        "learning_rate", "warmup",
        "rotary", "positions", "dropout", "betas", "weight_decay", "watch_closely", "watch_later", "favour_from", "favour_until",
    )  # fmt: skip
    meant_for: ClassVar = {
        "letters": ("number",),
        "alphabet": ("letter", "either"),
        "digits": ("letter", "either"),
        "hops": ("number", "letter"),
        "window": ("number", "letter"),
    }
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
        "base": ROTARY_BASE,
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
        "strength": amount(0, 1e6, "a penalty below 0 would favour the other kind: name that one"),
        "favour_from": count(10_000_000, "these are training steps", least=0),
        "favour_until": count(10_000_000, "these are training steps"),
    }
    own_sizes: ClassVar[Mapping[str, Mapping[str, int]]] = {"either": {"hops": 1, "window": 0}}
    """Sizes that a task has whatever the preset says."""
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

    task: Literal["number", "letter", "either"] = "number"
    """number (pointers are distances: needs positions), letter (pointers are symbols) or either (both ways lead there)."""
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
    """Letters of the letter task; of the either task, for each place."""
    digits: int = 8
    """Digits of the letter and the either task."""
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
    answers: Literal["right", "shuffled"] = "right"
    """Answers to train on: right, or shuffled among the training sequences, for a twin that has nothing to learn but how often
    each answer comes."""
    watch_every: int = 50
    """Steps between evaluations, as long as `watch_closely` has not been reached; `watch_later` afterwards."""
    watch_closely: int = 6_750
    """Steps that are watched closely."""
    watch_later: int = 250
    """Steps between evaluations from then on."""
    checkpoints: int = 8
    """Models kept along the way, the first and the last included, spaced more densely early on."""
    favour: Literal["none", "symbolic", "positional"] = "none"
    """Kind of heads that training favours, by a penalty on how far heads are from it: none, symbolic or positional."""
    strength: float = 0.03
    """What the penalty is multiplied with before it is added to the loss."""
    favour_layers: str = "all"
    """Layers whose heads are favoured: all that rotate, or such as 4-11 or 0,2,4-6."""
    favour_from: int = 0
    """The first training step with the penalty."""
    favour_until: int | None = None
    """The first training step without it again; by default it stays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch > self.train_sequences:
            raise RotoscopeError(f"a batch of {self.batch} is more than the {self.train_sequences} sequences")
        if self.favour == "none":
            for name in FAVOURING:
                if getattr(self, name) != getattr(type(self), name):
                    raise RotoscopeError(
                        f"--{name.replace('_', '-')} means something with --favour symbolic or positional only"
                    )
        elif not self.favoured:
            raise RotoscopeError("no layer would be favoured; leave at least one that rotates")
        elif not self.favour_from < self.favoured_steps[1] <= self.steps:
            raise RotoscopeError(
                f"the penalty must begin before it ends, within the {self.steps} steps; found {self.favour_from} and "
                f"{self.favoured_steps[1]}"
            )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """The settings of a preset in the sizes of the task, with changes."""
        return super().preset(name, **{**cls.own_sizes.get(changes.get("task", ""), {}), **changes})

    @classmethod
    def plain(cls, changes: dict[str, Any]) -> dict[str, Any]:
        """In Python layers can be numbers."""
        layers = changes.get("favour_layers", "all")
        if not isinstance(layers, str):
            changes = changes | {"favour_layers": listed("favour_layers", layers)}
        return super().plain(changes)

    def stored(self) -> dict[str, Any]:
        """Without angles that are not restricted, and favouring where nothing is favoured: runs of versions without them are the same runs."""
        usual = {"angles": UNRESTRICTED, "base": BASE, "answers": "right"}
        unused = () if self.favour != "none" else ("favour", *FAVOURING)
        return {k: v for k, v in super().stored().items() if usual.get(k) != v and k not in unused}

    @property
    def favoured(self) -> tuple[int, ...]:
        """The layers whose heads are favoured; one that does not rotate cannot be, since all its heads are symbolic."""
        if self.favour_layers == "all":
            return tuple(layer for layer in range(self.layers) if layer not in self.nope)
        layers = set[int]()
        for part in self.favour_layers.split(","):
            ends = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
            if ends is None:
                raise RotoscopeError(
                    f"'{self.favour_layers}' are no layers; give such as 4-11 or 0,2,4-6, or all"
                )
            layers |= set(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
        for layer in sorted(layers):
            if layer >= self.layers or layer in self.nope:
                problem = "does not rotate" if layer in self.nope else f"is beyond the last, {self.layers - 1}"
                raise RotoscopeError(f"layer {layer} cannot be favoured: it {problem}")
        return tuple(sorted(layers))

    @property
    def favoured_steps(self) -> tuple[int, int]:
        """The first step with the penalty, and the first without it again."""
        return self.favour_from, self.steps if self.favour_until is None else self.favour_until

    @classmethod
    def several(cls, preset: str, tasks: Sequence[str], seeds: int, **changes: Any) -> list[Self]:
        """One for each task, restriction of `angles`, kind to `favour` and seed, from `seed` on.

        A change meant for one task is made to the settings of that.
        """
        if not tasks or len(set(tasks)) < len(tasks):
            listed_tasks = ", ".join(tasks) or "none"
            raise RotoscopeError(
                f"each task must be given once, found {listed_tasks}; several models of a task are seeds"
            )
        if "either" in tasks and len(tasks) > 1:
            raise RotoscopeError(
                "either has shorter sequences than the other tasks, so it is trained by itself"
            )
        SEEDS.check("seeds", seeds)
        cls.check_meant(changes, *tasks)
        restrictions = _each_once("restriction of angles", changes.pop("angles", UNRESTRICTED))
        kinds = _each_once("kind to favour", changes.pop("favour", "none"))
        models = list[Self]()
        for task, words, kind in itertools.product(tasks, restrictions, kinds):
            task_changes = {name: changes[name] for name in changes if task in cls.meant_for.get(name, tasks)}
            if kind == "none" and len(kinds) > 1:
                task_changes = {name: value for name, value in task_changes.items() if name not in FAVOURING}
            settings = cls.preset(preset, **task_changes | {"task": task, "angles": words, "favour": kind})
            models += [replace(settings, seed=settings.seed + k) for k in range(seeds)]
        return models

    @classmethod
    def check_line(cls, own: Mapping[str, Any], line: Mapping[str, Any], preset: str | None) -> None:
        """Refuse what a command line says of one training or several."""
        if isinstance(line.get("task"), tuple):
            lists = {name: line[name] for name in ("angles", "favour") if line.get(name)}
            cls.several(str(preset), line["task"], line.get("seeds") or 1, **{**own, **lists})
        else:
            super().check_line(own, line, preset)

    @property
    def name(self) -> str:
        """What a run of this among several is called."""
        restricted = f"-{self.angles.replace(':', '.')}" if self.angles != UNRESTRICTED else ""
        favoured = f"-{self.favour}" if self.favour != "none" else ""
        shuffled = "-shuffled" if self.answers == "shuffled" else ""
        return f"{self.task}{restricted}{favoured}{shuffled}-{self.seed}"

    @property
    def evaluations(self) -> list[int]:
        """The steps after which the model is looked at."""
        closely = min(self.watch_closely, self.steps)
        points = {*range(0, closely + 1, self.watch_every), *range(closely, self.steps + 1, self.watch_later)}
        return sorted(points | {self.steps})

    @property
    def checkpoint_steps(self) -> list[int]:
        """The evaluations whose models are kept: about half as far each time, counted from the end."""
        points = self.evaluations
        goals = [0.0, *(self.steps * 0.5**k for k in range(self.checkpoints - 1))]
        return sorted({min(points, key=lambda point, goal=goal: abs(point - goal)) for goal in goals})  # type: ignore[misc]

    @property
    def saved(self) -> list[int]:
        """The evaluations at which the state is saved to go on from: about forty."""
        points, last = [], 0
        for point in self.evaluations[1:]:
            if point - last >= self.steps / 40 or point == self.steps:
                points.append(point)
                last = point
        return points


def _each_once(noun: str, value: Any) -> list[Any]:
    """One value or several, no two of them alike."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or len(set(values)) < len(values):
        raise RotoscopeError(f"each {noun} must be given once, found {', '.join(map(str, values)) or 'none'}")
    return values


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
        """Every tau once."""
        plain_changes = super().plain(changes)
        if "tau" in plain_changes:
            plain_changes["tau"] = each_tau(plain_changes["tau"])
        return plain_changes

    def __post_init__(self) -> None:
        check_tau(self.tau)
        super().__post_init__()
