"""Checkpoints of one training: which step a name means, whoever gave it, and which of many to look at."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rotoscope.errors import ModelError

NAME = re.compile(
    r"(?:stage-?(?P<stage>\d+)[-_](?:ingredient-?\d+[-_])?)?"
    r"(?:checkpoint|step|global_step)[-_]?(?P<step>\d+)"
    r"(?:[-_]tokens-?[\d.]+[KMBT]?)?"
)
"""Names of trainers (checkpoint-500, global_step500), of Pythia (step1000), of OLMo (step1000-tokens4B,
stage2-ingredient1-step1000-tokens3B) and of SmolLM (step-125000, stage1-step-40000)."""


@dataclass(frozen=True)
class Checkpoint:
    """A model at one step of its training."""

    step: int
    name: str
    """Of the folder, or of the branch or tag."""
    source: str | Path
    """What `rs.load` takes."""
    revision: str | None = None
    """The branch or tag, on the hub."""


def named_step(name: str) -> int | None:
    """The step that a name means within its stage; None where it names none."""
    match = NAME.fullmatch(name)
    return int(match["step"]) if match else None


def named_steps(names: Iterable[str]) -> tuple[dict[str, int], list[str]]:
    """The step of every name that means one, and what has to be said about stages.

    Steps of a later stage are taken as they stand where they go on from those of the stage before; where they begin again, they
    count on from the last one that is named.
    """
    stages: dict[int, dict[str, int]] = {}
    for name in names:
        if match := NAME.fullmatch(name):
            stages.setdefault(int(match["stage"] or 0), {})[name] = int(match["step"])
    steps: dict[str, int] = {}
    notes: list[str] = []
    for stage in sorted(stages):
        last = max(steps.values(), default=-1)
        again = min(stages[stage].values()) <= last
        if again:
            notes.append(
                f"the steps of stage {stage} begin again at {min(stages[stage].values())}: they count on from {last}, the last "
                "step that is named before"
            )
        steps |= {name: step + last * again for name, step in stages[stage].items()}
    return steps, notes


def in_order(checkpoints: Iterable[Checkpoint], place: str) -> list[Checkpoint]:
    """By step; two of the same step are refused."""
    by_step: dict[int, Checkpoint] = {}
    for current in sorted(checkpoints, key=lambda checkpoint: (checkpoint.step, checkpoint.name)):
        if other := by_step.get(current.step):
            raise ModelError(
                f"{other.name} and {current.name} of {place} are both step {current.step}, and may be of two trainings; "
                "leave one of them out"
            )
        by_step[current.step] = current
    return list(by_step.values())


def log_spaced(checkpoints: Sequence[Checkpoint], most: int | None) -> list[Checkpoint]:
    """At most so many, in order: the first, the last, and then again and again the one farthest from those chosen, by the
    logarithm of its step. More of them are therefore always the same and others."""
    if most is None or len(checkpoints) <= most:
        return list(checkpoints)
    places = [math.log1p(checkpoint.step) for checkpoint in checkpoints]
    chosen = [len(checkpoints) - 1, 0][:most]
    while len(chosen) < most:
        rest = [k for k in range(len(checkpoints)) if k not in chosen]
        chosen.append(max(rest, key=lambda k: min(abs(places[k] - places[c]) for c in chosen)))
    return [checkpoints[k] for k in sorted(chosen)]


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """Training step -> checkpoint, for folders called checkpoint-N, step-N or the like, in order."""
    return {checkpoint.step: Path(checkpoint.source) for checkpoint in checkpoints_in(folder)[0]}


def checkpoints_in(folder: Path) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints of a folder in order, and what has to be said about their stages."""
    if not folder.is_dir():
        raise ModelError(f"no such folder: {folder}")
    steps, notes = named_steps(place.name for place in folder.iterdir() if (place / "config.json").is_file())
    if not steps:
        raise ModelError(
            f"{folder} holds no checkpoints: folders called checkpoint-N or step-N, each with a config.json, are wanted"
        )
    return in_order((Checkpoint(step, name, folder / name) for name, step in steps.items()), str(folder)), notes
