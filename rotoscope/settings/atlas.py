"""Many models as one data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rotoscope.settings.base import Settings


@dataclass(frozen=True, kw_only=True)
class AtlasSettings(Settings):
    """Where an atlas goes, and what its card says."""

    title: ClassVar = "Atlas"

    out: Path = Path("atlas")
    """The folder, which is made whole or not at all."""
    overwrite: bool = False
    """Replace the atlas that is there. What is no atlas, or holds anything else, is never replaced."""
    name: str | None = None
    """What the data set is called on its card."""
    license: str | None = None
    """What others may do with it, as data sets say it: cc-by-4.0, cc0-1.0, ... By default unknown."""
