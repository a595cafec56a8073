"""Which hops survive when heads have some frequencies only: trainings put beside one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.lab.sequences import training_sequences
from rotoscope.results import Dynamics, Training
from rotoscope.results.record import RunRecord
from rotoscope.results.restrictions import Restrictions
from rotoscope.settings import TrainSettings
from rotoscope.settings.angles import UNRESTRICTED
from rotoscope.settings.bounds import BASE

GUESSED = 1_000
"""Sequences from which chance is known."""
FREE = {
    "seed", "positions", "validation_sequences", "test_sequences", "watch_every", "watch_closely",
    "watch_later", "checkpoints", "preset", "watched",
}  # fmt: skip
"""Settings in which trainings of a task may differ anyway."""
RESTRICTED = {"angles", "base", "nope"}
"""Those of a restriction; what another changes would be taken for the restriction's doing."""
HEAD = ["layer", "head", "positional_score", "symbolic_score", "head_class"]


def restriction_of(settings: Mapping[str, Any]) -> str:
    """The restriction of a training in words: all, where there is none."""
    base, nope = settings.get("base", BASE), settings.get("nope") or ()
    parts = [str(settings.get("angles", UNRESTRICTED))]
    parts += [f"base {base:g}"] if base != BASE else []
    parts += [f"NoPE in {' '.join(map(str, nope))}"] if nope else []
    return ", ".join(parts)


def restrictions(trainings: Sequence[Training]) -> Restrictions:
    """Trainings of the multi-hop tasks that differ in angles, base or NoPE layers, and in seeds.

    Put unrestricted ones among them, three seeds at least of each, or nothing can be said.
    """
    if not trainings:
        raise RotoscopeError("no training was given; give some, with restrictions and without")
    accuracy, heads, seen, chances = [], [], set(), dict[str, float]()
    first = {run.task: run.run.settings for run in reversed(trainings)}
    tasks = list(dict.fromkeys(run.task for run in trainings))
    for run in sorted(trainings, key=lambda run: tasks.index(run.task)):
        settings = run.run.settings
        about = {"task": run.task, "restriction": restriction_of(settings), "seed": settings["seed"]}
        if tuple(about.values()) in seen:
            raise RotoscopeError(f"the training of {', '.join(map(str, about.values()))} was given twice")
        seen.add(tuple(about.values()))
        check_alike(first[run.task], settings, RESTRICTED)
        if run.task not in chances:
            made = training_sequences(TrainSettings.read(settings), "test", count=GUESSED)
            chances[run.task] = float(made.prompts().chance or 0.0)
        accuracy.append(run.test.assign(**about, chance=chances[run.task]))
        if "scores" in run.tables:
            heads.append(Dynamics.of_training(run).pure_from()[HEAD].assign(**about))
    tables = {"accuracy": pd.concat(accuracy, ignore_index=True)}
    if len(heads) == len(accuracy):
        tables["heads"] = pd.concat(heads, ignore_index=True)
    shared = {
        name: value
        for name, value in first[trainings[0].task].items()
        if name not in FREE | RESTRICTED | {"task"}
    }
    return Restrictions(RunRecord(Restrictions.kind, shared, device=trainings[0].run.device), tables)


def check_alike(first: Mapping[str, Any], other: Mapping[str, Any], may_differ: set[str]) -> None:
    """Refuse trainings that differ in more than what is asked about."""
    for name in sorted((set(first) | set(other)) - FREE - may_differ):
        if first.get(name) != other.get(name):
            raise RotoscopeError(
                f"trainings that are put beside one another must have the same {name}, found {first.get(name)} and {other.get(name)}"
            )
