"""The runs that claims are judged on: stored, or made when a claim first needs them and kept in the ledger's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import pandas as pd

from rotoscope.experiments.ask.result import OneHopRun
from rotoscope.experiments.canonical.result import Canonical
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.gate.result import Gating
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.experiments.plan.result import CachePlan
from rotoscope.experiments.roles.result import Geometry, Roles
from rotoscope.experiments.steering import Steering
from rotoscope.experiments.theory.run import TheoryRun
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.experiments.train.restrictions import Restrictions
from rotoscope.lab.checkpoints import Training
from rotoscope.lab.settings import TrainSettings
from rotoscope.ledger.claim import NEEDS, NotStored
from rotoscope.ledger.language_figures import SETTINGS, STORED, LanguageFigures, measure_language
from rotoscope.ledger.layer_depths import LayerDepths, measure_layer_depths
from rotoscope.models.loading import Subject, load
from rotoscope.runs.record import RUN, RunRecord
from rotoscope.runs.result import SavedRun

R = TypeVar("R", bound=SavedRun)
SEEDS = 3
TASKS: list[Any] = ["number", "letter"]
LENGTH_INPUTS = 1000
LONG = TrainSettings.steps
Size = Literal["mini", "paper"]
RESTRICTED: dict[Size, list[str]] = {"mini": ["slow", "1-4"], "paper": ["slow", "1-8"]}
"""The slow half of the frequencies, and the fastest eighth."""
STEERED: dict[str, Any] = {"alphabet": 16, "digits": 4, "layers": 2, "steps": 800}
"""Models on the task that can be solved either way, where a kind is favoured."""
SWAPPED: dict[str, Any] = {"pairs": 32, "count": 8}
DRAWS = 19
"""Draws of every null."""
CACHE: dict[str, Any] = {"keep": 0.25, "frontier": (0.05, 0.1, 0.2, 0.3, 0.5, 0.75), "prompts": 16}
COPIES: dict[str, Any] = {"length": 64, "count": 8, "seed": 1}
COPYING, SLOWEST = 10, 0.25
"""How many heads that copy, and which part of their planes is taken, the slowest."""


class Runs:
    """The runs of one group of models by name, each opened once."""

    def __init__(self, home: Path, name: str = "") -> None:
        self.home, self.name = home, name
        self.opened: dict[str, SavedRun] = {}
        """A run that is put here stands in place of the stored one."""

    def path(self, name: str) -> Path:
        """Where a stored run lies."""
        return self.home / name

    def run(self, kind: type[R], name: str, make: Callable[[Path], R] | None = None, cost: str = "") -> R:
        """A run by name: put here, stored, or made where the cost that is paid allows it."""
        if name not in self.opened:
            self.opened[name] = self._open(kind, name, make, cost)
        opened: Any = self.opened[name]
        return opened

    def _open(self, kind: type[R], name: str, make: Callable[[Path], R] | None, cost: str) -> R:
        if not self.path(name).is_dir():
            raise NotStored(f"{self.path(name)} holds no run")
        return kind.open(self.path(name))

    def canonical(self) -> Canonical:
        """Toy heads of the canonical tasks."""
        from rotoscope.experiments.canonical.run import canonical_experiments

        return self.run(
            Canonical, "canonical", lambda out: canonical_experiments("all", "paper", out=out), "cpu"
        )

    def training(self, task: str) -> list[Training]:
        """Paper runs of a task, one per seed."""
        return [self.run(Training, f"{task}-{seed}") for seed in range(SEEDS)]

    def dynamics(self, task: str) -> list[Dynamics]:
        """The heads along those trainings."""
        return [Dynamics.of_training(run) for run in self.training(task)]

    def model(self, task: str, seed: int = 0) -> str | Path:
        """The trained model of a seed; that of seed 0 comes with rotoscope."""
        return task

    def roles(self, task: str) -> Roles:
        """What the layers of the model of seed 0 do."""
        from rotoscope.experiments.roles.run import find_roles

        return self.run(Roles, f"roles-{task}", lambda out: find_roles(self.model(task), out=out), "cpu")

    def geometry(self, task: str) -> Geometry:
        """Which frequencies they use."""
        from rotoscope.experiments.roles.result import find_geometry

        return self.run(
            Geometry, f"geometry-{task}", lambda out: find_geometry(self.model(task), out=out), "cpu"
        )

    def lengths(self) -> Lengths:
        """Two tasks, three seeds, and a shorter training, on longer inputs."""
        return self.run(Lengths, "lengths")

    def depths(self) -> LayerDepths:
        """Layers by the depth at which tokens change places."""
        return self.run(LayerDepths, "depths")

    def restricted(self, size: Size) -> Restrictions:
        """Models with all frequencies, with slow ones and with fast ones alone."""
        return self.run(Restrictions, f"restricted-{size}")

    def steered(self) -> Steering:
        """Models that favour a kind, beside those that favour none."""
        return self.run(Steering, "steering-either")

    def cache_plan(self) -> CachePlan:
        """Which key heads of a language model need the whole cache, on repeated tokens."""
        return self.run(CachePlan, "cache")

    def copying(self) -> Gating:
        """The slowest planes taken from the heads that copy most, and from random heads of their layers."""
        return self.run(Gating, "copying")


class UntrainedRuns(Runs):
    """Models that no training step has moved; on longer inputs they are their own training at step 0."""

    def __init__(self) -> None:
        super().__init__(STORED / "untrained", "untrained models")

    def depths(self) -> LayerDepths:
        run = super().depths()
        model = self.lengths().accuracy["model"].str.split("-", expand=True)
        accuracy = self.lengths().accuracy.assign(training=model[1], step=0)
        return LayerDepths(run.run, run.tables | {"accuracy": accuracy})


class ClaimRuns(Runs):
    """The trained models' runs at one cost: `quick` from what is stored, `cpu` what a CPU can, `gpu` with training.

    `model` is the language model P1's claims are put to: its name, a folder, or a run of its figures.
    """

    def __init__(
        self,
        folder: Path,
        cost: Literal["quick", "cpu", "gpu"] = "quick",
        model: Any = "smollm2",
        device: str | None = None,
        one_hop: Sequence[str | Path] = (),
    ) -> None:
        super().__init__(STORED, "trained models")
        self.folder, self.cost, self.source, self.device = folder, cost, model, device
        self.one_hop = [OneHopRun.open(run) for run in one_hop]
        self.nulls = [UntrainedRuns(), Runs(STORED / "twins", "twins trained on shuffled answers")]

    def path(self, name: str) -> Path:
        front, _, rest = name.partition("-")
        if front in TASKS:
            return self.home / front if rest == "0" else self.home / front / f"seed-{rest}"
        if front in ("roles", "geometry"):
            return self.home / rest / front
        if name in ("cache", "copying", "curves", "carried"):
            return self.home / "language" / ("depths" if name in ("curves", "carried") else name)
        return self.home / ("steering/either" if name == "steering-either" else name)

    def pays(self, cost: str) -> bool:
        """Whether runs of a cost are made rather than read."""
        return bool(cost) and (self.cost == "gpu" or (self.cost == "cpu" and cost == "cpu"))

    def _open(self, kind: type[R], name: str, make: Callable[[Path], R] | None, cost: str) -> R:
        if make is None or not self.pays(cost):
            return super()._open(kind, name, None, cost)
        return make(self.place(name))

    def place(self, name: str) -> Path:
        """Where a run is made: one folder per cost, so that none is taken for another."""
        return self.folder / "runs" / f"{name}-{self.cost}"

    def rests_on(self, needs: str) -> str:
        """What a claim rests on at this cost."""
        need = NEEDS[needs]
        if self.source != "smollm2" and needs.startswith("language"):
            return HERE_OR_STORED
        text = need.rests_on(self.cost)
        device = self.training("number")[0].run.device if needs in ("training", "restricted") else ""
        return text.replace(")", f", {device})") if device and text.startswith("stored") else text

    def theory(self, statement: str) -> TheoryRun:
        """The check of one statement."""
        from rotoscope.experiments.theory.run import run_theory

        key = f"theory-{statement}"
        if key not in self.opened:
            self.opened[key] = run_theory(statement, show_progress=False)
        checked: Any = self.opened[key]
        return checked

    # Models trained again at gpu cost.

    def training(self, task: str) -> list[Training]:
        return (
            [run for run in self._trained if run.task == task] if self.cost == "gpu" else super().training(task)
        )

    @cached_property
    def _trained(self) -> list[Training]:
        """All seeds of both tasks, trained as one."""
        from rotoscope.experiments.train.watch import Watch
        from rotoscope.lab.training import train

        placement: Any = {"out": self.place("multihop"), "device": self.device}
        return train(TASKS, "paper", seeds=SEEDS, on_evaluate=Watch(), **placement)

    def model(self, task: str, seed: int = 0) -> str | Path:
        if self.cost == "gpu" and self.training(task):
            return self.place("multihop") / f"{task}-{seed}"
        return task

    def lengths(self) -> Lengths:
        """At gpu cost the models trained by this run stand in place of the stored ones."""
        return self.run(Lengths, "lengths", self._fresh_lengths, "gpu")

    def _fresh_lengths(self, out: Path) -> Lengths:
        from rotoscope.experiments.lengths.run import measure_lengths

        models = {f"{task}-{k}-{LONG}": self.model(task, k) for task in TASKS for k in range(SEEDS)}
        fresh = measure_lengths(models, inputs=LENGTH_INPUTS, device=self.device, out=out)
        return _replaced(Lengths.open(STORED / "lengths"), fresh.tables, "model")

    def depths(self) -> LayerDepths:
        """At gpu cost the layers of seed 0 are measured on the models trained by this run."""
        return self.run(LayerDepths, "depths", self._fresh_depths, "gpu")

    def _fresh_depths(self, out: Path) -> LayerDepths:
        models = {(task, "0", LONG): self.model(task) for task in TASKS}
        layers = measure_layer_depths(models, device=self.device, out=out).layers
        known = self.lengths().accuracy
        known = known[known["model"].isin([f"{task}-0-{LONG}" for task in TASKS])]
        fresh = {"layers": layers, "accuracy": known.assign(training="0", step=LONG)}
        return _replaced(LayerDepths.open(STORED / "depths"), fresh, "training")

    def restricted(self, size: Size) -> Restrictions:
        cost = "cpu" if size == "mini" else "gpu"
        return self.run(Restrictions, f"restricted-{size}", lambda out: self._restricted(size, out), cost)

    def _restricted(self, size: Size, out: Path) -> Restrictions:
        from rotoscope.experiments.train.restrictions import restrictions
        from rotoscope.experiments.train.watch import Watch
        from rotoscope.lab.training import train

        unrestricted = self._trained if size == "paper" else []
        angles = RESTRICTED[size] if unrestricted else ["all", *RESTRICTED[size]]
        placement: Any = {"out": out, "device": self.device}
        trained = train(TASKS, size, seeds=SEEDS, angles=angles, on_evaluate=Watch(), **placement)
        return restrictions([*unrestricted, *trained])

    def steered(self) -> Steering:
        return self.run(Steering, "steering-either", self._steered, "gpu")

    def _steered(self, out: Path) -> Steering:
        from rotoscope.experiments.steering import measure_steering
        from rotoscope.lab.training import train

        kinds: Any = ["none", "symbolic", "positional"]
        placement: Any = {"out": out / "trained", "device": self.device}
        trained: Any = train("either", "mini", seeds=SEEDS, favour=kinds, **placement, **STEERED)
        folders = [run.folder for run in trained]
        return measure_steering(folders, longer=(20, 100), inputs=400, out=out / "measured", device=self.device)

    # Language models.

    @cached_property
    def subject(self) -> Subject:
        """The language model that claims are put to."""
        return load(self.source, device=self.device)

    def language_models(self) -> list[LanguageFigures]:
        """The figures of the chosen model; by default, at quick cost, of every model that is stored."""
        stored = sorted((STORED / "language_figures").glob("*"))
        if self.source == "smollm2" and self.cost == "quick":
            return [self.run(LanguageFigures, f"language_figures/{path.name}") for path in stored]
        if isinstance(self.source, (str, Path)):
            names = {path.name: path for path in stored} if self.cost == "quick" else {}
            folder = names.get(str(self.source), Path(self.source))
            if (folder / RUN).is_file() and RunRecord.read(folder).kind == LanguageFigures.kind:
                return [LanguageFigures.open(folder)]
        return [self.run(LanguageFigures, "language", self._measured, self.cost)]

    def _measured(self, out: Path) -> LanguageFigures:
        names = {"quick": ["chat-32"], "cpu": ["chat-32", "chat-64", "start-32"], "gpu": list(SETTINGS)}
        settings = {name: SETTINGS[name] for name in names[self.cost]}
        if self.cost == "quick":
            settings = {name: replace(setting, prompts=8) for name, setting in settings.items()}
        draws = 39 if self.cost == "gpu" else DRAWS
        return measure_language(self.subject, settings=settings, draws=draws, out=out)

    def cache_plan(self) -> CachePlan:
        from rotoscope.experiments import plan

        return self.run(CachePlan, "cache", lambda out: plan.cache(self.subject, **CACHE, out=out), "cpu")

    def copying(self) -> Gating:
        return self.run(Gating, "copying", self._copying, "cpu")

    def _copying(self, out: Path) -> Gating:
        from rotoscope.experiments.gate.run import gate
        from rotoscope.experiments.known_heads import known_heads
        from rotoscope.models.reader import HeadReader
        from rotoscope.tasks.repeats import repeats

        scores = known_heads(self.subject).nlargest(COPYING, "copying")
        heads = [(int(layer), int(head)) for layer, head in zip(scores["layer"], scores["head"], strict=True)]
        planes = HeadReader(self.subject.model, prove=False).layouts[0].planes
        slow = list(range(planes - round(SLOWEST * planes) + 1, planes + 1))
        settings: dict[str, Any] = {"remove": slow, "heads": heads, "controls": DRAWS, "scores": False}
        return gate(self.subject, repeats(self.subject, **COPIES), **settings, out=out)

    def carried(self) -> SwapDepths:
        """Facts exchanged in the prompt itself."""
        return self.curves() if self.cost == "gpu" else self.run(SwapDepths, "carried", self._swapped, "cpu")

    def curves(self) -> SwapDepths:
        """Facts exchanged at every depth."""
        return self.run(SwapDepths, "curves", self._swapped, "gpu")

    def _swapped(self, out: Path) -> SwapDepths:
        from rotoscope.experiments.depths.run import depths
        from rotoscope.tasks.binding import binding

        at: Any = "all" if self.cost == "gpu" else 0
        return depths(self.subject, binding(self.subject, **SWAPPED), at=at, null_draws=DRAWS, out=out)


HERE_OR_STORED = "the figures of this model, stored or computed by this run"


def _replaced(stored: R, fresh: dict[str, pd.DataFrame], column: str) -> R:
    """A stored run, with the rows of models that were measured again in place of theirs."""
    tables = dict(stored.tables)
    for name, table in fresh.items():
        old = tables[name]
        fits = table[table[column].isin(set(old[column]))]
        tables[name] = pd.concat([fits, old[~old[column].isin(set(fits[column]))]], ignore_index=True)
    return type(stored)(stored.run, tables)
