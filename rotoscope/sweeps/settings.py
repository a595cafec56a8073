"""How a sweep is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rotoscope.errors import RotoscopeError
from rotoscope.settings import Settings, count


@dataclass(frozen=True, kw_only=True)
class SweepSettings(Settings):
    """Where the items of a sweep run, and which of them."""

    title: ClassVar = "Sweep"
    bounds: ClassVar = {
        "workers": count(1_000, "at least one process is needed, and no machine runs more at once"),
    }

    on: Literal["here", "ray"] = "here"
    """here: in processes of this machine. ray: as tasks of a Ray cluster, a running one (--address) or one started here."""
    shard: str | None = None
    """Only the items of a part, as in 3/16: the third of sixteen. For job arrays; parts may run at the same time."""
    dry_run: bool = False
    """Run nothing: list the items with their state."""
    retry_failed: bool = False
    """Also run again what failed before."""
    workers: int | None = None
    """Processes at once. By default one per GPU; where there is none, one per two cores. Not for ray, which knows its own."""
    address: str | None = None
    """ray: the cluster, as in 10.0.0.1:6379, ray://10.0.0.1:10001 or auto. By default one is started here for the sweep."""
    out: Path | None = None
    """Folder of the sweep, in place of the one that its file names."""
    table: Path | None = None
    """A Parquet file for the heads of all finished items, with a card beside it (.json)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.address is not None and self.on != "ray":
            raise RotoscopeError("--address means something with --on ray only")
        if self.workers is not None and self.on == "ray":
            raise RotoscopeError("--workers means something without --on ray only")
        if self.table is not None and self.dry_run:
            raise RotoscopeError("--table means something without --dry-run only")
        self.part  # noqa: B018 - looked at now, so that a wrong one is refused now

    @property
    def part(self) -> tuple[int, int]:
        """The part of the items that is run, and how many parts there are; the first of one for all."""
        if self.shard is None:
            return 1, 1
        found = re.fullmatch(r"\s*(\d{1,6})\s*/\s*(\d{1,6})\s*", self.shard)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise RotoscopeError(
                f"--shard {self.shard}: parts are written as 3/16, the third of sixteen; the first is 1/16, the last 16/16"
            )
        return int(found[1]), int(found[2])
