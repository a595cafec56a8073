"""Which checkpoints of a training are looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rotoscope.settings import Settings, count

PUBLISHED = 12
"""So many of a published series, unless another number is asked for."""


@dataclass(frozen=True, kw_only=True)
class SeriesSettings(Settings):
    """Which revisions of a model on the hub, and how many checkpoints of all there are."""

    title: ClassVar = "Checkpoints"
    bounds: ClassVar = {
        "most": count(1_000_000, "at least one checkpoint is scored, and every one of them is loaded")
    }

    revisions: tuple[str, ...] = ()
    """Of a model on the hub: patterns for the branches or tags that hold its checkpoints, such as 'step*'. What is not on this
    machine yet is downloaded; how much that is is said before."""
    most: int | None = None
    """Score at most so many checkpoints, log-spaced: the first, the last and those between. By default 12 of a model on the
    hub, and all of a folder."""
