"""How far multi-hop models are followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rotoscope.settings import SEED, Settings, count, each


@dataclass(frozen=True, kw_only=True)
class LengthsSettings(Settings):
    """Lengths, how many inputs of each, and whether heads are looked at."""

    title: ClassVar = "Lengths"
    python_only: ClassVar = ("heads",)
    bounds: ClassVar = {
        "lengths": count(10_000_000, "these are tokens of an input, and no model has the positions for more"),
        "inputs": count(
            1_000_000, "at least one input is needed, and every one of them runs through the model"
        ),
        "seed": SEED,
    }

    lengths: tuple[int, ...] | None = None
    """Lengths of the inputs in tokens; by default that in training and 25 to 5,000 as far as the models have positions."""
    inputs: int = 400
    """Most sequences per length, fewer at the long end."""
    heads: bool = True
    """Also look at the heads, up to 850 tokens."""
    seed: int = 0
    """Of the sequences."""

    @classmethod
    def plain(cls, changes: dict[str, Any]) -> dict[str, Any]:
        """Lengths in any order, each once."""
        if changes.get("lengths") is None:
            return changes
        lengths = each(changes["lengths"])
        cls.bounds["lengths"].check("lengths", lengths)
        return changes | {"lengths": tuple(sorted({int(n) for n in lengths}))}
