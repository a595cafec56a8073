"""How a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rotoscope.settings.base import Settings

MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways to spread a model over devices that accelerate knows by name."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """What is asked of a model before it is measured."""

    title: ClassVar = "Model"

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the weights: as they are stored (auto; number and letter: float32), or another."""
    device_map: str | None = None
    """Spread the model over devices: auto, balanced, balanced_low_0 or sequential (what fits no GPU goes to the CPU, then to
    disk), or a JSON file with a dictionary from modules to devices, cpu and disk. It is read where the weights are."""
    rope: str | None = None
    """Read the model with other rotary settings, as JSON or as key=value: rope_type=yarn,factor=4.0."""
