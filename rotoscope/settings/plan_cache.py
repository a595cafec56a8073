"""Which key heads keep all their keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.settings.bounds import count, share
from rotoscope.settings.plan import PlanSettings, Source

Ranking = Literal[
    "symbolic_mass", "symbolic", "far_task", "far_text", "known", "prompt", "on_the_fly", "gradient", "combined", "far_rounds",
    "gradient_rounds", "random",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CacheSettings(PlanSettings):
    """How many key heads keep everything, what the others keep, and how they are ranked."""

    title: ClassVar = "plan cache: which key heads keep everything"
    bounds: ClassVar = {
        **PlanSettings.bounds,
        "keep": share("this is the share of key heads that keep all keys and values", percent=True),
        "window": count(10_000_000, "a streaming head keeps at least the token itself"),
        "sinks": count(1_000_000, "these are tokens at the beginning", least=0),
        "frontier": share("these are shares of key heads that keep all keys and values", percent=True),
        "random_draws": count(1_000, "every one is judged like a ranking"),
        "input_swaps": count(10_000_000, "every one is a run of the model", least=0),
    }

    keep: float = 0.25
    """Share of the key heads that keep all keys and values, 0.25 or 25%; the others stream."""
    window: int = 32
    """Tokens that a streaming head keeps, the last ones, the token itself included."""
    sinks: int = 4
    """Tokens at the beginning that a streaming head keeps as well."""
    task: Source = "repeats"
    """What heads are ranked on."""
    rankings: tuple[Ranking, ...] = (
        "symbolic_mass", "far_task", "far_text", "known", "on_the_fly", "gradient", "combined", "gradient_rounds", "random",
    )  # fmt: skip
    """Rankings that are compared; the plan takes the one that loses least on prompts of its own."""
    frontier: tuple[float, ...] = (0.1, 0.25, 0.5)
    """Shares kept at which all rankings are compared, 0.1 or 10%, beside none, all and the share asked for."""
    random_draws: int = 5
    """Random rankings beside the plan; a verdict takes 5."""
    input_swaps: int = 0
    """Swaps of the prompt itself (k = 0) for the ranking "prompt"; each is a run of the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task not in self.sources:
            raise RotoscopeError(
                f"heads are ranked on {self.task} (--task), which is not among what is judged (--sources "
                f"{' '.join(self.sources)})"
            )
        if set(self.rankings) == {"random"}:
            raise RotoscopeError(
                "random rankings are what a plan is compared with: name at least one other to make it by (--rankings)"
            )
        if self.compared != self.rankings != type(self).rankings:
            raise RotoscopeError(
                "the ranking 'far_text' (--rankings) is made on text, which is not among what is judged (--sources "
                f"{' '.join(self.sources)})"
            )
        if ("prompt" in self.rankings) != (self.input_swaps > 0):
            raise RotoscopeError(
                "the ranking 'prompt' (--rankings) and --input-swaps go together: give both or neither"
            )

    @property
    def compared(self) -> tuple[Ranking, ...]:
        """The rankings that can be made on these sources: of the usual ones, not that on text where there is none."""
        return tuple(name for name in self.rankings if name != "far_text" or "text" in self.sources)
