"""Prompts from settings: of a task, or of the model's own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from rotoscope import tasks
from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.lab.checkpoints import own_task, sequences_for
from rotoscope.models.loading import Subject
from rotoscope.runs.files import plain
from rotoscope.tasks.multihop import MULTIHOP
from rotoscope.tasks.prompt import Prompts

FRESH = 4_000_000
"""Rows of a multi-hop task from here on are in no training run and in no other measurement."""
MADE: dict[str, Callable[..., Prompts]] = {
    "binding": tasks.binding,
    "groups": tasks.groups,
    "lookup": tasks.lookup,
    "recall": tasks.recall,
    "repeats": tasks.repeats,
    "number": partial(tasks.questions, task="number"),
    "letter": partial(tasks.questions, task="letter"),
}
"""Who makes the prompts of a task for a language model."""


def make_prompts(
    subject: Subject, settings: PromptSettings, *, given: Collection[str] = (), usual: str = "binding"
) -> Prompts:
    """What the settings say the subject is shown; `given` names those that were asked for and must mean something.

    Without a task, a model of a multi-hop task is shown its own, any other the `usual` one.
    """
    own = own_task(subject)
    task = settings.task or own or usual
    if own is not None and task in MULTIHOP and task != own:
        raise TaskError(f"{subject.name} was trained on the {own} task, so it cannot be shown the {task} task")
    if own is not None and task not in (own, "repeats"):
        raise TaskError(
            f"{subject.name} knows only the words of its {own} task; leave --task out to profile it on that"
        )
    settings.check_meant(given, task)
    if task == own:
        for name in set(given) & {"length", "prefix"}:
            raise RotoscopeError(
                f"--{name} means something for language models only: {subject.name} has sizes of its own"
            )
        return sequences_for(subject.model.config, settings.prompts, seed=settings.seed, first=FRESH).prompts()
    sizes = {
        name: getattr(settings, name)
        for name, cases in settings.meant_for.items()
        if task in cases and name in settings.names() and getattr(settings, name) is not None
    }
    if task == "text":
        return _own_text(subject, **sizes)
    sizes |= {"count": sizes.pop("prompts"), "seed": settings.seed}
    if settings.granularity.isdigit() and "granularity" in sizes:
        sizes["granularity"] = int(settings.granularity)
    return MADE[task](subject, **sizes)


def _own_text(subject: Subject, text: Path | None = None, blocks: str = "sentence", **how: Any) -> Prompts:
    if text is None:
        raise RotoscopeError("--task text needs --text FILE")
    return tasks.text(subject, read_text(text), _cut(blocks), **how)


def read_text(file: Path) -> str:
    """A user's text file; one that cannot be read is named."""
    try:
        return plain(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise RotoscopeError(f"{file} cannot be read as text ({problem})") from problem


def _cut(blocks: str) -> Any:
    """sentence, line, token, a number of tokens, or spans start:stop,start:stop."""
    if blocks.isdigit():
        return int(blocks)
    if ":" not in blocks:
        return blocks
    try:
        return [tuple(int(end) for end in span.split(":", 1)) for span in blocks.split(",")]
    except ValueError as problem:
        raise RotoscopeError(f"--blocks {blocks}: spans are written start:stop,start:stop") from problem
