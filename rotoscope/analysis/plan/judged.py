"""What every plan is judged by: prompts of several sources, made anew for every purpose."""

from __future__ import annotations

from dataclasses import dataclass

from rotoscope.analysis.prompts import read_text
from rotoscope.errors import TaskError
from rotoscope.lab.checkpoints import own_task
from rotoscope.reading import Subject
from rotoscope.settings import PlanSettings
from rotoscope.tasks import Prompts, long_text, lookup, repeats


@dataclass(frozen=True)
class Sizes:
    """How long prompts are where the settings leave it open."""

    length: int = 128
    pairs: int = 16
    passage: int = 256


def judged_prompts(
    subject: Subject, settings: PlanSettings, usual: Sizes, *, times: int = 1
) -> dict[str, Prompts]:
    """Prompts by source, so many times as many as asked for: of no two is one a part of another."""
    own = own_task(subject)
    if own is not None and set(settings.sources) != {"repeats"}:
        raise TaskError(
            f"{subject.name} knows only the words of its {own} task: judge its plan by repeated tokens alone (--sources repeats)"
        )
    made: dict[str, Prompts] = {}
    for source in settings.sources:
        if source == "repeats":
            made[source] = repeats(
                subject, settings.length or usual.length, times * settings.prompts, settings.seed
            )
        elif source == "lookup":
            made[source] = lookup(
                subject, settings.pairs or usual.pairs, times * settings.prompts, settings.seed
            )
        else:
            own_text = None if settings.text is None else read_text(settings.text)
            made[source] = long_text(
                subject,
                settings.passage or usual.passage,
                times * settings.prompts,
                settings.seed,
                text=own_text,
            )
    return made
