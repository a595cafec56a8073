"""What a reader must know before trusting a profile's scores: one sentence each."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import pandas as pd

from rotoscope.experiments.prompt_settings import OWN, PromptSettings
from rotoscope.runs.result import NextStep
from rotoscope.stats.verdict import ENOUGH_DRAWS
from rotoscope.terminal import NOT_ASKED

if TYPE_CHECKING:
    from rotoscope.experiments.profile.result import Profile
    from rotoscope.runs.record import RunRecord


NO_NULL = "no null: nothing here says what a model that learned nothing would give"
ONE_PROMPT = (
    "one prompt: no interval, and nothing says whether classes are the same on the next; give more prompts"
)
FAILS, FEW_SWAPS, LITTLE_MASS, FIRST_TOKENS = 0.5, 2, 0.2, 4
LITTLE_BETTER = 1.5
"""An accuracy of less than so many times chance says little, however high it is."""


def caveats(profile: Profile) -> list[str]:
    """Every caveat of a profile, found in its tables."""
    return list(_caveats(profile))


def with_missing_caveats(noted: Iterable[object], null_name: str | None, heads: pd.DataFrame) -> list[str]:
    """What a run noted when it was finished; one that is being written has noted nothing yet."""
    found = [str(caveat) for caveat in noted]
    if null_name is None and NO_NULL not in found:
        found.insert(0, NO_NULL)
    if not any("resampled" in caveat for caveat in found):
        found += _unstable(heads)
    return found


def _caveats(profile: Profile) -> Iterator[str]:
    if profile.null_name is None:
        yield NO_NULL
    else:
        yield from few_draws(profile.tables["null_prompts"])
    yield from failed(profile.accuracy, profile.chance)
    heads = profile.at()
    if heads["prompts"].max() == 1:
        yield ONE_PROMPT
    mass = heads["swapped_mass"].median()
    if mass < LITTLE_MASS:
        yield (
            f"the median head puts {mass:.0%} of its attention on the swapped blocks: the rest (often the "
            "first tokens) is not judged by the scores, and tau acts on what is left"
        )
    few = (heads["effective_swaps"] < FEW_SWAPS).mean()
    if few > 0.5:
        yield f"at tau = {profile.taus[0]:g} fewer than two swaps decide the score of {few:.0%} of the heads"
    yield from at_their_layer(heads, "--input-swaps 64")
    yield from _sinks(profile.sinks, str(profile.run.settings.get("task")))
    yield from _unstable(heads)
    still = _layers_without_planes(profile)
    if still:
        yield f"layers {still} do not rotate: one row per head, with frequency_id 0"
    missing = int(heads["missing_reason"].notna().sum())
    if missing:
        yield f"{missing} heads see no swap (a sliding window hides every block) and have no score"


def few_draws(null: pd.DataFrame) -> Iterator[str]:
    """Whether there are too few draws for any verdict of *beyond*."""
    draws = int(null.groupby("null_name")["draw"].nunique().min())
    if draws < ENOUGH_DRAWS:
        count = "1 draw" if draws == 1 else f"{draws} draws"
        yield (
            f"{count} of the null: nothing can be called beyond it with fewer than {ENOUGH_DRAWS} (--null-draws 39)"
        )


def failed(accuracy: float | None, chance: float | None) -> Iterator[str]:
    """Whether the model can do what it is profiled on."""
    if accuracy is None or accuracy >= max(FAILS, min(1.0, LITTLE_BETTER * (chance or 0.0))):
        return
    beside = "" if chance is None else f" (chance {chance:.0%})"
    how = "it mostly fails" if accuracy < FAILS else "at which it is little better than chance"
    yield f"the model answers {accuracy:.0%} of these prompts{beside}: its heads are profiled on a task {how}"


def at_their_layer(heads: pd.DataFrame, how: str) -> Iterator[str]:
    """Symbolic heads whose symbols may be places. In layer 0 there is nothing below that could have written one."""
    symbolic = int(((heads["head_class"] == "symbolic") & (heads["layer"] > 0)).sum())
    if symbolic and "input_class" not in heads:
        yield f"{NOT_ASKED}do symbolic heads follow the word in the prompt?   {how}"


def _unstable(heads: pd.DataFrame) -> Iterator[str]:
    """Heads whose class hangs on the choice of prompts; of one prompt nothing is known."""
    stable = heads.get("stable", pd.Series(dtype="boolean")).astype("boolean")
    unstable = int((~stable).sum())
    if unstable:
        yield (
            f"{unstable} of {len(heads)} heads change class when the prompts are resampled, or have it on fewer than "
            "half of them: more prompts, or a wider gamma"
        )


def _sinks(sinks: pd.DataFrame, task: str = "") -> Iterator[str]:
    """Where attention goes whatever stands there, and whether that decides the scores."""
    if not len(sinks):
        return
    inside = sinks[sinks["in_block"]]
    worst = (inside if len(inside) else sinks).sort_values("attention_mass").iloc[-1]
    where = (
        f"position {worst['position']} ({worst['token_text']!r}) draws {worst['attention_mass']:.0%} of all "
        f"attention (up to {worst['largest_layer_mass']:.0%} in a layer)"
    )
    if not len(inside):
        yield f"attention sink outside the blocks: {where}; the scores judge the rest"
        return
    prompts = inside["prompt"].nunique()
    advice = (
        "keep the first tokens outside the blocks (--prefix chat, or --prefix fact)"
        if worst["position"] < FIRST_TOKENS
        else "leave such a word out of the prompts"
    )
    advice = (
        "" if task in OWN else f"; {advice}"
    )  # our own tasks have nothing before the blocks, and fixed words
    yield f"attention sink inside a block in {prompts} prompts: {where} and decides the scores{advice}"


def _layers_without_planes(profile: Profile) -> list[int]:
    """Layers without rotation, when frequencies were asked for."""
    if "prompt_frequencies" not in profile.tables:
        return []
    fastest = profile.tables["prompt_frequencies"].groupby("layer")["frequency_id"].max()
    return sorted(int(layer) for layer in fastest.index[fastest == 0])


# What to run next: the questions that a run leaves open, each with the command that answers it.


EASIER = {"binding": "recall", "groups": "lookup", "lookup": "recall", "recall": "repeats"}
OTHER = EASIER | {"recall": "binding", "repeats": "recall"}
MOST = 3
HEAD, CLASS = "{head}", "{class}"
"""Stand in commands about a head for its name and its class."""


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


def head_steps(run: RunRecord) -> list[NextStep]:
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
        NextStep(why, command.replace(shlex.quote(HEAD), HEAD).replace(shlex.quote(CLASS), CLASS))
        for why, command in steps
        if command
    ]


def next_steps(profile: Profile, same: Sequence[str] = ()) -> list[NextStep]:
    """The first few questions that a profile leaves open; `same` is the model and the prompts as somebody typed them."""
    return list(_steps(profile, same))[:MOST]


def _steps(profile: Profile, same: Sequence[str]) -> Iterator[NextStep]:
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
            yield NextStep(why, line)


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
