"""The runs that claims are judged on, each made when it is first needed and kept in the ledger's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import pandas as pd

from rotoscope.experiments.ask.result import OneHopRun
from rotoscope.experiments.canonical.result import Canonical
from rotoscope.experiments.canonical.run import canonical_experiments
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.experiments.lengths.run import measure_lengths, stored_lengths
from rotoscope.experiments.roles.geometry import Geometry, find_geometry
from rotoscope.experiments.roles.result import Roles
from rotoscope.experiments.roles.run import find_roles
from rotoscope.experiments.steering import Steering, measure_steering
from rotoscope.experiments.theory.result import TheoryRun
from rotoscope.experiments.theory.run import run_theory
from rotoscope.experiments.train.dynamics import measure_dynamics
from rotoscope.experiments.train.dynamics_result import Dynamics
from rotoscope.experiments.train.restrictions import Restrictions, restrictions
from rotoscope.experiments.train.watch import Watch
from rotoscope.lab.result import Training
from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.training import train
from rotoscope.ledger.claim import COSTS, NEEDS, Need
from rotoscope.ledger.depth_runs import LayerDepths, measure_layer_depths
from rotoscope.ledger.language_runs import LANGUAGE, STORED, LanguageRuns, learned_nothing
from rotoscope.models.loading import Subject, load
from rotoscope.runs.result import SavedRun

Made = TypeVar("Made", bound=SavedRun)
LENGTH_INPUTS = 1000
LONG = TrainSettings.steps
Size = Literal["mini", "paper"]
RESTRICTED: dict[Size, list[str]] = {"mini": ["slow", "1-4"], "paper": ["slow", "1-8"]}
"""The slow half of the frequencies, and the fastest eighth."""
STEERED: dict[str, Any] = {"alphabet": 16, "digits": 4, "layers": 2, "steps": 800}
"""Models on the task that can be solved either way, where a kind is favoured."""


class Workshop(LanguageRuns):
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
        if need in LANGUAGE:
            return self.language_rests_on(text)
        return text.format(device=self.training("number")[0].run.device) if "{device}" in text else text

    @cache  # noqa: B019 - one workshop lives as long as the command
    def theory(self, statement: str) -> TheoryRun:
        """The check of one statement."""
        return run_theory(statement, show_progress=False)

    @cached_property
    def untrained(self) -> Untrained:
        """The same runs, of models that learned nothing."""
        return Untrained(self)

    @cached_property
    def canonical(self) -> Canonical:
        """The paper preset of the canonical tasks: stored, or trained where there is time."""
        if self.cost == "quick":
            return Canonical.open(STORED / "canonical")
        return canonical_experiments("all", "paper", device=self.device, out=self.place("canonical"))

    @cached_property
    def trends(self) -> pd.DataFrame:
        """How accuracy changes with the answer's distance from the middle."""
        return self.canonical.position_trends()

    @cache  # noqa: B019
    def training(self, task: str) -> list[Training]:
        """Paper runs of a task, one per seed: those stored, or at gpu cost trained again."""
        if self.cost == "gpu":
            return [run for run in self._trained_again if run.task == task]
        return [Training.open(place) for place in (STORED / task, *sorted((STORED / task).glob("seed-*")))]

    @cached_property
    def _trained_again(self) -> list[Training]:
        """All seeds of both tasks, as one."""
        where: Any = {"out": self.place("multihop"), "device": self.device}
        return train(["number", "letter"], "paper", seeds=SEEDS, on_evaluate=Watch(), **where)

    @cache  # noqa: B019
    def dynamics(self, task: str) -> list[Dynamics]:
        return [measure_dynamics(run) for run in self.training(task)]

    def model(self, task: str, seed: int = 0) -> str | Path:
        """The trained model of a seed; that of seed 0 comes with rotoscope."""
        if self.cost == "gpu" and self.training(task):
            return self.place("multihop") / f"{task}-{seed}"
        return task

    @cache  # noqa: B019
    def roles(self, task: str) -> Roles:
        if self.cost == "quick":
            return Roles.open(STORED / task / "roles")
        return find_roles(self.model(task), device=self.device, out=self.place(f"roles-{task}"))

    @cache  # noqa: B019
    def geometry(self, task: str) -> Geometry:
        if self.cost == "quick":
            return Geometry.open(STORED / task / "geometry")
        return find_geometry(self.model(task), device=self.device, out=self.place(f"geometry-{task}"))

    @cached_property
    def lengths(self) -> Lengths:
        """Eight models: two tasks, three seeds, a shorter training; stored ones in bfloat16."""
        return self._beside(stored_lengths())

    @cache  # noqa: B019
    def decay(self, limit: float) -> pd.DataFrame:
        """What the heads' discrepancy does with length, by class."""
        return self.lengths.decay(limit)

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
    def depths(self) -> LayerDepths:
        """The layers of every stored training; at gpu cost those of seed 0 are measured on the models trained again."""
        stored, tasks = LayerDepths.open(STORED / "depths"), ("number", "letter")
        if self.cost != "gpu":
            return stored
        here = {(task, "0", LONG): self.model(task) for task in tasks}
        fresh = measure_layer_depths(here, device=self.device, out=self.place("depths")).layers
        tables, known = dict(stored.tables), self.lengths.accuracy
        known = known[known["model"].isin([f"{task}-0-{LONG}" for task in tasks])]
        for name, table in (("layers", fresh), ("accuracy", known.assign(training="0", step=LONG))):
            kept = tables[name][tables[name]["training"] != "0"]
            tables[name] = pd.concat([kept, table], ignore_index=True)
        return LayerDepths(stored.run, tables)

    @cache  # noqa: B019
    def restricted(self, size: Size) -> Restrictions:
        """Models of a size with all frequencies, with slow ones and with fast ones alone: stored, or trained where there is time."""
        if self.cost == "quick" or (size == "paper" and self.cost != "gpu"):
            return Restrictions.open(STORED / f"restricted-{size}")
        whole = self._trained_again if size == "paper" else []
        angles = RESTRICTED[size] if whole else ["all", *RESTRICTED[size]]
        where: Any = {"out": self.place(f"restricted-{size}"), "device": self.device}
        made = train(["number", "letter"], size, seeds=SEEDS, angles=angles, on_evaluate=Watch(), **where)
        return restrictions([*whole, *made])

    @cached_property
    def steered(self) -> Steering:
        """Models that favour a kind, beside those that favour none: stored, or trained and measured."""
        return self._steered() if self.cost == "gpu" else Steering.open(STORED / "steering" / "either")

    def _steered(self, inputs: int = 400, **changes: Any) -> Steering:
        place, device, how = self.place("steering"), self.device, STEERED | changes
        kinds = ["none", "symbolic", "positional"]
        made: Any = train(
            "either", "mini", seeds=SEEDS, favour=kinds, out=place / "trained", device=device, **how
        )
        folders, out = [run.folder for run in made], place / "measured"
        return measure_steering(folders, longer=(20, 100), inputs=inputs, out=out, device=device)

    @cached_property
    def _fresh_lengths(self) -> Lengths:
        trained = {
            f"{task}-{seed}-{LONG}": self.model(task, seed)
            for task in ("number", "letter")
            for seed in range(SEEDS)
        }
        return measure_lengths(trained, inputs=LENGTH_INPUTS, device=self.device, out=self.place("lengths"))


