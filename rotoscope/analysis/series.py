"""The checkpoints of one training: those of a folder, or the branches and tags of a model on the hub."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rotoscope.errors import ModelError
from rotoscope.reading import Subject, load, own_model
from rotoscope.reading.checkpoints import (
    Checkpoint,
    checkpoints_in,
    in_order,
    log_spaced,
    named_step,
    named_steps,
)
from rotoscope.reading.hub import AT, CERTAIN, hub_name, lacking, revisions, room
from rotoscope.results.record import RUN, RunRecord
from rotoscope.settings import SeriesSettings
from rotoscope.settings.series import PUBLISHED


@dataclass(frozen=True)
class Series:
    """Checkpoints in order, what has to be said of them, and the folder they are in, if they are in one."""

    name: str
    checkpoints: tuple[Checkpoint, ...]
    warnings: tuple[str, ...] = ()
    folder: Path | None = None

    def load_last(self, **loading: Any) -> Subject:
        """The last checkpoint that can be read."""
        for checkpoint in self.checkpoints[:0:-1]:
            try:
                return load(checkpoint.source, **loading)
            except ModelError:
                continue
        return load(self.checkpoints[0].source, **loading)


def find_series(source: str | Path, wanted: SeriesSettings, *, show_progress: bool | None = None) -> Series:
    """The checkpoints of a folder (of checkpoints, or of one model) or of a model on the hub.

    What would be fetched of the latter is said before anything is, and refused where the disk has no room for it.
    """
    text = str(source)
    name = None if own_model(text) or Path(source).exists() else hub_name(text)
    if name is not None and wanted.revisions:
        series = _published(name.partition(AT)[0], wanted)
        _say_what_is_fetched(series, show_progress)
        return series
    if wanted.revisions:
        raise ModelError(
            f"revisions are branches and tags of a model on the hub, and {text} is none: give org/name (or {CERTAIN}org/name)"
        )
    if name is not None:
        raise ModelError(
            f"no such folder: {text}; if it is a model on the hub, say which of its branches or tags are checkpoints: "
            "--revisions 'step*' (revisions='step*' in Python)"
        )
    return _of_folder(own_model(text) or Path(source), wanted.most)


def _of_folder(place: Path, most: int | None) -> Series:
    """The checkpoints of a folder; a folder that is itself a model counts as its last one."""
    if (place / "config.json").is_file():
        trained = RunRecord.read(place).settings.get("steps", 0) if (place / RUN).is_file() else 0
        return Series(place.name, (Checkpoint(int(trained), place.name, place),), folder=place)
    found, said = checkpoints_in(place)
    return Series(place.name, tuple(log_spaced(found, most)), tuple(said), place)


def _published(name: str, wanted: SeriesSettings) -> Series:
    """Branches and tags that fit one of the patterns and name a step; the steps of stages are those among all there are."""
    known = revisions(name)
    fitting = [one for one in known if any(fnmatchcase(one, pattern) for pattern in wanted.revisions)]
    steps, said = named_steps(known)
    found = [Checkpoint(steps[one], one, f"{CERTAIN}{name}{AT}{one}", one) for one in fitting if one in steps]
    stepless = [one for one in fitting if one not in steps]
    if not found:
        patterns = " or ".join(f"'{pattern}'" for pattern in wanted.revisions)
        raise ModelError(
            f"no branch or tag of '{name}' fits {patterns} and names a step, as step1000 does; "
            f"{'those that fit are' if stepless else 'there are'} {_some(stepless or known)}"
        )
    chosen = log_spaced(in_order(found, name), wanted.most or PUBLISHED)
    if all(one.step == named_step(one.name) for one in chosen):
        said = []
    if stepless:
        said.append(f"left out, since their names name no step: {_some(stepless)}")
    return Series(name, tuple(chosen), tuple(said))


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _say_what_is_fetched(series: Series, show: bool | None) -> None:
    """How much is not here yet, on standard error; more than fits is refused."""
    missing, size = lacking(series.name, [one.name for one in series.checkpoints])
    if not missing:
        return
    free, place = room()
    many = f"{len(missing)} of {len(series.checkpoints)} revisions of {series.name}"
    if size > free:
        raise ModelError(
            f"{many} are still to be fetched, {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free in {place}; choose "
            "fewer (--most 4), make room, or keep them elsewhere (HF_HUB_CACHE)"
        )
    if show is not False:
        print(f"{many} are fetched: {size / 1e6:,.1f} MB", file=sys.stderr, flush=True)
