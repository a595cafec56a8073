"""Prompts from settings: of a task, or of the model's own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from rotoscope import tasks
from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.lab.checkpoints import own_task, sequences_for
from rotoscope.reading import Subject
from rotoscope.settings import PromptSettings
from rotoscope.tasks.multihop import MULTIHOP
from rotoscope.tasks.prompts import Prompts

FRESH = 4_000_000
"""Rows of a multi-hop task from here on are in no training run and in no other measurement."""


def make_prompts(
    subject: Subject, settings: PromptSettings, *, given: Collection[str] = (), usual: str = "binding"
) -> Prompts:
    """What the settings say the subject is shown; `given` names those that were asked for and must mean something.

    Without a task, a model of a multi-hop task is shown its own, any other the `usual` one.
    """
    own = own_task(subject)
    task = settings.task or own or usual
    if task in MULTIHOP and task != own:
        trained = f"was trained on the {own} task" if own else "was not trained on a multi-hop task"
        raise TaskError(f"{subject.name} {trained}, so it cannot be shown the {task} task")
    if own is not None and task in ("binding", "text"):
        raise TaskError(
            f"{subject.name} knows only the words of its {own} task; leave --task out to profile it on that"
        )
    settings.check_meant(given, task)
    if task in MULTIHOP:
        return sequences_for(subject.model.config, settings.prompts, seed=settings.seed, first=FRESH).prompts()
    if task == "binding":
        grain = settings.granularity
        return tasks.binding(
            subject,
            settings.pairs,
            settings.prompts,
            settings.seed,
            prefix=settings.prefix,
            granularity=int(grain) if grain.isdigit() else grain,  # type: ignore[arg-type]
            equal_length=settings.equal_length,
        )
    if task == "repeats":
        if settings.prefix not in (None, "start", "none"):
            raise RotoscopeError(f"--task repeats knows the prefixes start and none, not {settings.prefix}")
        return tasks.repeats(subject, settings.length, settings.prompts, settings.seed, prefix=settings.prefix)
    if settings.text is None:
        raise RotoscopeError("--task text needs --text FILE")
    return tasks.text(
        subject,
        read_text(settings.text),
        _cut(settings.blocks),
        answer=settings.answer,
        equal_length=settings.equal_length,
    )


def read_text(file: Path) -> str:
    """A user's text file; one that cannot be read is named."""
    try:
        return file.read_text(encoding="utf-8")
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
