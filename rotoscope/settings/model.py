"""How a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rotoscope.settings.base import Settings


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """What is asked of a model before it is measured."""

    title: ClassVar = "Model"

    allow_missing: bool = False
    """Load a model also where its weights are not those that its configuration asks for; what is missing is random, and
    everything that is written says so."""
