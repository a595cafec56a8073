"""Whether a series of weights comes in the order it is said to come in."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rotoscope.errors import ModelError
from rotoscope.experiments.train.settings import PUBLISHED, SeriesSettings
from rotoscope.models.hub import (
    AT,
    CERTAIN,
    Checkpoint,
    checkpoints_in,
    hub_name,
    in_order,
    lacking,
    log_spaced,
    named_step,
    named_steps,
    revisions,
    room,
)
from rotoscope.models.loading import Subject, load
from rotoscope.models.zoo import own_model
from rotoscope.runs.record import RUN, RunRecord

CLEARLY = 0.25
"""By which share the steps that a change touches must get shorter before it is believed."""
ALIKE = 0.99
"""Changes that save this share of the most count as equal: reversed, a series is as long as before."""
FEWEST = 4
"""Points of a series about whose order anything is said."""


def out_of_order(points: np.ndarray) -> list[tuple[int, ...]]:
    """Rows of [point, weight] that clearly belong elsewhere: one that would fit another place, or two in each other's.

    The rule. A change takes one point to another place, or exchanges two; it touches the steps from them to their
    neighbours. Where these steps are then shorter by more than `CLEARLY`, by the sum of their squares, the change is
    believed; of several the one that saves most, of equal ones the shortest, and so on with the points that are left.

    Points that wander at random, and points that go straight on, are shortest in their own order: squares of distances
    add up along the former, and to more than their sum along the latter. Points that scatter around one place are about
    as long in every order, and nothing is said of them, nor of a series that is reversed as a whole.
    """
    count = len(points)
    squared = np.zeros((count + 1, count + 1))  # the last stands for both ends: no step leads there
    for row, point in enumerate(points):
        squared[row, :count] = ((points - point) ** 2).sum(-1)
    order = [count, *range(count), count]
    changed: list[tuple[int, ...]] = []
    while count >= FEWEST:
        settled = {count, *(point for points_moved in changed for point in points_moved)}
        changes = [*_exchanges(squared, order, settled), *_moves(squared, order, settled)]
        believed = [change for change in changes if change.saved > CLEARLY * change.before]
        if not believed:
            break
        most = max(change.saved for change in believed)
        alike = [change for change in believed if change.saved > ALIKE * most]
        best = min(alike, key=lambda change: change.distance)
        at = [order.index(point) for point in best.points]
        if len(at) == 2:
            order[at[0]], order[at[1]] = order[at[1]], order[at[0]]
        else:
            order.insert(best.place, order.pop(at[0]))
        changed.append(best.points)
    return sorted(changed)


class _Change(NamedTuple):
    """Points that move, and the squares of the steps which that touches."""

    points: tuple[int, ...]
    before: float
    after: float
    distance: int
    place: int = 0
    """Where a single one goes."""

    @property
    def saved(self) -> float:
        return self.before - self.after


def _exchanges(squared: np.ndarray, order: list[int], settled: set[int]) -> Iterator[_Change]:
    for (a, first), (b, second) in itertools.combinations(enumerate(order), 2):
        if first in settled or second in settled:
            continue
        new = {a: second, b: first}
        steps = {a - 1, a, b - 1, b}
        before = sum(squared[order[k], order[k + 1]] for k in steps)
        after = sum(squared[new.get(k, order[k]), new.get(k + 1, order[k + 1])] for k in steps)
        yield _Change((min(first, second), max(first, second)), before, after, b - a)


def _moves(squared: np.ndarray, order: list[int], settled: set[int]) -> Iterator[_Change]:
    for a, point in enumerate(order):
        if point in settled:
            continue
        rest = [*order[:a], *order[a + 1 :]]
        left = squared[order[a - 1], point] + squared[point, order[a + 1]]
        closed = squared[order[a - 1], order[a + 1]]
        for b, (front, back) in enumerate(itertools.pairwise(rest), start=1):
            if abs(a - b) > 1:  # to the next place is an exchange
                after = closed + squared[front, point] + squared[point, back]
                yield _Change((point,), left + squared[front, back], after, abs(b - a), b)


# The checkpoints of one training: those of a folder, or the branches and tags of a model on the hub.


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


def find_series(source: str | Path, settings: SeriesSettings, *, show_progress: bool | None = None) -> Series:
    """The checkpoints of a folder (of checkpoints, or of one model) or of a model on the hub.

    What would be fetched of the latter is said before anything is, and refused where the disk has no room for it.
    """
    text = str(source)
    name = None if own_model(text) or Path(source).exists() else hub_name(text)
    if name is not None and settings.revisions:
        series = _published(name.partition(AT)[0], settings)
        _say_what_is_fetched(series, show_progress)
        return series
    if settings.revisions:
        raise ModelError(
            f"revisions are branches and tags of a model on the hub, and {text} is none: give org/name (or {CERTAIN}org/name)"
        )
    if name is not None:
        raise ModelError(
            f"no such folder: {text}; if it is a model on the hub, say which of its branches or tags are checkpoints: "
            "--revisions 'step*' (revisions='step*' in Python)"
        )
    return _of_folder(own_model(text) or Path(source), settings.most)


def _of_folder(place: Path, most: int | None) -> Series:
    """The checkpoints of a folder; a folder that is itself a model counts as its last one."""
    if (place / "config.json").is_file():
        trained = RunRecord.read(place).settings.get("steps", 0) if (place / RUN).is_file() else 0
        return Series(place.name, (Checkpoint(int(trained), place.name, place),), folder=place)
    checkpoints, warnings = checkpoints_in(place)
    return Series(place.name, tuple(log_spaced(checkpoints, most)), tuple(warnings), place)


def _published(name: str, settings: SeriesSettings) -> Series:
    """Branches and tags that fit one of the patterns and name a step; the steps of stages are those among all there are."""
    names = revisions(name)
    fitting = [
        revision for revision in names if any(fnmatchcase(revision, pattern) for pattern in settings.revisions)
    ]
    steps, warnings = named_steps(names)
    checkpoints = [
        Checkpoint(steps[revision], revision, f"{CERTAIN}{name}{AT}{revision}", revision)
        for revision in fitting
        if revision in steps
    ]
    stepless = [revision for revision in fitting if revision not in steps]
    if not checkpoints:
        patterns = " or ".join(f"'{pattern}'" for pattern in settings.revisions)
        raise ModelError(
            f"no branch or tag of '{name}' fits {patterns} and names a step, as step1000 does; "
            f"{'those that fit are' if stepless else 'there are'} {_first_names(stepless or names)}"
        )
    chosen = log_spaced(in_order(checkpoints, name), settings.most or PUBLISHED)
    if all(checkpoint.step == named_step(checkpoint.name) for checkpoint in chosen):
        warnings = []
    if stepless:
        warnings.append(f"left out, since their names name no step: {_first_names(stepless)}")
    return Series(name, tuple(chosen), tuple(warnings))


def _first_names(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _say_what_is_fetched(series: Series, show: bool | None) -> None:
    """How much is not here yet, on standard error; more than fits is refused."""
    missing, size = lacking(series.name, [checkpoint.name for checkpoint in series.checkpoints])
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
