"""Which planes of a key head go on rotating."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rotoscope.settings.bounds import count
from rotoscope.settings.plan import PlanSettings

PlaneRanking = Literal["effect", "norm", "fastest", "random"]


@dataclass(frozen=True, kw_only=True)
class RotationSettings(PlanSettings):
    """How many planes of every key head keep their rotation, and how they are ranked."""

    title: ClassVar = "plan rotation: which planes rotate"
    python_only: ClassVar = (
        *PlanSettings.python_only,
        "plane_rankings",
        "plane_budgets",
        "plane_draws",
        "path_points",
    )
    bounds: ClassVar = {
        **PlanSettings.bounds,
        "planes": count(100_000, "no head has more planes", least=0),
        "plane_budgets": count(100_000, "these are numbers of planes that rotate", least=0),
        "plane_draws": count(1_000, "every one is judged like a ranking"),
        "path_points": count(1_000, "every one is a forward and a backward pass over the prompts"),
    }

    planes: int = 8
    """How many planes of every key head go on rotating; the others are stopped."""
    plane_rankings: tuple[PlaneRanking, ...] = ("effect", "norm", "fastest", "random")
    """Rankings of planes that are compared; the plan takes the one that loses least on prompts of its own."""
    plane_budgets: tuple[int, ...] = (4, 16)
    """Numbers of rotating planes at which all rankings are compared, beside none, all and the number asked for; those that are more
    than a head has are left out."""
    plane_draws: int = 5
    """Random rankings that are averaged, and beside which the others are judged."""
    path_points: int = 4
    """Points between rotating and stopped at which the gradients behind the ranking "effect" are taken."""
