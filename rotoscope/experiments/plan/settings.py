"""Settings of plans: the prompts that a plan is made and judged on, and what each of the two plans decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.settings import SEED, Settings, count, share

Source = Literal["repeats", "lookup", "text"]
SOURCES: tuple[Source, ...] = ("repeats", "lookup", "text")
RANDOM = "random"
"""The ranking that is drawn, and beside which the others are judged."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings(Settings):
    """What a plan is judged by: random tokens repeated, lines to look up, and text."""

    title: ClassVar = "What the plan is judged by"
    python_only: ClassVar[tuple[str, ...]] = ("passage", "random_draws")
    bounds: ClassVar = {
        "prompts": count(100_000, "every one runs once for every point of the table"),
        "length": PromptSettings.bounds["length"],
        "pairs": PromptSettings.bounds["pairs"],
        "passage": count(1_000_000, "no model has the positions for more", least=4),
        "random_draws": count(1_000, "every one is judged like a ranking"),
        "seed": SEED,
    }

    sources: tuple[Source, ...] = SOURCES
    """What losses are measured on: repeats (random tokens, repeated), lookup (lines "name: colour", twice, and a name), text
    (stretches of a long one)."""
    prompts: int = 4
    """How many prompts of each source."""
    length: int | None = None
    """repeats: tokens before they repeat."""
    pairs: int | None = None
    """lookup: lines before they come again."""
    passage: int | None = None
    """text: tokens of a stretch."""
    text: Path | None = None
    """text: a file of your own; by default the manual that comes with Python."""
    random_draws: int = 20
    """Random choices beside the plan, each judged on a quarter of the prompts, at least two."""
    seed: int = 0
    """Seed of the prompts and of what is drawn at random beside the plan."""

    @classmethod
    def own(cls) -> tuple[str, ...]:
        """The fields that only this decision has, those without a flag left out."""
        common = {*PlanSettings.names(), *cls.python_only}
        return tuple(name for name in cls.names() if name not in common)

    def __post_init__(self) -> None:
        super().__post_init__()
        rankings: Any = getattr(self, "rankings", ())
        if set(rankings) == {RANDOM}:
            raise RotoscopeError(
                "random rankings are what a plan is compared with: name at least one other to make it by (rankings)"
            )


Ranking = Literal["far_task", "gradient", "gradient_rounds", "random"]


@dataclass(frozen=True, kw_only=True)
class CacheSettings(PlanSettings):
    """How many key heads keep everything, what the others keep, and how they are ranked."""

    title: ClassVar = "plan cache: which key heads keep everything"
    python_only: ClassVar = (*PlanSettings.python_only, "rankings")
    bounds: ClassVar = {
        **PlanSettings.bounds,
        "keep": share("this is the share of key heads that keep all keys and values", percent=True),
        "window": count(10_000_000, "a streaming head keeps at least the token itself"),
        "sinks": count(1_000_000, "these are tokens at the beginning", least=0),
        "frontier": share("these are shares of key heads that keep all keys and values", percent=True),
    }

    keep: float = 0.25
    """Share of the key heads that keep all keys and values, 0.25 or 25%; the others stream."""
    window: int = 32
    """Tokens that a streaming head keeps, the last ones, the token itself included."""
    sinks: int = 4
    """Tokens at the beginning that a streaming head keeps as well."""
    task: Source = "repeats"
    """What heads are ranked on."""
    rankings: tuple[Ranking, ...] = ("far_task", "gradient", "gradient_rounds", "random")
    """Rankings that are compared; the plan takes the one that loses least on prompts of its own."""
    frontier: tuple[float, ...] = (0.1, 0.25, 0.5)
    """Shares kept at which all rankings are compared, 0.1 or 10%, beside none, all and the share asked for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in self.sources:
            raise RotoscopeError(
                f"heads are ranked on {self.task} (--task), which is not among what is judged (--sources "
                f"{' '.join(self.sources)})"
            )


PlaneRanking = Literal["effect", "norm", "fastest", "random"]


@dataclass(frozen=True, kw_only=True)
class RotationSettings(PlanSettings):
    """How many planes of every key head keep their rotation, and how they are ranked."""

    title: ClassVar = "plan rotation: which planes rotate"
    python_only: ClassVar = (*PlanSettings.python_only, "rankings", "budgets", "path_points")
    bounds: ClassVar = {
        **PlanSettings.bounds,
        "planes": count(100_000, "no head has more planes", least=0),
        "budgets": count(100_000, "these are numbers of planes that rotate", least=0),
        "path_points": count(1_000, "every one is a forward and a backward pass over the prompts"),
    }

    planes: int = 8
    """How many planes of every key head go on rotating; the others are stopped."""
    rankings: tuple[PlaneRanking, ...] = ("effect", "norm", "fastest", "random")
    """Rankings of planes that are compared; the plan takes the one that loses least on prompts of its own."""
    budgets: tuple[int, ...] = (4, 16)
    """Numbers of rotating planes at which all rankings are compared, beside none, all and the number asked for; those that are more
    than a head has are left out."""
    path_points: int = 4
    """Points between rotating and stopped at which the gradients behind the ranking "effect" are taken."""
