"""What to run next: the questions that a run leaves open, each with the command that answers it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

from rotoscope.results.caveats import failed
from rotoscope.settings.prompts import PromptSettings

if TYPE_CHECKING:
    from rotoscope.results.profile import Profile
    from rotoscope.results.record import RunRecord

EASIER = {"binding": "recall", "groups": "lookup", "lookup": "recall", "recall": "repeats"}
OTHER = EASIER | {"recall": "binding", "repeats": "recall"}
MOST = 3
HEAD, CLASS = "{head}", "{class}"
"""Stand in commands about a head for its name and its class."""


class Step(NamedTuple):
    """A question that is open, and a command."""

    why: str
    command: str


def model_argument(run: RunRecord) -> str | None:
    """The model as a command takes it: a place, a hub id or an embedded name; None for one that was in memory."""
    source = {} if run.subject is None else run.subject.source
    if source.get("place"):
        return str(source["place"])
    name = str(run.settings.get("model") or run.name)
    return ("smollm2" if name.startswith("SmolLM2") else name) if source.get("kind") == "embedded" else None


def asked_again(run: RunRecord, command: str, *more: str) -> str | None:
    """The command for the same model on the same prompts, with something more; None where it cannot be typed."""
    model, settings, task = model_argument(run), run.settings, str(run.settings.get("task") or "")
    if model is None or task not in PromptSettings.meant_for["prompts"]:
        return None
    words = [model] if task == model else [model, "--task", task]  # our own models are asked their own task
    sizes = dict(settings.get("task_settings") or {}) | {"prompts": settings.get("prompts")}
    if sizes.get("equal_length"):  # has no flag
        return None
    for field in fields(PromptSettings):
        meant = PromptSettings.meant_for.get(field.name, (task,))
        value = sizes.get(field.name)
        if value is None or value == field.default or task not in meant or field.name == "task":
            continue
        if field.name in PromptSettings.python_only:
            return None
        flag = "--" + field.name.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    return shlex.join(["rotoscope", command, *words, *more])


def head_steps(run: RunRecord) -> list[Step]:
    """Commands about one head, whose name and class are to be put in."""
    task, answers = str(run.settings.get("task")), "answers" in run.tables
    gates = {
        "What does the model lose without it?": ("gate", "--silence", "--heads", HEAD),
        f"And without all {CLASS} heads?": ("gate", "--heads-of-class", CLASS),
    }
    wanted = (gates if answers else {}) | {
        "Which of its frequencies decide?": ("profile", "--frequencies", "--heads", HEAD),
        "Where does the place that it follows come from?": ("depths", "--at", "0", "own"),
    }
    steps = [(why, asked_again(run, *words)) for why, words in wanted.items()]
    model = model_argument(run)
    if model is not None and task in OTHER:
        other = shlex.join(["rotoscope", "profile", model, "--task", OTHER[task]])
        steps.insert(-2, ("Is it the same on another task?", other))
    return [
        Step(why, command.replace(shlex.quote(HEAD), HEAD).replace(shlex.quote(CLASS), CLASS))
        for why, command in steps
        if command
    ]


def next_steps(profile: Profile, same: Sequence[str] = ()) -> list[Step]:
    """The first few questions that a profile leaves open; `same` is the model and the prompts as somebody typed them."""
    return list(_steps(profile, same))[:MOST]


def _steps(profile: Profile, same: Sequence[str]) -> Iterator[Step]:
    for why, command, *more in _questions(profile):
        line = (
            shlex.join(["rotoscope", command, *same, *more])
            if same
            else asked_again(profile.run, command, *more)
        )
        model = same[0] if same else model_argument(profile.run)
        if command == "profile" and more[0] == "--task" and model is not None:  # on other prompts
            line = shlex.join(["rotoscope", command, model, *more])
        if line is not None:
            yield Step(why, line)


def _questions(profile: Profile) -> Iterator[tuple[str, ...]]:
    """What is open, the command that answers it, and what it takes beside the model and the prompts."""
    heads, task = profile.at(), str(profile.run.settings.get("task"))
    if any(failed(profile.accuracy, profile.chance)) and task in EASIER:
        why = "The model hardly does this task. What do its heads do on one that it does?"
        yield why, "profile", "--task", EASIER[task]
    if profile.null_name is None:
        yield "Would a model that learned nothing give the same?", "profile", "--null", "random"
    classes = heads["head_class"].value_counts()
    if "input_class" not in heads and classes.get("symbolic", 0):
        why = "Do the symbolic heads follow what was moved, or a place that earlier layers wrote into it?"
        yield why, "profile", "--input-swaps", "64"
    if classes.get("carried", 0):
        yield "At which layer is the place written that carried heads follow?", "depths", "--at", "all"
    strongest = [name for name in ("carried", "symbolic", "positional") if classes.get(name, 0)]
    if strongest and len(profile.answers):  # a gate is judged by what the model answers
        yield (
            f"What does the model lose without its {strongest[0]} heads?",
            "gate",
            "--heads-of-class",
            strongest[0],
        )
    if "prompt_frequencies" not in profile.tables:
        yield "Which frequencies of the heads decide?", "profile", "--frequencies"
