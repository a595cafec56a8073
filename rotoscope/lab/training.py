"""Training GPT-J on the multi-hop tasks: P2's model, its last-token loss, and one schedule.

A run in a folder can be killed at any moment: it goes on from its last saved state, on a CPU to the same weights bit for
bit. Several models are trained as one, and leave a run each, which is like that of a model trained alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import pandas as pd
import torch

from rotoscope.errors import RunError
from rotoscope.lab.checkpoints import Training, save_checkpoint
from rotoscope.lab.gptj import GPTJ
from rotoscope.lab.sequences import model_shape, token_bytes, training_sequences
from rotoscope.lab.settings import TrainSettings
from rotoscope.lab.trainer import Trainer
from rotoscope.models.devices import check_disk, check_memory, one_thread, pick_device
from rotoscope.progress import progress_bar
from rotoscope.runs.record import RUN, Proof
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.settings import Settings
from rotoscope.shapes import Tensor
from rotoscope.tasks.multihop_frames import MultiHops

STATES_KEPT = 2
SAVING = 0.02
"""The most of its time that a training spends on states to go on from, the first and the last aside."""
WRITING_S = 5.0
"""Seconds between two writings of tables; what was not written is made again anyway, from the last state on."""
SMALL = 64
"""Up to this width a CPU trains faster with one thread."""


@dataclass(frozen=True)
class Evaluation:
    """What `on_evaluate` is shown: a model in training, and sequences it has not been trained on."""

    step: int
    model: GPTJ
    held_out: MultiHops
    settings: TrainSettings


OnEvaluate = Callable[[Evaluation], Tables | None]
Task = Literal["number", "letter", "either"]
Tasks = list[Task] | tuple[Task, ...]
Preset = Literal["mini", "paper"]


@overload
def train(task: Task, preset: Preset = "mini", *, seeds: None = None, **changes: Any) -> Training: ...
@overload
def train(task: Task, preset: Preset = "mini", *, seeds: int, **changes: Any) -> list[Training]: ...
@overload
def train(
    task: Tasks, preset: Preset = "mini", *, seeds: int | None = None, **changes: Any
) -> list[Training]: ...
def train(
    task: Task | Tasks,
    preset: Preset = "mini",
    *,
    seeds: int | None = None,
    out: str | Path | None = None,
    on_evaluate: OnEvaluate | None = None,
    device: str | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Training | list[Training]:
    """Train one model, or several as one. `changes` are fields of `TrainSettings`.

    `on_evaluate` is called after the steps of `TrainSettings.evaluations`; tables it returns (with a column `step`)
    become tables of the run, its own `settings`, where it has any, part of the run's, and its `proof` part of the record; models that are trained as one
    are given to its `together`, where it has that, in a list. With `out`, checkpoints are
    kept and a killed run goes on where it was. What cannot fit memory or disk is refused.

    A list of tasks trains a model of each and returns a list of runs; so does a list of restrictions of `angles`, or of kinds
    to `favour`; with `seeds`, so many of each, the first with `seed`, the next with the seed after it. Each run has a folder of
    its own in `out`, `number-0`, `number-fast-0`, `number-symbolic-0` and so on, as if its model had been trained
    alone: with the dropout 0, and on a CPU with any, it has the same weights up to rounding. Runs that are finished are
    read back, and the others go on from the last step at which all of them were saved.
    """
    tasks = [task] if isinstance(task, str) else list(task)
    several = any(isinstance(changes.get(name), list | tuple) for name in ("angles", "favour"))
    alone = isinstance(task, str) and seeds is None and not several
    if alone:
        model_settings = [TrainSettings.preset(preset, task=tasks[0], **changes)]
    else:
        model_settings = TrainSettings.several(preset, tasks, 1 if seeds is None else seeds, **changes)
    target_device = pick_device(device)
    _check_size(model_settings, target_device, out)
    watched = getattr(on_evaluate, "settings", None)
    if not alone and out is not None and (Path(out) / RUN).exists():
        raise RunError(f"{out} holds a run; several models need a folder for their runs: choose another --out")
    runs = []
    for settings in model_settings:
        described = settings.stored() | {"preset": preset}
        if isinstance(watched, Settings):
            described["watched"] = watched.stored()
        place = out if alone or out is None else Path(out) / settings.name
        runs.append(Run(Training, described, place, overwrite=overwrite))
    to_train = [
        _Trainee(run, settings)
        for run, settings in zip(runs, model_settings, strict=True)
        if run.finished is None
    ]
    trained = iter(_train(to_train, target_device, on_evaluate, show_progress) if to_train else ())
    results = [next(trained) if run.finished is None else run.finished for run in runs]
    return results[0] if alone else results


def _check_size(models: list[TrainSettings], device: torch.device, out: str | Path | None) -> None:
    """Raise TooLargeError where the models, their data and one batch, or the checkpoints, cannot fit; impossible sizes are refused, too."""
    numbers = order = checkpoints = 0
    data = dict[tuple[str, int], int]()
    for settings in models:
        example = training_sequences(settings, "test", count=1)
        weights = model_shape(settings, len(example.vocabulary)).weights
        inputs_of_layers = settings.layers * settings.batch * example.length * settings.width
        numbers += 3 * weights + max(
            weights, inputs_of_layers
        )  # weights, two moments; gradients come at the end
        checkpoints += 4 * weights * len(settings.checkpoint_steps)
        order += 8 * settings.steps * settings.batch
        data[settings.task, settings.seed] = token_bytes(settings, "train", example.length)
    work = f"training {len(models)} model{'s' * (len(models) > 1)} of {weights:,} weights in batches of {models[0].batch:,} inputs"
    less = "use fewer steps or sequences, smaller batches or a smaller model"
    check_memory(work, 4 * numbers + order + sum(data.values()), device, less)
    check_disk("keeping the checkpoints", checkpoints, out, "keep fewer checkpoints or train a smaller model")


@dataclass
class _Trainee:
    """A model in training: its run, and the seconds it has taken so far."""

    run: Run[Training]
    settings: TrainSettings
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("training_s", "accuracy_s", "watching_s", "saving_s"), 0.0)
    )
    unwritten: list[Tables] = field(default_factory=list)
    """The tables of evaluations since the last writing."""

    def write_tables(self, point: int) -> None:
        """Write what the evaluations up to a step gave, as one piece of the run."""
        names = dict.fromkeys(name for tables in self.unwritten for name in tables)
        parts = {name: [tables[name] for tables in self.unwritten if name in tables] for name in names}
        self.run.add(
            _key(point), {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}
        )
        self.unwritten = []


def _train(
    trainees: list[_Trainee], device: torch.device, on_evaluate: OnEvaluate | None, show_progress: bool | None
) -> Iterator[Training]:
    """Train these models as one, and finish their runs."""
    settings = trainees[0].settings
    small = device.type == "cpu" and settings.width <= SMALL
    title = f"training {settings.task}" if len(trainees) == 1 else f"training {len(trainees)} models"
    with one_thread(small), progress_bar(title, settings.steps, show_progress) as bar:
        work = _TrainingWork(trainees, device, on_evaluate)
        bar.advance(work.trainer.step)
        for point in settings.evaluations:
            if point < work.trainer.step or (point == work.trainer.step and work.resumed_at is not None):
                continue
            bar.advance(point - work.trainer.step)
            work.advance_to(point)
        tests = [
            work.trainer.accuracy(model, training_sequences(trainee.settings, "test", device))
            for trainee, model in zip(trainees, work.trainer.model.each, strict=True)
        ]
    for trainee, model, test in zip(trainees, work.trainer.model.each, tests, strict=True):
        trainee.run.add("test", {"test": test})
        result = trainee.run.finish(
            timings=trainee.seconds,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            proof=Proof(settings.layers, getattr(on_evaluate, "proof", None)),
            warnings=[*work.warnings, *work.trainer.warnings],
            parameters=sum(weight.numel() for weight in model.weights.values()),
            resumed_at=work.resumed_at,
            **({"trained_as_one": len(trainees)} if len(trainees) > 1 else {}),
        )
        result.folder, result.model = trainee.run.folder, model
        yield result


class _TrainingWork:
    """Training on its way: evaluations, kept checkpoints, states to go on from."""

    def __init__(self, trainees: list[_Trainee], device: torch.device, on_evaluate: OnEvaluate | None) -> None:
        self.trainees, self.on_evaluate = trainees, on_evaluate
        self.settings = trainees[0].settings
        """Of the first; task, angles, favoured kind and seed aside, all have the same."""
        self.trainer = Trainer([trainee.settings for trainee in trainees], device)
        self.held_out = [training_sequences(trainee.settings, "validation", device) for trainee in trainees]
        self.warnings: list[str] = []
        self.save_again = 0.0
        """When it is time for another state, by the clock."""
        self.write_again = 0.0
        """When it is time to write tables."""
        self.resumed_at = self._resume()

    def advance_to(self, point: int) -> None:
        """Train up to an evaluation, look at the models, and save what must survive."""
        before = self.trainer.step
        with self._timed("training_s", *self.trainees):
            self.trainer.run_to(point)
        looks = [
            Evaluation(point, model, held_out, trainee.settings)
            for trainee, model, held_out in zip(
                self.trainees, self.trainer.model.each, self.held_out, strict=True
            )
        ]
        with self._timed("accuracy_s", *self.trainees):
            accuracies = [self.trainer.accuracy(look.model, look.held_out) for look in looks]
        with self._timed("watching_s", *self.trainees), torch.no_grad():
            watched = self._watched(looks)
        states = self.trainer.states()
        with self._timed("saving_s", *self.trainees):
            for trainee, look, metrics, tables, state in zip(
                self.trainees, looks, accuracies, watched, states, strict=True
            ):
                metrics.insert(0, "step", point)
                recent = state["losses"][before:point]
                metrics["loss"] = float(recent.mean()) if point > before else math.nan
                metrics["learning_rate"] = float(self.trainer.rate)
                if point in self.settings.checkpoint_steps:
                    save = partial(save_checkpoint, model=look.model, samples=look.held_out)
                    trainee.run.beside(f"checkpoint-{point}", save)
                trainee.unwritten.append({"metrics": metrics} | tables)
                trainee.run.log(_line(metrics))
        now, last = time.perf_counter(), point == self.settings.steps
        saving = last or (point in self.settings.saved and now >= self.save_again)
        if saving or now >= self.write_again:
            with self._timed("saving_s", *self.trainees):
                for trainee in self.trainees:
                    trainee.write_tables(point)
            self.write_again = time.perf_counter() + WRITING_S
        if saving:
            self._save_states(point, states)

    def _save_states(self, point: int, states: Sequence[dict[str, Tensor]]) -> None:
        """Write what every model needs to go on; how long that takes decides when it is done again."""
        began = time.perf_counter()
        with self._timed("saving_s", *self.trainees):
            for trainee, state in zip(self.trainees, states, strict=True):
                _save(trainee, point, state)
        self.save_again = time.perf_counter() + (time.perf_counter() - began) / SAVING

    def _watched(self, looks: list[Evaluation]) -> list[Tables]:
        """What `on_evaluate` makes of every model, of all together where it can."""
        if self.on_evaluate is None:
            return [{} for _ in looks]
        together = getattr(self.on_evaluate, "together", None)
        return together(looks) if together else [self.on_evaluate(look) or {} for look in looks]

    @contextmanager
    def _timed(self, name: str, *trainees: _Trainee) -> Iterator[None]:
        """Count the time that is spent; what is done for several models is shared among them."""
        began = time.perf_counter()
        yield
        if self.trainer.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.device)
        for trainee in trainees:
            trainee.seconds[name] += (time.perf_counter() - began) / len(trainees)

    def _resume(self) -> int | None:
        """Go on from the last state that all have and that can be read; a damaged one is named and the one before it used."""
        runs = [trainee.run for trainee in self.trainees]
        common = set.intersection(*(set(run.states()) for run in runs))
        for key in sorted(common, reverse=True):
            try:
                states = [run.load_state(key) for run in runs]
                self.trainer.restore(states)
                for run in runs:
                    run.keep_only(earlier for earlier in run.earlier() if earlier <= key)
            except (RunError, KeyError, RuntimeError) as damage:
                self.warnings.append(
                    f"the state saved after {_words(key)} could not be read ({type(damage).__name__}: {damage}); "
                    "the one before it was used"
                )
                continue
            for trainee, state in zip(self.trainees, states, strict=True):
                if "seconds" in state:  # what the work took before it was stopped
                    trainee.seconds = dict(zip(trainee.seconds, state["seconds"].tolist(), strict=True))
            self._forget_after(key)
            return self.trainer.step
        if common:
            self.trainer = Trainer(self.trainer.each, self.trainer.device)
        for run in runs:
            run.keep_only(())
        self._forget_after("")
        return None

    def _forget_after(self, key: str) -> None:
        """What an earlier try left of the steps that are taken again."""
        for trainee in self.trainees:
            for later in trainee.run.states():
                if later > key:
                    trainee.run.drop_state(later)
            trainee.run.trim_log(lambda row: _key(row["step"]) <= key)


def _save(trainee: _Trainee, point: int, state: dict[str, Tensor]) -> None:
    tensors = {name: value.cpu().contiguous() for name, value in state.items()}
    tensors["seconds"] = torch.tensor(list(trainee.seconds.values()), dtype=torch.float64)
    trainee.run.save_state(_key(point), tensors)
    for old in trainee.run.states()[:-STATES_KEPT]:
        trainee.run.drop_state(old)


def _key(point: int) -> str:
    return f"step-{point:08d}"


def _words(key: str) -> str:
    return f"step {int(key.removeprefix('step-'))}"


def _line(metrics: pd.DataFrame) -> dict[str, Any]:
    """An evaluation as one line, for people and tools that watch a run while it is going."""
    first = metrics.iloc[0]
    return {
        "step": int(first["step"]),
        "loss": None if math.isnan(first["loss"]) else float(first["loss"]),
        "learning_rate": float(first["learning_rate"]),
        "accuracy": {str(h): a for h, a in zip(metrics["hops"], metrics["accuracy"], strict=True)},
    }
