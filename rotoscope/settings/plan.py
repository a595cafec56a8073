"""What plans are judged by, and what each of them decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rotoscope.settings.base import Settings
from rotoscope.settings.bounds import SEED, count
from rotoscope.settings.prompts import PromptSettings

Source = Literal["repeats", "lookup", "text"]
SOURCES: tuple[Source, ...] = ("repeats", "lookup", "text")


@dataclass(frozen=True, kw_only=True)
class PlanSettings(Settings):
    """What a plan is judged by: random tokens repeated, lines to look up, and text."""

    title: ClassVar = "What the plan is judged by"
    python_only: ClassVar[tuple[str, ...]] = ("passage",)
    bounds: ClassVar = {
        "prompts": count(100_000, "every one runs once for every point of the table"),
        "length": PromptSettings.bounds["length"],
        "pairs": PromptSettings.bounds["pairs"],
        "passage": count(1_000_000, "no model has the positions for more", least=4),
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
    seed: int = 0
    """Seed of the prompts and of what is drawn at random beside the plan."""

    @classmethod
    def own(cls) -> tuple[str, ...]:
        """The fields that only this decision has, those without a flag left out."""
        others = {*PlanSettings.names(), *cls.python_only}
        return tuple(name for name in cls.names() if name not in others)
