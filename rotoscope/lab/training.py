"""Training GPT-J on the multi-hop tasks: P2's model, its last-token loss, and one schedule.

A run in a folder can be killed at any moment: it goes on from its last saved state, on a CPU to the same weights bit for
bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from rotoscope.errors import RunError
from rotoscope.lab.checkpoints import save_checkpoint
from rotoscope.lab.cost import training_cost
from rotoscope.lab.gptj import GPTJ
from rotoscope.lab.sequences import model_shape, training_sequences
from rotoscope.lab.trainer import Trainer
from rotoscope.progress import progress_bar
from rotoscope.reading.devices import pick_device
from rotoscope.reading.threads import one_thread
from rotoscope.results.record import Proof
from rotoscope.results.run import Run
from rotoscope.results.saved import Tables
from rotoscope.results.training import Training
from rotoscope.settings import Settings, TrainSettings
from rotoscope.tasks.multihop import MultiHops

STATES_KEPT = 2
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


def train(
    task: Literal["number", "letter"],
    preset: Literal["mini", "paper"] = "mini",
    *,
    out: str | Path | None = None,
    on_evaluate: OnEvaluate | None = None,
    device: str | None = None,
    overwrite: bool = False,
    force: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Training:
    """Train one model. `changes` are fields of `TrainSettings`.

    `on_evaluate` is called after the steps of `TrainSettings.evaluations`; tables it returns (with a column `step`)
    become tables of the run, its own `settings`, where it has any, part of the run's, and its `proof` part of the record. With `out`, checkpoints are
    kept and a killed run goes on where it was. What does not fit memory or would take days is refused, unless you `force` it.
    """
    settings = TrainSettings.preset(preset, task=task, **changes)
    training_sequences(settings, "test", count=1)  # impossible sizes are refused before anything is written
    model_shape(settings, vocabulary=2)
    where = pick_device(device)
    watched = getattr(on_evaluate, "settings", None)
    training_cost(settings, where, getattr(watched, "inputs", 0)).check(where, force=force)
    described = settings.stored() | {"preset": preset}
    if isinstance(watched, Settings):
        described["watched"] = watched.stored()
    run = Run(Training, described, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    small = where.type == "cpu" and settings.width <= SMALL
    with one_thread(small), progress_bar(f"training {task}", settings.steps, show_progress) as bar:
        work = _Work(run, settings, where, on_evaluate)
        bar.advance(work.trainer.step)
        for point in settings.evaluations:
            if point < work.trainer.step or (point == work.trainer.step and work.resumed_at is not None):
                continue
            bar.advance(point - work.trainer.step)
            work.advance_to(point)
        test = work.trainer.accuracy(training_sequences(settings, "test", where))
    run.add("test", {"test": test})
    result = run.finish(
        timings=work.seconds,
        device=torch.cuda.get_device_name(where) if where.type == "cuda" else where.type,
        proof=Proof(settings.layers, getattr(on_evaluate, "proof", None)),
        warnings=work.warnings,
        parameters=sum(weight.numel() for weight in work.trainer.model.weights.values()),
        resumed_at=work.resumed_at,
    )
    result.folder, result.model = run.folder, work.trainer.model
    return result


class _Work:
    """A training run on its way: evaluations, kept checkpoints, states to go on from."""

    def __init__(
        self, run: Run[Training], settings: TrainSettings, device: torch.device, on_evaluate: OnEvaluate | None
    ) -> None:
        self.run, self.settings, self.on_evaluate = run, settings, on_evaluate
        self.trainer = Trainer(settings, device)
        self.held_out = training_sequences(settings, "validation", device)
        self.seconds = {"training_s": 0.0, "accuracy_s": 0.0, "watching_s": 0.0, "saving_s": 0.0}
        self.warnings: list[str] = []
        self.resumed_at = self._resume()

    def advance_to(self, point: int) -> None:
        """Train up to an evaluation, look at the model, and save what must survive."""
        before = self.trainer.step
        with self._timed("training_s"):
            self.trainer.run_to(point)
        with self._timed("accuracy_s"):
            metrics = self.trainer.accuracy(self.held_out)
        metrics.insert(0, "step", point)
        recent = self.trainer.losses[before:point]
        metrics["loss"] = float(recent.mean()) if point > before else math.nan
        metrics["learning_rate"] = float(self.trainer.rate)
        tables = {"metrics": metrics}
        if self.on_evaluate is not None:
            with self._timed("watching_s"), torch.no_grad():
                evaluation = Evaluation(point, self.trainer.model, self.held_out, self.settings)
                tables |= self.on_evaluate(evaluation) or {}
        with self._timed("saving_s"):
            if point in self.settings.kept:
                self.run.beside(
                    f"checkpoint-{point}",
                    lambda place: save_checkpoint(place, self.trainer.model, self.held_out),
                )
            self.run.add(_key(point), tables)
            self.run.log(_line(metrics))
            if point in self.settings.saved:
                self._save(point)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        if self.trainer.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.device)
        self.seconds[name] += time.perf_counter() - began

    def _save(self, point: int) -> None:
        state = {name: value.cpu().contiguous() for name, value in self.trainer.state().items()}
        state["seconds"] = torch.tensor(list(self.seconds.values()), dtype=torch.float64)
        self.run.save_state(_key(point), state)
        for old in self.run.states()[:-STATES_KEPT]:
            self.run.drop_state(old)

    def _resume(self) -> int | None:
        """Go on from the last state that can be read; a damaged one is named and the one before it used."""
        for key in reversed(self.run.states()):
            try:
                state = self.run.load_state(key)
                self.trainer.restore(state)
                self.run.keep_only(earlier for earlier in self.run.earlier() if earlier <= key)
            except (RunError, KeyError, RuntimeError) as damage:
                self.warnings.append(
                    f"the state saved after {_words(key)} could not be read ({type(damage).__name__}: {damage}); "
                    "the one before it was used"
                )
                self.run.drop_state(key)
                continue
            if "seconds" in state:  # what the work took before it was stopped
                self.seconds = dict(zip(self.seconds, state["seconds"].tolist(), strict=True))
            self.run.trim_log(lambda row: row["step"] <= self.trainer.step)
            return self.trainer.step
        self.trainer = Trainer(self.settings, self.trainer.device)
        self.run.keep_only(())
        self.run.trim_log(lambda row: False)
        return None


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
