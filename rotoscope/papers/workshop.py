"""The runs that claims are judged on, each made when it is first needed and kept in the ledger's folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from rotoscope.analysis.batches import Batch, batches
from rotoscope.analysis.canonical import canonical_experiments
from rotoscope.analysis.dynamics import Watch, measure_dynamics
from rotoscope.analysis.examples import examples, telling_heads
from rotoscope.analysis.geometry import find_geometry
from rotoscope.analysis.lengths import measure_lengths, stored_lengths
from rotoscope.analysis.nulls import make_nulls
from rotoscope.analysis.profiling import profile
from rotoscope.analysis.roles import find_roles
from rotoscope.analysis.theory import run_theory
from rotoscope.lab.training import train
from rotoscope.papers.claim import COSTS, NEEDS, Need
from rotoscope.reading import HeadReader, Subject, load
from rotoscope.results import (
    Canonical,
    Dynamics,
    Geometry,
    Lengths,
    OneHopRun,
    Profile,
    Roles,
    TheoryRun,
    Training,
)
from rotoscope.settings import TrainSettings
from rotoscope.tasks import binding
from rotoscope.tasks.prompts import Prompts

PROMPTS = {"quick": 6, "cpu": 16, "gpu": 16}
PAIRS = {"quick": 32, "cpu": 64, "gpu": 256}
LENGTH_INPUTS = 1000
LONG = TrainSettings.steps
STORED = Path(__file__).parents[1] / "models"
"""Runs that come with rotoscope."""


class Workshop:
    """Makes runs at one cost: `quick` from embedded models, `cpu` in full where a CPU can, `gpu` with training.

    `subject` is the language model P1's claims are put to; `one_hop` are runs of one-hop questions to frontier
    models.
    """

    def __init__(
        self,
        folder: Path,
        cost: Literal["quick", "cpu", "gpu"],
        subject: Any = "smollm2",
        device: str | None = None,
        one_hop: Sequence[str | Path] = (),
    ) -> None:
        self.folder, self.cost, self.source, self.device = folder, cost, subject, device
        self.source_name = subject if isinstance(subject, (str, Path)) else load(subject).name
        self.one_hop = [OneHopRun.open(run) for run in one_hop]

    def rests_on(self, need: Need) -> str:
        """What a run that claims need rests on at this cost."""
        text = NEEDS[need].rests_on[COSTS.index(self.cost)]
        return text.format(device=self.training("number")[0].run.device) if "{device}" in text else text

    def place(self, name: str) -> Path:
        """Where a run is kept: one per cost, so that none is taken for another."""
        return self.folder / "runs" / f"{name}-{self.cost}"

    @cached_property
    def theory(self) -> TheoryRun:
        return run_theory(out=self.folder / "runs" / "theory")

    @cached_property
    def subject(self) -> Subject:
        return load(self.source, device=self.device)

    @cached_property
    def prompts(self) -> Prompts:
        return binding(self.subject, PAIRS[self.cost], PROMPTS[self.cost])

    @cached_property
    def profile(self) -> Profile:
        """P1's model on binding prompts, with every frequency, a null and examples."""
        return profile(
            self.subject,
            self.prompts,
            frequencies=True,
            null="random",
            examples=True,
            out=self.place(f"profile-{self.subject.fingerprint}"),
        )

    @cached_property
    def statistics(self) -> pd.DataFrame:
        """The profile's summary figures, by name, with the null's beside them."""
        return self.profile.statistics().set_index("statistic")

    @cached_property
    def traces(self) -> pd.DataFrame:
        """Attention of the telling heads before and after their most telling swap, on every prompt."""
        reader, heads = HeadReader(self.subject.model), list(telling_heads(self.profile).items())
        parts = [examples(reader, one, heads)["traces"].assign(prompt=one.first) for one in self._one_by_one]
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def null_vectors(self) -> pd.DataFrame:
        """What `profile.vectors` holds, of the random model's own telling heads."""
        scores = Profile(self.profile.run, {"prompts": self.profile.tables["null_prompts"]})
        real = self.profile.tables["prompts"]
        reader = HeadReader(self.subject.model)
        null = next(make_nulls(self.subject, reader, "random", [0], real, self._one_by_one))
        return examples(null.reader, self._one_by_one[0], list(telling_heads(scores).items()))["vectors"]

    @cached_property
    def _one_by_one(self) -> list[Batch]:
        return batches(self.prompts, "last", 1)

    @property
    def asked_of(self) -> str:
        """Which model and how many pairs, and that the model is another than the paper's where it is."""
        name = self.subject.name
        known = any(family in name.lower() for family in ("gemma-2", "qwen2", "qwen-2", "llama-3"))
        asked = f"on {name}, {PAIRS[self.cost]} pairs"
        return asked if known else f"{asked}; another model than the paper's (give one of those with --model)"

    @cached_property
    def canonical(self) -> Canonical:
        """The paper preset of the canonical tasks: stored, or trained where there is time."""
        if self.cost == "quick":
            return Canonical.open(STORED / "canonical")
        return canonical_experiments("all", "paper", device=self.device, out=self.place("canonical"))

    @cache  # noqa: B019 - one workshop lives as long as the command
    def training(self, task: str) -> list[Training]:
        """Paper runs of a task: those stored, or at gpu cost seed 0 trained again beside the stored others."""
        runs = [Training.open(place) for place in (STORED / task, *sorted((STORED / task).glob("seed-*")))]
        if self.cost == "gpu":
            where: Any = {"out": self.place(task), "device": self.device}
            runs[0] = train(task, "paper", on_evaluate=Watch(), **where)  # type: ignore[arg-type]
        return runs

    @cache  # noqa: B019
    def dynamics(self, task: str) -> list[Dynamics]:
        return [measure_dynamics(run) for run in self.training(task)]

    def model(self, task: str) -> str | Path:
        """The trained model of seed 0."""
        return self.place(task) if self.cost == "gpu" and self.training(task) else task

    @cache  # noqa: B019
    def roles(self, task: str) -> Roles:
        if self.cost == "quick":
            return Roles.open(STORED / task / "roles")
        return find_roles(self.model(task), device=self.device, out=self.place(f"roles-{task}"))

    @cache  # noqa: B019
    def geometry(self, task: str) -> Geometry:
        return find_geometry(self.model(task), device=self.device, out=self.place(f"geometry-{task}"))

    @cached_property
    def lengths(self) -> Lengths:
        """Eight models: two tasks, three seeds, a shorter training; stored ones in bfloat16."""
        return self._beside(stored_lengths())

    @cached_property
    def letter_lengths(self) -> Lengths:
        """The letter model's three seeds on more inputs, weights in float32."""
        return self._beside(Lengths.open(STORED / "lengths-float32"))

    def _beside(self, stored: Lengths) -> Lengths:
        """What was stored; at gpu cost with the models trained by this run in place of theirs."""
        if self.cost != "gpu":
            return stored
        names = set(stored.accuracy["model"])
        tables = {}
        for name, table in stored.tables.items():
            fresh = self._fresh_lengths.tables[name]
            fresh = fresh[fresh["model"].isin(names)]
            kept = table[~table["model"].isin(set(fresh["model"]))]
            tables[name] = pd.concat([fresh, kept], ignore_index=True)
        return Lengths(stored.run, tables)

    @cached_property
    def _fresh_lengths(self) -> Lengths:
        trained = {f"{task}-0-{LONG}": self.model(task) for task in ("number", "letter")}
        return measure_lengths(trained, inputs=LENGTH_INPUTS, device=self.device, out=self.place("lengths"))

    @cache  # noqa: B019
    def own_lengths(self, task: str) -> Lengths:
        """The embedded model's own curve, measured by this run."""
        return measure_lengths(
            self.model(task), heads=False, device=self.device, out=self.place(f"lengths-{task}")
        )
