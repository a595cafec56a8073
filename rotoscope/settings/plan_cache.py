"""Which key heads keep all their keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.settings.bounds import count, share
from rotoscope.settings.plan import PlanSettings, Source

Ranking = Literal["far_task", "gradient", "gradient_rounds", "random"]


@dataclass(frozen=True, kw_only=True)
class CacheSettings(PlanSettings):
    """How many key heads keep everything, what the others keep, and how they are ranked."""

    title: ClassVar = "plan cache: which key heads keep everything"
    python_only: ClassVar = (*PlanSettings.python_only, "rankings", "random_draws")
    bounds: ClassVar = {
        **PlanSettings.bounds,
        "keep": share("this is the share of key heads that keep all keys and values", percent=True),
        "window": count(10_000_000, "a streaming head keeps at least the token itself"),
        "sinks": count(1_000_000, "these are tokens at the beginning", least=0),
        "frontier": share("these are shares of key heads that keep all keys and values", percent=True),
        "random_draws": count(1_000, "every one is judged like a ranking"),
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
    random_draws: int = 5
    """Random rankings beside the plan; a verdict takes 5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in self.sources:
            raise RotoscopeError(
                f"heads are ranked on {self.task} (--task), which is not among what is judged (--sources "
                f"{' '.join(self.sources)})"
            )
        if set(self.rankings) == {"random"}:
            raise RotoscopeError(
                "random rankings are what a plan is compared with: name at least one other to make it by (rankings)"
            )
