"""How a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rotoscope.settings.base import Settings


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """What is asked of a model before it is measured."""

    title: ClassVar = "Model"

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the weights: as they are stored (auto; number and letter: float32), or another."""
    allow_missing: bool = False
    """Load a model also where its weights are not those that its configuration asks for; what is missing is random, and
    everything that is written says so."""
