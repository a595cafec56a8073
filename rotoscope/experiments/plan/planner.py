"""The engine of every plan: rank on one set of prompts, choose a ranking on a second, judge on a third beside random choices.

`cache_plan` and `rotation_plan` say what is kept or dropped, how it is ranked, and how a model runs without what is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pandas as pd
import torch

from rotoscope.errors import RotoscopeError, TaskError
from rotoscope.experiments.plan.result import ANY, PLAN, Plan
from rotoscope.experiments.plan.settings import RANDOM, PlanSettings
from rotoscope.experiments.profile.run import describe
from rotoscope.experiments.prompts import read_text
from rotoscope.lab.checkpoints import own_task
from rotoscope.measures.batches import (
    Halving,
    answer_logits,
    answer_losses,
    batches,
    check_losses,
    measure_losses,
    prompts_hash,
)
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.progress import progress_bar
from rotoscope.runs.record import Proof
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.shapes import Tensor
from rotoscope.tasks.lists import lines_for, lookup
from rotoscope.tasks.prompt import Prompts
from rotoscope.tasks.repeats import repeats
from rotoscope.tasks.text import long_text

NO_DRAW = -1
"""The draw of a ranking that is not drawn."""
TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}
GRADIENT_TOKENS = {"cpu": 512, "cuda": 4096}
"""Tokens that run through the model together, without and with gradients."""

P = TypeVar("P", bound=Plan)
SourcePrompts = dict[str, Prompts]


@dataclass(frozen=True)
class PromptSizes:
    """How long prompts are where the settings leave it open."""

    length: int
    pairs: int
    passage: int


@dataclass(frozen=True)
class Forgotten:
    """What a streaming head has forgotten: all but the last tokens, the query itself included, and the first."""

    window: int
    sinks: int

    def hides(self, query: int, place: int) -> bool:
        """Whether a query no longer sees a place before it."""
        return place >= self.sinks and query - place >= self.window


def source_prompts(
    subject: Subject, settings: PlanSettings, sizes: PromptSizes, forgotten: Forgotten | None = None
) -> SourcePrompts:
    """Prompts by source for ranking, choosing and judging, a third each; no prompt contains another.

    Lines are looked up where a streaming head has `forgotten` them, and there are lines enough for that.
    """
    trained_on, count, seed = own_task(subject), 3 * settings.prompts, settings.seed
    if trained_on is not None and set(settings.sources) != {"repeats"}:
        raise TaskError(
            f"{subject.name} knows only the words of its {trained_on} task: judge its plan by repeated tokens alone (--sources repeats)"
        )
    text = None if settings.text is None else read_text(settings.text)
    makers: dict[str, Callable[[], Prompts]] = {
        "repeats": lambda: repeats(subject, settings.length or sizes.length, count, seed),
        "lookup": lambda: _lookup_prompts(subject, settings, sizes, forgotten),
        "text": lambda: long_text(subject, settings.passage or sizes.passage, count, seed, text=text),
    }
    return {source: makers[source]() for source in settings.sources}


def _lookup_prompts(
    subject: Subject, settings: PlanSettings, sizes: PromptSizes, forgotten: Forgotten | None
) -> Prompts:
    """Lines to look up; where they must be forgotten, by default so many that about half of the later copy is."""
    pairs, count = settings.pairs or sizes.pairs, 3 * settings.prompts
    if forgotten is None:
        return lookup(subject, pairs, count, settings.seed)
    if settings.pairs is None:
        pairs = max(pairs, lines_for(subject, 2 * forgotten.window))
    return lookup(subject, pairs, count, settings.seed, beyond=forgotten.window, after=forgotten.sinks)


def plan_settings(subject: Subject, settings: PlanSettings, prompts: SourcePrompts) -> dict[str, Any]:
    """What a run says it was made with; another text under the same name is another run."""
    return {
        **subject.settings,
        **settings.stored(),
        "prompts_hash": "-".join(map(prompts_hash, prompts.values())),
        "vocabulary": int(subject.model.config.get_text_config().vocab_size),
    }


class Planner(ABC, Generic[P]):
    """A plan in the making. A unit is what can be dropped: a key head, or a plane of one."""

    unit_columns: ClassVar[list[str]]
    within: ClassVar[list[str]] = []
    """Columns of the groups that units are ranked in; by default all units are ranked together."""

    def __init__(
        self, run: Run[P], subject: Subject, reader: HeadReader, settings: Any, prompts: SourcePrompts
    ) -> None:
        self.run, self.subject, self.reader, self.settings = run, subject, reader, settings
        count, device = settings.prompts, reader.device.type
        self.tokens_at_once = TOKENS_AT_ONCE.get(device, TOKENS_AT_ONCE["cpu"])
        self.gradient_tokens = GRADIENT_TOKENS.get(device, GRADIENT_TOKENS["cpu"])
        ranked = {source: prompts[source] for source in self.ranked_on}
        self.ranking_prompts = {source: items[:count] for source, items in ranked.items()}
        choosing = slice(count, count + max(1, count // 2))
        self.choosing_prompts = {source: items[choosing] for source, items in ranked.items()}
        self.judging_prompts = {source: items[2 * count :] for source, items in prompts.items()}
        per_draw = max(2, count // 4)
        self.random_prompts = {source: items[:per_draw] for source, items in self.judging_prompts.items()}
        self.halving = Halving(run.record.warnings)
        self.units = self.all_units()

    @property
    def ranked_on(self) -> Sequence[str]:
        """Sources that units are ranked on."""
        return self.settings.sources  # type: ignore[no-any-return]

    @abstractmethod
    def all_units(self) -> pd.DataFrame:
        """One row per unit: `unit_columns`, and what else is known of it."""

    @property
    @abstractmethod
    def budgets(self) -> dict[int, dict[str, float]]:
        """By the number of units kept, the budget's columns; none and all are the first and the last."""

    @abstractmethod
    def rank(self, name: str) -> pd.DataFrame:
        """The units with their `number` and `place` in a ranking that is not drawn."""

    @abstractmethod
    def without(self, dropped: pd.DataFrame) -> AbstractContextManager[Any]:
        """A context in which the model runs without some units."""

    @abstractmethod
    def decide(self, ranked: pd.DataFrame) -> Tables:
        """The table of the plan itself, from the ranking it takes."""

    @abstractmethod
    def export(self) -> None:
        """Write the plan as files for other programs."""

    def plan(self, show_progress: bool | None) -> P:
        """Rank, choose and judge; what an earlier try has finished is read back."""
        run, settings = self.run, self.settings
        names = [name for name in settings.rankings if name != RANDOM]
        draws = settings.random_draws if RANDOM in settings.rankings else 0
        least, *between, most = self.budgets
        if not between:
            raise RotoscopeError(
                f"at no budget would some of the {len(self.units)} {self.unit_columns[-1].replace('_', ' ')}s be kept and others "
                "dropped, so rankings could not be compared: give another --keep, --planes or --frontier"
            )
        check_losses(self.subject, self.judging_prompts, 2 + (len(names) + draws) * len(between), run.folder)
        with progress_bar("planning", 2 + len(names) * (1 + len(between)) + draws, show_progress) as bar:
            for count in (least, most):
                run.piece(f"{ANY}-{count}", partial(self._point, ANY, NO_DRAW, self._unranked, count))
                bar.advance()
            for name in names:
                ranked = run.piece(f"ranking-{name}", partial(self._ranking, name))["scores"]
                bar.advance()
                for count in between:
                    run.piece(f"point-{name}-{count}", partial(self._point, name, NO_DRAW, ranked, count))
                    bar.advance()
            for draw in range(draws):
                run.piece(f"{RANDOM}-{draw}", partial(self._random_choice, draw, between))
                bar.advance()
        run.piece(PLAN, self._decision)
        self.export()
        reader = self.reader
        return run.finish(
            subject=describe(self.subject, reader, run.record.settings["fingerprint"]),
            proof=Proof(len(reader.proof), max(reader.proof, default=None), reader.way),
        )

    @property
    def _unranked(self) -> pd.DataFrame:
        return self.placed(np.zeros(len(self.units)))

    def placed(self, numbers: np.ndarray) -> pd.DataFrame:
        """Units with a number each, and their places by it: 0 for the largest; of equal ones the first unit comes first."""
        units = self.units[self.unit_columns].assign(number=numbers)
        ordered = units.sort_values("number", ascending=False, kind="stable")
        groups = ordered.groupby(self.within) if self.within else ordered.groupby(np.zeros(len(ordered)))
        return units.assign(place=groups.cumcount().reindex(units.index))

    def _ranking(self, name: str) -> Tables:
        return {"scores": self.rank(name).assign(ranking=name, draw=NO_DRAW)}

    def _random_choice(self, draw: int, counts: Sequence[int]) -> Tables:
        """A random ranking, and what it loses at every budget."""
        generator = np.random.default_rng((self.settings.seed, draw))
        ranked = self.placed(generator.random(len(self.units))).assign(ranking=RANDOM, draw=draw)
        points = [self._point(RANDOM, draw, ranked, count)["points"] for count in counts]
        return {"scores": ranked, "points": pd.concat(points, ignore_index=True)}

    def _point(self, name: str, draw: int, ranked: pd.DataFrame, count: int) -> Tables:
        """Loss and accuracy with so many units kept. Random choices choose nothing, and are judged on fewer prompts."""
        prompts = {"judging": self.random_prompts if name == RANDOM else self.judging_prompts}
        if name not in (ANY, RANDOM):
            prompts["choosing"] = self.choosing_prompts
        with self.reader.ready(), self.without(ranked[ranked["place"] >= count]):
            parts = [
                measure_losses(self.subject, sources, self.halving, self.tokens_at_once).assign(purpose=purpose)
                for purpose, sources in prompts.items()
            ]
        labels = {"ranking": name, "draw": draw, **self.budgets[count]}
        rows = pd.concat(parts, ignore_index=True).assign(**labels)
        return {"points": rows[[*labels, "purpose", "source", "prompt", "loss", "accuracy"]]}

    def _decision(self) -> Tables:
        result = self.run.result
        scores = result.scores
        ranked = scores[scores["ranking"] == result.ranking]
        return self.decide(ranked if len(ranked) else self._unranked)


