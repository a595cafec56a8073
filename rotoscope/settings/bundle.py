"""Runs as a folder of pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rotoscope.settings.base import Settings


@dataclass(frozen=True, kw_only=True)
class BundleSettings(Settings):
    """Where the pages go."""

    title: ClassVar = "Bundle"

    out: Path = Path("site")
    """The folder, which is made whole or not at all."""
    overwrite: bool = False
    """Replace the bundle that is there. What is no bundle, or holds anything else, is never replaced."""
