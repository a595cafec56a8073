"""Several processes that train one model: the first looks and writes, and all keep in step."""

from __future__ import annotations

import inspect
import json
import logging
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import torch
from torch import distributed
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from rotoscope.errors import NumberError, RotoscopeError, RunError
from rotoscope.experiments.profile.run import as_prompts, describe
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.experiments.train.dynamics_result import Dynamics, reopened, step_key
from rotoscope.experiments.train.watch import point
from rotoscope.measures.batches import prompts_hash
from rotoscope.models.loading import Subject
from rotoscope.monitor.preserve_training_state import model_inside, untouched
from rotoscope.monitor.schedule import Every, Schedule
from rotoscope.monitor.score_step import PREFIX, Look, class_counts, scalars
from rotoscope.runs.files import read_arrays, save_arrays
from rotoscope.runs.record import Proof
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.settings import SEED
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompts


def is_first() -> bool:
    """Whether this process is the one that looks; the only one, where there is one."""
    return not _several() or distributed.get_rank() == 0


def from_first(*numbers: int, device: torch.device) -> list[int]:
    """The first process's numbers, in every process; all of them must ask."""
    if not _several():
        return list(numbers)
    where = device if distributed.get_backend() == "nccl" else torch.device("cpu")
    told = torch.tensor(numbers, dtype=torch.int64, device=where)
    distributed.broadcast(told, src=0)
    return [int(number) for number in told.tolist()]


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


# The monitor: in anybody's training, all heads are scored now and then, and the training notices nothing of it.
#
# What it finds is a run of kind *dynamics*, as of our own trainings, and a handful of numbers in the trainer's own log.


LOG = logging.getLogger("rotoscope")
LAST_WEIGHTS = "last_weights.safetensors"
"""A few of the weights at the last look, by which a training that goes on is told from another one."""
LEAST_CORRELATION = 0.5
"""Between weights of one training; those of two that began differently do not correlate."""