SEEDS = 3
STILL: dict[str, Any] = {"steps": 2, "watch_every": 1, "learning_rate": 0.0, "checkpoints": 2}
FEW: dict[str, dict[str, Any]] = {
    "training": {"train_sequences": 384, "validation_sequences": 400, "test_sequences": 400} | STILL,
    "canonical": {"steps": 1, "lr": 0.0, "evaluations": 1, "tested": 2048},
    "roles": {"inputs": 200, "fitted": 1600},
    "geometry": {"inputs": 50},
    "lengths": {"lengths": (17, 100, 850), "inputs": 48},
    "depths": {"sequences": 6},
    "restricted": {"train_sequences": 8, "validation_sequences": 8, "test_sequences": 200, "batch": 8} | STILL,
}
"""Trainings whose steps move nothing, and how much is looked at: what was not learned needs no more to show."""


class Untrained(Workshop):
    """The runs of a workshop, of models that learned nothing: freshly initialised, of the same shapes.

    They come with rotoscope; at gpu cost, and beside a language model of your own, they are made.
    """

    def __init__(self, of: Workshop, first: int = 0) -> None:
        super().__init__(of.folder / f"untrained-{first}", of.cost, of.source, of.device)
        self.of, self.first = of, first

    @property
    def model_name(self) -> str:
        return self.of.model_name

    @property
    def stored_language(self) -> Path | None:
        home = self.of.stored_language
        return None if home is None or self.first else STORED / "untrained"

    def _stored(self, name: str, *costs: str) -> Path | None:
        return super()._stored(name, "quick", "cpu")

    def _kept(self, kind: type[Made], name: str, make: Callable[[Path], Made]) -> Made:
        if self.cost != "gpu" and not self.first:
            return kind.open(STORED / "untrained" / name)
        return make(self.place(name))

    @cached_property
    def subject(self) -> Subject:
        return learned_nothing(self.of.subject, self.first)

    @cached_property
    def canonical(self) -> Canonical:
        """Toy heads of the paper preset that no step has moved."""
        made: dict[str, Any] = FEW["canonical"] | {"seed": self.first, "device": self.device}
        return self._kept(
            Canonical, "canonical", lambda out: canonical_experiments("all", "paper", out=out, **made)
        )

    @cache  # noqa: B019
    def training(self, task: str) -> list[Training]:
        return [self._trained(task, self.first + k) for k in range(SEEDS)]

    def _trained(self, task: Any, seed: int) -> Training:
        made: dict[str, Any] = FEW["training"] | {"seed": seed, "device": self.device}
        watch = Watch(inputs=100)
        return self._kept(
            Training,
            f"{task}-{seed}",
            lambda out: train(task, "paper", out=out, on_evaluate=watch, **made),
        )

    def model(self, task: str, seed: int = 0) -> str | Path:
        self._trained(task, self.first + seed)
        return self.place(f"{task}-{self.first + seed}")

    @cache  # noqa: B019
    def roles(self, task: str) -> Roles:
        made: dict[str, Any] = FEW["roles"] | {"device": self.device}
        return self._kept(Roles, f"roles-{task}", lambda out: find_roles(self.model(task), out=out, **made))

    @cache  # noqa: B019
    def geometry(self, task: str) -> Geometry:
        made: dict[str, Any] = FEW["geometry"] | {"device": self.device}
        return self._kept(
            Geometry, f"geometry-{task}", lambda out: find_geometry(self.model(task), out=out, **made)
        )

    @cached_property
    def lengths(self) -> Lengths:
        made: dict[str, Any] = FEW["lengths"] | {"device": self.device}
        return self._kept(Lengths, "lengths", lambda out: measure_lengths(self._named(), out=out, **made))

    @cached_property
    def depths(self) -> LayerDepths:
        """Beside them stand the same random models as beside trained ones."""
        made: dict[str, Any] = FEW["depths"] | {"device": self.device}
        run = self._kept(
            LayerDepths, "depths", lambda out: measure_layer_depths(self._by_training(), out=out, **made)
        )
        model = self.lengths.accuracy["model"].str.split("-", expand=True)
        accuracy = self.lengths.accuracy.assign(training=model[1], step=0)
        return LayerDepths(
            run.run, run.tables | {"accuracy": accuracy, "null": LayerDepths.open(STORED / "depths").null}
        )

    @cache  # noqa: B019
    def restricted(self, size: Size) -> Restrictions:
        made: dict[str, Any] = FEW["restricted"] | {"seed": self.first, "device": self.device}
        made |= {"seeds": SEEDS, "angles": ["all", *RESTRICTED[size]]}
        return self._kept(
            Restrictions,
            f"restricted-{size}",
            lambda out: restrictions(train(["number", "letter"], size, out=out, **made)),
        )

    @cached_property
    def steered(self) -> Steering:
        made: dict[str, Any] = FEW["training"] | {"seed": self.first}
        return self._kept(Steering, "steering-either", lambda _: self._steered(48, **made))

    def _by_training(self) -> dict[tuple[str, str, int], str | Path]:
        return {
            (task, str(self.first + k), 0): self.model(task, k)
            for task in ("number", "letter")
            for k in range(SEEDS)
        }

    def _named(self) -> dict[str, str | Path]:
        """The models by the names that trained ones have in the table of lengths."""
        return {
            f"{task}-{self.first + k}-{LONG}": self.model(task, k)
            for task in ("number", "letter")
            for k in range(SEEDS)
        }

    @cached_property
    def untrained(self) -> Untrained:
        """Beside models that learned nothing stand others that learned nothing."""
        return Untrained(self.of, self.first + SEEDS) if not self.first else Untrained(self.of)
