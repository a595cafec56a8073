"""What to run next: the questions that a run leaves open, each with the command that answers it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rotoscope.results.caveats import failed
from rotoscope.settings.prompts import OWN, PromptSettings

if TYPE_CHECKING:
    from rotoscope.results.profile import Profile
    from rotoscope.results.record import RunRecord

EASIER = {"binding": "recall", "groups": "lookup", "lookup": "recall", "recall": "repeats"}
MOST = 3


class Step(NamedTuple):
    """A question that is open, and a command."""

    why: str
    command: str


def model_argument(run: RunRecord) -> str:
    """The model as a command takes it: a place, a hub id or an embedded name."""
    source = {} if run.subject is None else run.subject.source
    name = str(run.settings.get("model") or run.name)
    return str(source.get("place") or ("smollm2" if name.startswith("SmolLM2") else name))


def asked_again(run: RunRecord, command: str, *more: str) -> str:
    """The command for the same model on the same prompts, with something more."""
    settings, words = run.settings, ["rotoscope", command, model_argument(run)]
    task, sizes = str(settings.get("task") or ""), dict(settings.get("task_settings") or {})
    if task in PromptSettings.meant_for["prompts"]:
        if task != words[2]:  # our own models are asked their own task
            words += ["--task", task]
        known = {"pairs": None, "length": None, "granularity": "fact", "prefix": None, "seed": 0}
        if task in OWN:
            known = {"seed": 0}
        for name, usual in known.items():
            if name in sizes and sizes[name] not in (None, usual) and task in _meant(name, task):
                words += [f"--{name}", str(sizes[name])]
        words += ["--prompts", str(settings.get("prompts", 16))]
    return shlex.join([*words, *more])


def _meant(name: str, task: str) -> tuple[str, ...]:
    return PromptSettings.meant_for.get(name, (task,))


def next_steps(profile: Profile, same: Sequence[str] = ()) -> list[Step]:
    """The first few questions that a profile leaves open; `same` is the model and the prompts as somebody typed them."""
    return list(_steps(profile, same))[:MOST]


def _steps(profile: Profile, same: Sequence[str]) -> Iterator[Step]:
    run, heads = profile.run, profile.at()
    task = str(run.settings.get("task"))

    def again(command: str, *more: str) -> str:
        return shlex.join(["rotoscope", command, *same, *more]) if same else asked_again(run, command, *more)

    if any(failed(profile.accuracy, profile.chance)) and task in EASIER:
        why = "The model hardly does this task. What do its heads do on one that it does?"
        yield Step(why, shlex.join(["rotoscope", "profile", model_argument(run), "--task", EASIER[task]]))
    if profile.null_name is None:
        yield Step("Would a model that learned nothing give the same?", again("profile", "--null", "random"))
    classes = heads["head_class"].value_counts()
    if "input_class" not in heads and classes.get("symbolic", 0):
        yield Step(
            "Do the symbolic heads follow what was moved, or a place that earlier layers wrote into it?",
            again("profile", "--input-swaps", "64"),
        )
    if classes.get("carried", 0):
        yield Step(
            "At which layer is the place written that carried heads follow?", again("depths", "--at", "all")
        )
    strongest = [name for name in ("carried", "symbolic", "positional") if classes.get(name, 0)]
    if strongest:
        command = ["rotoscope", "gate", model_argument(run), "--heads-of-class", strongest[0]]
        yield Step(f"What does the model lose without its {strongest[0]} heads?", shlex.join(command))
    if "prompt_frequencies" not in profile.tables:
        yield Step("Which frequencies of the heads decide?", again("profile", "--frequencies"))