class HeadMonitor(TrainerCallback):  # type: ignore[misc]
    """Scores all heads of a model while it is trained.

    Give it to a transformers `Trainer` among its `callbacks`. In any other loop, call `step(model, step)` before the first
    step and after each, and `finish()` at the end.

    `prompts` are made by `rotoscope.tasks`, or are token ids [prompts, n]. `every` says when to look: a number of steps,
    "log" (0, 1, 2, 4 ... 512, then every 1,000), a list of steps, or a budget such as "2%" of the time. With `out`, the
    run is a folder that `rotoscope serve` shows while it grows and that a resumed training goes on with. `null_draws` random
    models are scored beside the model at every point. Two monitors of one training need a `label` each, which stands in the names of
    their numbers.

    What can be known to be wrong is an error when training begins. An error later is logged once and switches the monitor off
    (`off` says why), and training goes on; with `strict` it is raised.
    """

    def __init__(
        self,
        prompts: Prompts | MultiHops | Any,
        every: Every = 500,
        *,
        out: str | Path | None = None,
        tau: float | Sequence[float] = 1e-4,
        null_draws: int = 0,
        seed: int = 0,
        tokenizer: Any = None,
        name: str | None = None,
        label: str = "",
        overwrite: bool = False,
        strict: bool = False,
    ) -> None:
        SEED.check("seed", seed)
        self.prefix = f"{PREFIX}{label}/" if label else PREFIX
        samples = prompts if isinstance(prompts, (Prompts, MultiHops)) else as_prompts(None, prompts, None)
        null: dict[str, Any] = {"null": "random", "null_draws": null_draws} if null_draws else {"null": "none"}
        self.look = Look(samples, ProfileSettings.make(tau=tau, examples=False, **null), seed)
        self.schedule = Schedule(every)
        self.out, self.tokenizer, self.name = out, tokenizer, name
        self.overwrite, self.strict = overwrite, strict
        self.off: str | None = None
        """Why nothing is measured any more."""
        self.run: Run[Dynamics] | None = None
        self._finished: Dynamics | None = None
        self._begun = False
        self._of: int | None = None
        self._looked: int | None = None
        self._fresh: dict[str, float] = {}
        """What the trainer's log has not been given yet."""

    def begin(self, model: Any, step: int = 0, *, of: int | None = None, tokenizer: Any = None) -> None:
        """Check that everything will work, and go on with the run of a training that was stopped, from this step on.

        `of` is the number of steps there will be. Called by itself where it was not.
        """
        self.tokenizer, self._of = self.tokenizer or tokenizer, of
        inside, problem = model_inside(model), None
        if is_first():
            try:
                self._prepare(inside, step)
            except Exception as found:  # the other processes wait to hear of it
                problem = found
        [failed] = from_first(int(problem is not None), device=_device(inside))
        if problem is not None:
            raise problem
        if failed:
            raise RunError("the first process could not begin to monitor the training; it says why")
        self.schedule.begin(step)
        self._begun, self._looked, self.off = True, None, None

    def step(self, model: Any, step: int, *, now: bool = False) -> dict[str, float] | None:
        """Look at the model if this step is due, or `now`; gives the numbers for a log, None where nothing was measured.

        All processes of a training must call it. Only the first measures; the others are given an empty dictionary.
        """
        if not self._begun:
            self.begin(model, step)
        if self.off is not None or step == self._looked or not (now or self.schedule.due(step)):
            return None
        found, problem = None, None
        if is_first():
            try:
                found = self._point(model_inside(model), step, now)
            except Exception as raised:  # whatever it is, it is not worth a training
                problem = raised
        told = (problem is not None, found is not None, self.schedule.next_look)
        failed, made, self.schedule.next_look = from_first(*map(int, told), device=_device(model))
        if failed:
            self._switch_off(step, problem or RunError("the first process of the training says why"))
            problem = None  # it holds on to what the failed look had in memory
        self._looked = step
        return (found or {}) if made else None

    def finish(self) -> Dynamics | None:
        """The run, finished: its tables are written, and it can be opened. None in processes that did not measure."""
        self._begun = False
        if self.run is None or not len(self.run.result.points):
            return None
        reader, run, self.run = self.look.reader, self.run, None
        assert reader is not None
        try:
            self._finished = run.finish(
                timings={"monitor_s": self.schedule.spent},
                proof=Proof(len(reader.proof), max(reader.proof, default=None), reader.way),
                proofs=self.look.proofs,
            )
            return self._finished
        except Exception as problem:
            if self.strict:
                raise
            LOG.warning("the monitor's run could not be finished, and is left as it is: %s", problem)
            return None

    @property
    def result(self) -> Dynamics:
        """The run as far as it is made, or as it was finished."""
        if self.run is not None:
            return self.run.result
        if self._finished is None:
            raise RunError("the monitor has measured nothing yet, or not in this process")
        return self._finished

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    def _prepare(self, model: Any, step: int) -> None:
        subject = self._subject(model)
        with untouched(model):
            self.look.check(subject)
        self.run = self._run_from(subject, step)
        assert self.look.reader is not None
        self.run.record.subject = describe(subject, self.look.reader, subject.fingerprint)
        self.run.record.details["every"] = self.schedule.stored()
        self.run.begin()

    def _subject(self, model: Any) -> Subject:
        title = self.name or getattr(model, "name_or_path", "") or model.config.model_type
        return Subject(model, self.tokenizer, title, {"kind": "memory"})

    def _settings(self, subject: Subject) -> dict[str, Any]:
        """What makes two tries one run: the model's shape, the prompts and how they are scored, but not the weights."""
        config = subject.model.config.get_text_config()
        sizes = {
            name: getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size")
        }
        look, prompts = self.look, self.look.prompts
        return {
            "source": "monitor",
            **({"model": self.name} if self.name else {}),
            "architecture": subject.model.config.model_type,
            **sizes,
            "task": prompts.task,
            "task_settings": prompts.settings,
            "prompts_hash": prompts_hash(prompts),
            "chance": prompts.chance,
            "queries": "last",
            "inputs": len(prompts),
            "tau": list(look.settings.tau),
            "null": look.settings.null,
            "null_draws": look.settings.null_draws if look.settings.null != "none" else 0,
            "seed": look.seed,
        }

    def _run_from(self, subject: Subject, step: int) -> Run[Dynamics]:
        """The run with the points up to a step that an earlier try has made."""
        settings = json.loads(json.dumps(self._settings(subject), default=str))
        if self.run is not None and self.run.record.settings == settings:  # begins anew in the same process
            run = self.run
        else:
            run = Run(Dynamics, settings, self.out, overwrite=self.overwrite and step == 0)
        made = [int(key.removeprefix("step-")) for key in run.earlier()]
        made = made or [int(one) for one in (run.finished or run.result).points.get("step", ())]
        later = [one for one in made if one > step]
        if run.finished is not None and (step == 0 or (later and not _passed(run.finished, subject, step))):
            raise RunError(
                f"{self.out} holds a finished run of such a training; choose another out, or overwrite=True to replace it"
            )
        self._check_training(run, subject, [one for one in made if one <= step], step)
        if later:
            words = "points" if len(later) > 1 else "point"
            LOG.warning(
                "%d %s after step %d, of a try that did not get on: made again", len(later), words, step
            )
        if run.finished is not None:
            return reopened(run.finished, run, step)
        run.keep_only(step_key(one) for one in made if one <= step)
        run.trim_log(lambda row: row["step"] <= step)
        return run

    def _check_training(self, run: Run[Dynamics], subject: Subject, kept: list[int], step: int) -> None:
        """Refuse to go on with the points of another training, told by its weights at this step, or at its last look."""
        if run.folder is None or not kept:
            return
        if max(kept) == step:
            run.done(step_key(step))
            difference = (
                ""
                if _passed(run.finished or run.result, subject, step)
                else f"at step {step} it had other weights"
            )
        else:
            difference = _unlike(run.folder / LAST_WEIGHTS, subject)
        if difference:
            raise RunError(
                f"{self.out} holds points of another training ({difference}); choose another out, or overwrite=True to replace it"
            )

    def _point(self, model: Any, step: int, now: bool) -> dict[str, float] | None:
        """Measure and write one point; None where it is there already, or there is no time."""
        run, subject = self.run, self._subject(model)
        assert run is not None
        if not now and not self.schedule.has_time(step):
            return None
        if run.done(step_key(step)):
            before = run.result.points.set_index("step")["fingerprint"]
            if before[step] == subject.weights_fingerprint:
                return None
        if subject.device.type == "cuda":  # what the training has left to do is no time of ours
            torch.cuda.synchronize(subject.device)
        began = time.perf_counter()
        with untouched(model):
            tables = self.look(subject, step)
        tables["points"] = point(step, subject, seconds=time.perf_counter() - began)
        run.add(step_key(step), tables)
        sample = {"step": torch.tensor(step), "weights": subject.sampled_weights()}
        run.beside(LAST_WEIGHTS, lambda file: save_arrays(file, sample))
        run.log(_line(step, self._of, tables))
        self.schedule.looked(step, time.perf_counter() - began)
        return scalars(tables, self.prefix)

    def _switch_off(self, step: int, problem: Exception) -> None:
        if self.strict or step == self.schedule.first:  # where training begins, it is not too late to be told
            raise problem
        self.off = f"{type(problem).__name__}: {problem}"
        if isinstance(problem, NumberError):
            self.off += "; a training that has diverged has such weights"
        words = f"the monitor was switched off at step {step}, and training goes on without it: {self.off}"
        if self.run is not None:
            self.run.record.warnings.append(words)
        LOG.warning(words)
        traceback.clear_frames(problem.__traceback__)  # what the look held in memory is the training's again
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # What a transformers Trainer calls.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _first_to_be_asked(self)
        model = kwargs["model"]
        self.begin(model, state.global_step, of=state.max_steps, tokenizer=kwargs.get("processing_class"))
        self.step(model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        last = state.global_step >= state.max_steps
        numbers = self.step(kwargs["model"], state.global_step, now=last and self.schedule.share is None)
        if numbers is not None:  # in all processes: logging is something they do together
            self._fresh, control.should_log = numbers, True
        return control

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if logs is not None and self._fresh:
            logs |= self._fresh
            if state.log_history:
                state.log_history[-1] |= self._fresh
            self._fresh = {}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not args.load_best_model_at_end:  # else these may be weights of an earlier step
            self.step(kwargs["model"], state.global_step, now=self.schedule.share is None)
        self.finish()


def _first_to_be_asked(monitor: HeadMonitor) -> None:
    """Put a callback before those that report: what it adds to a log reaches only those that are asked after it.

    A trainer gives its callbacks no way to each other; the handler that asks them is found among those who called.
    """
    frame = inspect.currentframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler) and monitor in handler.callbacks:
            others = [one for one in handler.callbacks if isinstance(one, HeadMonitor) and one is not monitor]
            if any(one.prefix == monitor.prefix for one in others):
                raise RotoscopeError(
                    "two monitors of one training have the same names in its log; give each a label: label='facts'"
                )
            handler.callbacks.remove(monitor)
            handler.callbacks.insert(0, monitor)
            return
        frame = frame.f_back


def _device(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def _unlike(file: Path, subject: Subject) -> str:
    """How a model differs from the one that was looked at last; empty where it may be the same one, trained a little more."""
    if not file.exists():
        return ""
    last, now = read_arrays(file), subject.sampled_weights()
    if last["weights"].shape != now.shape:
        return "its weights have other shapes"
    correlation = float(torch.corrcoef(torch.stack([last["weights"], now]))[0, 1])
    if correlation >= LEAST_CORRELATION:
        return ""
    return f"its weights at step {int(last['step'])} correlate with these by {correlation:.2f}"


def _passed(finished: Dynamics, subject: Subject, step: int) -> bool:
    """Whether a training came by this step with these weights: then it goes on from there, and is no other one."""
    points = finished.points
    return subject.weights_fingerprint in set(points.loc[points["step"] == step, "fingerprint"])


def _line(step: int, of: int | None, tables: Tables) -> dict[str, Any]:
    """A point as one line, for people and tools that watch a run while it is going."""
    by_hops = {str(row.hops): row.accuracy for row in tables.get("accuracy", pd.DataFrame()).itertuples()}
    return {"step": step, "of": of, "loss": None, "accuracy": by_hops, "classes": class_counts(tables)}