# What dropping every unit costs, of all at once, by gradients.
#
# Let every unit be mixed from what it does when it is kept (1) and when it is dropped (0). Along the path on which all mixes go
# from 1 to 0 together, what one unit adds to the loss is the integral of minus the derivative by its own mix. The sum over the
# units is what dropping all of them costs, up to the few points at which the path is looked at.


Mixes = list[Tensor]
"""A number for every unit, layer by layer."""


def path_points(count: int) -> list[float]:
    """The middles of equal parts of a path from 1 to 0."""
    return [1 - (k + 0.5) / count for k in range(count)]


def path_gradients(
    subject: Subject,
    reader: HeadReader,
    prompts: Mapping[str, Prompts],
    path: Sequence[Mixes],
    mixed: Callable[[Mixes], AbstractContextManager[Any]],
    most_tokens: int = GRADIENT_TOKENS["cpu"],
) -> Mixes:
    """Minus the derivative of the loss by every mix, in the mean over a path; the loss is the mean over sources and prompts.

    `mixed` is a context in which the model runs with mixes.
    """
    total = [torch.zeros(part.shape, dtype=torch.float64) for part in path[0]]
    with mixes_alone(reader):
        for point in path:
            mixes = [part.to(reader.device, copy=True).requires_grad_() for part in point]
            for items in prompts.values():
                for batch in batches(items, "task", most_tokens):
                    with mixed(mixes):
                        losses, _ = answer_losses(answer_logits(subject, batch), batch)
                        (losses.mean(1).sum() / (len(items) * len(prompts))).backward()
            for part, mix in zip(total, mixes, strict=True):
                if mix.grad is not None:
                    part -= mix.grad.double().cpu() / len(path)
    return total


@contextmanager
def mixes_alone(reader: HeadReader) -> Iterator[None]:
    """Gradients of nothing but mixes, without dropout; the model is left as it was."""
    weights = [weight for weight in reader.model.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with reader.ready(), torch.enable_grad():
            yield
    finally:
        for weight in weights:
            # Weights that a device map brings in for one call are dropped after it.
            if not weight.is_inference():
                weight.requires_grad_(True)
