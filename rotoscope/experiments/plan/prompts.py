"""What every plan is judged by: prompts of several sources, made anew for every purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rotoscope.errors import TaskError
from rotoscope.experiments.plan.settings import PlanSettings
from rotoscope.experiments.prompts import read_text
from rotoscope.lab.checkpoints import own_task
from rotoscope.measures.batches import prompts_hash
from rotoscope.models.loading import Subject
from rotoscope.tasks.lists import lines_for, lookup
from rotoscope.tasks.prompt import Prompts
from rotoscope.tasks.repeats import repeats
from rotoscope.tasks.text import long_text


@dataclass(frozen=True)
class Sizes:
    """How long prompts are where the settings leave it open."""

    length: int = 128
    pairs: int = 16
    passage: int = 256


@dataclass(frozen=True)
class OutOfSight:
    """What a head that streams has forgotten: all but the last tokens, the query itself included, and the first."""

    window: int
    sinks: int

    def hides(self, query: int, place: int) -> bool:
        """Whether a query has lost sight of a place before it."""
        return place >= self.sinks and query - place >= self.window


def judged_prompts(
    subject: Subject,
    settings: PlanSettings,
    usual: Sizes,
    *,
    times: int = 1,
    out_of_sight: OutOfSight | None = None,
) -> dict[str, Prompts]:
    """Prompts by source, so many times as many as asked for: of no two is one a part of another.

    Lines are looked up where they are `out_of_sight` of a head that streams, and there are lines enough for that.
    """
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
            made[source] = _lines(subject, settings, usual, times * settings.prompts, out_of_sight)
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


def hash_of_sources(shown: Mapping[str, Prompts]) -> str:
    """The same prompts, source by source, or others: another file of the same name is another run."""
    return "-".join(prompts_hash(prompts) for prompts in shown.values())


def _lines(
    subject: Subject, settings: PlanSettings, usual: Sizes, count: int, out_of_sight: OutOfSight | None
) -> Prompts:
    """Lines to look up; where they must be out of sight, by default so many that about half of the later copy is."""
    pairs = settings.pairs or usual.pairs
    if out_of_sight is None:
        return lookup(subject, pairs, count, settings.seed)
    window, sinks = out_of_sight.window, out_of_sight.sinks
    if settings.pairs is None:
        pairs = max(pairs, lines_for(subject, 2 * window))
    return lookup(subject, pairs, count, settings.seed, beyond=window, after=sinks)
