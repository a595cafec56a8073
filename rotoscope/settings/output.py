"""Where a command computes and what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rotoscope.settings.base import Settings


@dataclass(frozen=True, kw_only=True)
class Output(Settings):
    """What every command that makes a run takes."""

    title: ClassVar = "Run"

    out: Path | None = None
    """Run folder; by default one under runs/, named after what is run. A killed run goes on where it was."""
    overwrite: bool = False
    """Replace a run made with other settings."""
    figures: bool = True
    """Draw the figures."""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; by default a GPU where there is one."""

    def folder(self, *name: str) -> Path:
        """The run folder: the one asked for, or one named after what is run."""
        return self.out or Path("runs") / "-".join(part for part in name if part)
