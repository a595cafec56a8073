"""The runs of a language model that P1's claims are judged on, each made when it is first needed."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from rotoscope.experiments import plan
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.depths.run import depths
from rotoscope.experiments.gate.result import Gating
from rotoscope.experiments.gate.run import gate
from rotoscope.experiments.known_heads import known_heads
from rotoscope.experiments.plan.result import CachePlan
from rotoscope.experiments.profile.examples import examples, telling_heads, traces_of, vectors_of
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.run import profile
from rotoscope.ledger.claim import HERE, Need
from rotoscope.measures.batches import Batch, batches
from rotoscope.measures.null import CALIBRATION_BATCHES, fresh_model, make_nulls
from rotoscope.measures.scoring import Transform
from rotoscope.models.loading import Subject, load
from rotoscope.models.reader import HeadReader
from rotoscope.runs.record import RunRecord
from rotoscope.tasks.binding import binding
from rotoscope.tasks.prompt import Prompts
from rotoscope.tasks.repeats import repeats

PROMPTS = {"quick": 4, "cpu": 6, "gpu": 16}
PAIRS = {"quick": 32, "cpu": 64, "gpu": 256}
DRAWS = 5
"""Random models beside every figure: fewer can deny a claim, but not confirm one."""
DEPTH: dict[str, tuple[Literal["start"] | None, int, int]] = {
    "chat-32": (None, 32, 16),
    "chat-256": (None, 256, 3),
    "start-32": ("start", 32, 6),
}
"""P1's claims about depth are judged with these: the prefix (the model's usual one, or a start token and "Answer:" at the
end), pairs, prompts."""
PLACES: dict[str, Any] = {"pairs": 16, "count": 128}
REPEATS: dict[str, Any] = {"length": 32, "count": 8, "blocks": "first"}
HALVES: dict[str, Any] = {"bands": 2, "groups": ("symbolic",)}
SWAPPED: dict[str, Any] = {"pairs": 32, "count": 8}
SWAPS = 64
"""Prompts whose facts are exchanged at depths, and how many swaps of each are run."""
CACHE: dict[str, Any] = {"keep": 0.25, "frontier": (0.05, 0.1, 0.2, 0.3, 0.5, 0.75), "prompts": 16}
"""A cache plan that shows the whole frontier."""
COPIES: dict[str, Any] = {"length": 64, "count": 8, "seed": 1}
COPYING, SLOWEST = 10, 0.25
"""How many heads that copy, and which part of their planes is taken, the slowest."""
STORED = Path(__file__).parents[1] / "stored"
"""Runs that come with rotoscope."""
LANGUAGE: tuple[Need, ...] = (
    "proof",
    "scores",
    "profile",
    "telling",
    "depth",
    "places",
    "gating",
    "cache",
    "copying",
    "carried",
    "curves",
)


class LanguageRuns:
    """Runs of one language model at one cost. Those stored are of the default model; of another all are made."""

    folder: Path
    cost: Literal["quick", "cpu", "gpu"]
    source: Any
    device: str | None

    def place(self, name: str) -> Path:
        """Where a run is kept: one per cost, so that none is taken for another."""
        return self.folder / "runs" / f"{name}-{self.cost}"

    @property
    def stored_language(self) -> Path | None:
        """Where runs of this language model come with rotoscope."""
        return STORED / "language" if self.source == "smollm2" else None

    def _stored(self, name: str, *costs: str) -> Path | None:
        """A run that stands in for one that costs more; none where it can be made."""
        home = self.stored_language
        return home / name if home is not None and self.cost in costs else None

    @cached_property
    def subject(self) -> Subject:
        return load(self.source, device=self.device)

    @property
    def model_name(self) -> str:
        """The model's name, as a stored run of it says, or as it is loaded."""
        home = self.stored_language
        return self.subject.name if home is None else RunRecord.read(home / "depth-chat-32").name

    @cached_property
    def prompts(self) -> Prompts:
        return binding(self.subject, PAIRS[self.cost], PROMPTS[self.cost])

    @cached_property
    def profile(self) -> Profile:
        """The model on binding prompts, with every frequency and random models beside it."""
        return self._profiled("profile", self.prompts, frequencies=True, null_draws=DRAWS)

    def _profiled(self, name: str, prompts: Prompts, **how: Any) -> Profile:
        """The model on prompts, kept under a name of its own."""
        place = self.place(f"{name}-{self.subject.fingerprint}")
        return profile(self.subject, prompts, **how, examples=False, out=place)

    @cached_property
    def scores(self) -> Profile:
        """The model on binding prompts without single frequencies: stored with 16 prompts, or this run's profile."""
        stored = self._stored("depth-chat-32", "quick")
        return self.profile if stored is None else Profile.open(stored)

    def statistics(self, name: str) -> pd.DataFrame:
        """Summary figures by name, with the null's beside them, of the profile that has this one."""
        run = self.profile if "plane" in name else self.scores
        return run.statistics().set_index("statistic")

    @cached_property
    def depth(self) -> dict[str, pd.DataFrame]:
        """The summary figures in each of the settings that the claims about depth are judged in."""
        return {name: self._depth(name).statistics().set_index("statistic") for name in DEPTH}

    def _depth(self, name: str) -> Profile:
        if stored := self._stored(f"depth-{name}", "quick", "cpu"):
            return Profile.open(stored)
        prefix, pairs, count = DEPTH[name]
        ending: Literal["likes", "answer"] = "likes" if prefix is None else "answer"
        shown = binding(self.subject, pairs, count, prefix=prefix, ending=ending)
        return self._profiled(f"depth-{name}", shown, null_draws=DRAWS)

    @cached_property
    def places(self) -> Profile:
        """Many questions about a few facts, for what the model answers by where the asked fact stands."""
        if stored := self._stored("places", "quick"):
            return Profile.open(stored)
        return self._profiled("places", binding(self.subject, **PLACES), null="none")

    @cached_property
    def gating(self) -> Gating:
        """Repeated tokens, with the fast or the slow half of the frequencies taken from symbolic heads."""
        if stored := self._stored("gating", "quick"):
            return Gating.open(stored)
        place = self.place(f"gating-{self.subject.fingerprint}")
        return gate(self.subject, repeats(self.subject, **REPEATS), **HALVES, out=place)

    @cached_property
    def cache_plan(self) -> CachePlan:
        """Which key heads need the whole cache, on repeated tokens."""
        if stored := self._stored("cache", "quick"):
            return CachePlan.open(stored)
        return plan.cache(self.subject, **CACHE, out=self.place(f"cache-{self.subject.fingerprint}"))

    @cached_property
    def copying(self) -> Gating:
        """The slowest planes taken from the heads that copy most, and from random heads of their layers."""
        if stored := self._stored("copying", "quick"):
            return Gating.open(stored)
        scores = known_heads(self.subject).nlargest(COPYING, "copying")
        heads = [(int(layer), int(head)) for layer, head in zip(scores["layer"], scores["head"], strict=True)]
        planes = HeadReader(self.subject.model, prove=False).layouts[0].planes
        slow = range(planes - round(SLOWEST * planes) + 1, planes + 1)
        how: dict[str, Any] = {"remove": list(slow), "heads": heads, "controls": DRAWS, "scores": False}
        place = self.place(f"copying-{self.subject.fingerprint}")
        return gate(self.subject, repeats(self.subject, **COPIES), **how, out=place)

    @cached_property
    def carried(self) -> SwapDepths:
        """Facts exchanged in the prompt itself."""
        if stored := self._stored("depths", "quick"):
            return SwapDepths.open(stored)
        return self.curves if self.cost == "gpu" else self._swapped(0)

    @cached_property
    def curves(self) -> SwapDepths:
        """Facts exchanged at every depth."""
        if stored := self._stored("depths", "quick", "cpu"):
            return SwapDepths.open(stored)
        return self._swapped("all")

    def _swapped(self, at: Any) -> SwapDepths:
        place = self.place(f"depths-{at}-{self.subject.fingerprint}")
        shown = binding(self.subject, **SWAPPED)
        return depths(self.subject, shown, at=at, swaps=SWAPS, null_draws=DRAWS, out=place)

    @cached_property
    def telling(self) -> Profile:
        """Traces and vectors of the telling heads on every prompt: the model's (draw -1) and each random model's own."""
        if stored := self._stored("telling", "quick"):
            return Profile.open(stored)
        reader, scores = HeadReader(self.subject.model), self.profile.tables["prompts"]
        parts = [self._telling(reader, scores, -1)]
        for null in make_nulls(
            self.subject, reader, "random", range(DRAWS), scores, self._one_by_one[:CALIBRATION_BATCHES]
        ):
            rows = self.profile.tables["null_prompts"]
            parts.append(self._telling(null.reader, rows[rows["draw"] == null.draw], null.draw, null.transform))
        tables = {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in parts[0]}
        return Profile(self.profile.run, {"prompts": scores, **tables})

    def _telling(
        self, reader: HeadReader, scores: pd.DataFrame, draw: int, transform: Transform | None = None
    ) -> dict[str, pd.DataFrame]:
        heads = telling_heads(Profile(self.profile.run, {"prompts": scores}).at())
        parts: dict[str, list[pd.DataFrame]] = {"traces": [], "vectors": []}
        for one in self._one_by_one:
            found = examples(reader, one, heads=heads.values(), swaps=1, transform=transform)
            for name, make in (("traces", traces_of), ("vectors", vectors_of)):
                table = make(found["shown_prompt"], found["attention"], heads)
                parts[name].append(table.assign(prompt=one.first, draw=draw))
        return {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}

    @cached_property
    def _one_by_one(self) -> list[Batch]:
        return batches(self.prompts, "last", 1)

    def asked_of(self, pairs: int | None = None) -> str:
        """Which model and how many pairs, and that the model is another than the paper's where it is."""
        name = self.model_name
        known = any(family in name.lower() for family in ("gemma-2", "qwen2", "qwen-2", "llama-3"))
        asked = f"on {name}" + (f", {pairs} pairs" if pairs else "")
        return asked if known else f"{asked}; another model than the paper's (give one of those with --model)"

    def language_rests_on(self, text: str) -> str:
        """What a claim about a language model rests on: of a model without stored runs all are made."""
        return text if self.stored_language is not None else HERE


def learned_nothing(subject: Subject, seed: int) -> Subject:
    """A language model of the same class and configuration with fresh weights."""
    model = fresh_model(type(subject.model), subject.model.config, seed, subject.device)
    return replace(subject, model=model.to(subject.model.dtype), name=f"{subject.name}, untrained")
