"""The monitor: in anybody's training, all heads are scored now and then, and the training notices nothing of it.

What it finds is a run of kind *dynamics* for each set of prompts, as of our own trainings, and a handful of numbers in the
trainer's own log. Of several processes that train one model, the first measures and writes, and all keep in step.
"""

from __future__ import annotations

import inspect
import math
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from rotoscope.errors import NumberError, RotoscopeError, RunError
from rotoscope.experiments.profile.run import as_prompts
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.models.loading import Subject
from rotoscope.monitor.training_process import (
    from_first,
    is_first,
    model_device,
    model_inside,
    preserved_training_state,
)
from rotoscope.monitor.watched_prompts import LOG, PREFIX, ModelReader, WatchedPrompts
from rotoscope.runs.run import KEY
from rotoscope.settings import SEED
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompts

Every = int | str | Sequence[int]
"""500, "log", [0, 10, 100] or "2%"."""
DENSE, THEN = 512, 1000
"""The steps of Pythia's checkpoints: 0, the powers of two up to the first, then every so many."""
BUDGET = re.compile(r"(\d+(?:\.\d+)?) ?%")


class Schedule:
    """Says whether a step is due. All processes of a training have the same one, and `next_look` is what they agree on."""

    def __init__(self, every: Every = 500, clock: Callable[[], float] = time.perf_counter) -> None:
        self.every = every
        self.clock = clock
        self.share: float | None = None
        """The part of the time that may be spent, where there is a budget."""
        self.next_look = 0
        """With a budget: the next step at which it is asked whether there is time."""
        self.spent = 0.0
        """Seconds that looking has taken."""
        self._last = 0.0
        self._apart: int | None = None
        self._listed: frozenset[int] | None = None
        if isinstance(every, str):
            self._read(every)
        elif isinstance(every, (int, Integral)):
            self._apart = int(every)
            if self._apart < 1:
                raise RotoscopeError(f"every must be at least 1 step, found {every}")
        elif not isinstance(every, Iterable):
            raise RotoscopeError(
                f"every must be a whole number of steps, 'log', a list, or '2%', found {every}"
            )
        else:
            steps = list(every)
            if not steps or not all(isinstance(step, Integral) and step >= 0 for step in steps):
                raise RotoscopeError(
                    f"a list of steps holds whole numbers from 0 on, and at least one, found {every}"
                )
            self._listed = frozenset(int(step) for step in steps)

    def _read(self, every: str) -> None:
        budget = BUDGET.fullmatch(every.strip())
        if budget:
            self.share = float(budget.group(1)) / 100
            if not 0 < self.share < 1:
                raise RotoscopeError(
                    f"a budget is more than 0 % and less than 100 % of the time, found {every}"
                )
        elif every != "log":
            raise RotoscopeError(
                f"unknown schedule '{every}'; choose a number of steps, 'log', a list, or '2%'"
            )

    def begin(self, step: int) -> None:
        """The training begins, or goes on, at this step."""
        self.first, self.began, self.spent, self.next_look = step, self.clock(), 0.0, step

    @property
    def elapsed(self) -> float:
        """Seconds since the training began, or went on."""
        return self.clock() - self.began

    def due(self, step: int) -> bool:
        """Whether to look at a step; with a budget, whether to ask if there is time."""
        if self.share is not None:
            return step >= self.next_look
        if self._listed is not None:
            return step in self._listed
        if self._apart is not None:
            return step % self._apart == 0
        return step % THEN == 0 or (step <= DENSE and step.bit_count() == 1)

    def has_time(self, step: int) -> bool:
        """With a budget: whether another look fits it; if not, `next_look` is the step at which it should."""
        if self.share is None or step == self.first:
            return True
        elapsed = self.elapsed
        wait = (self.spent + self._last) / self.share - self._last - elapsed
        if wait <= 0:
            return True
        pace = max(elapsed - self.spent, 1e-9) / (step - self.first)
        self.next_look = step + max(1, math.ceil(wait / pace))
        return False

    def looked(self, step: int, seconds: float) -> None:
        """A look has taken so long."""
        self.spent += seconds
        self._last, self.next_look = seconds, step + 1

    def stored(self) -> int | str | list[int]:
        """As it stands in a run's settings."""
        if self._listed is not None:
            return sorted(self._listed)
        return str(self.every) if self._apart is None else self._apart


class HeadMonitor(TrainerCallback):  # type: ignore[misc]
    """Scores all heads of a model while it is trained.

    Give it to a transformers `Trainer` among its `callbacks`. In any other loop, call `step(model, step)` before the first
    step and after each, and `finish()` at the end.

    Parameters
    ----------
    prompts
        Made by `rotoscope.tasks`, or token ids [prompts, n]. Several sets are a mapping from names to them; each has a run.
    every
        When to measure: a number of steps, "log" (0, 1, 2, 4 ... 512, then every 1,000), a list of steps, or a share of the
        time such as "2%".
    out
        Folder of the run, which `rotoscope serve` shows while it grows and a resumed training goes on with. Several sets
        have a folder each in it.
    measures
        Functions made by `rs.measure`, or "module:function": columns of `scores` beside the built-in ones.
    null_draws
        Random models scored beside the model at every point. From 19 on, a band shows the least and the most of them. It
        gives no verdict; a profile of a checkpoint does.
    label
        Stands in the names of the numbers, where one training has two monitors.
    strict
        Raise errors that come later in the training. Otherwise such an error is logged once and switches the monitor off
        (`off` says why), and training goes on. What can be known to be wrong is always an error when training begins.
    """

    def __init__(
        self,
        prompts: Prompts | MultiHops | Mapping[str, Any] | Any,
        every: Every = 500,
        *,
        out: str | Path | None = None,
        tau: float | Sequence[float] = 1e-4,
        measures: Sequence[str | Callable[..., Any]] = (),
        null_draws: int = 0,
        seed: int = 0,
        tokenizer: Any = None,
        name: str | None = None,
        label: str = "",
        overwrite: bool = False,
        strict: bool = False,
    ) -> None:
        SEED.check("seed", seed)
        null: dict[str, Any] = {"null": "random", "null_draws": null_draws} if null_draws else {"null": "none"}
        settings = ProfileSettings.make(tau=tau, examples=False, measures=tuple(measures), **null)
        self.prefix = f"{PREFIX}{label}/" if label else PREFIX
        self.watched: dict[str, WatchedPrompts] = {}
        """The sets of prompts by name; a single one has the name ''."""
        for set_name, samples in _prompt_sets(prompts).items():
            self.watched[set_name] = WatchedPrompts(
                samples,
                settings,
                seed=seed,
                prefix=f"{self.prefix}{set_name}/" if set_name else self.prefix,
                out=None if out is None else Path(out) / set_name,
                name=name,
            )
        self.schedule = Schedule(every)
        self.reader = ModelReader()
        self.tokenizer, self.name = tokenizer, name
        self.overwrite, self.strict = overwrite, strict
        self.off: str | None = None
        """Why nothing is measured any more."""
        self._begun = False
        self._steps_in_all: int | None = None
        self._last_step: int | None = None
        self._unlogged: dict[str, float] = {}
        """What the trainer's log has not been given yet."""

    def begin(self, model: Any, step: int = 0, *, of: int | None = None, tokenizer: Any = None) -> None:
        """Check that everything will work, and go on with the runs of a training that was stopped, from this step on.

        `of` is the number of steps there will be. Called by itself where it was not.
        """
        self.tokenizer, self._steps_in_all = self.tokenizer or tokenizer, of
        inside, problem = model_inside(model), None
        if is_first():
            try:
                self._prepare(inside, step)
            except Exception as raised:  # the other processes wait to hear of it
                problem = raised
        [failed] = from_first(int(problem is not None), device=model_device(inside))
        if problem is not None:
            raise problem
        if failed:
            raise RunError("the first process could not begin to monitor the training; it says why")
        self.schedule.begin(step)
        self._begun, self._last_step, self.off = True, None, None

    def step(self, model: Any, step: int, *, now: bool = False) -> dict[str, float] | None:
        """Measure the model if this step is due, or `now`; gives the numbers for a log, None where nothing was measured.

        All processes of a training must call it. Only the first measures; the others are given an empty dictionary.
        """
        if not self._begun:
            self.begin(model, step)
        if self.off is not None or step == self._last_step or not (now or self.schedule.due(step)):
            return None
        numbers, problem = None, None
        if is_first():
            try:
                numbers = self._point(model_inside(model), step, now)
            except Exception as raised:  # whatever it is, it is not worth a training
                problem = raised
        outcome = (problem is not None, numbers is not None, self.schedule.next_look)
        failed, measured, self.schedule.next_look = from_first(*map(int, outcome), device=model_device(model))
        if failed:
            self._switch_off(step, problem or RunError("the first process of the training says why"))
            problem = None  # it holds on to what the failed point had in memory
        self._last_step = step
        return (numbers or {}) if measured else None

    def finish(self) -> Dynamics | dict[str, Dynamics] | None:
        """The run, or the runs by name, finished: tables are written. None in processes that did not measure."""
        self._begun = False
        runs = {}
        for name, watched in self.watched.items():
            try:
                run = watched.finish(self.reader, self.schedule.elapsed)
            except Exception as problem:
                if self.strict:
                    raise
                LOG.warning("the monitor's run could not be finished, and is left as it is: %s", problem)
                continue
            if run is not None:
                runs[name] = run
        return runs.get("") if "" in self.watched else runs or None

    @property
    def result(self) -> Dynamics:
        """The run as far as it is made, or as it was finished; of the only set of prompts."""
        if "" not in self.watched:
            raise RotoscopeError(f"there is a run for each of {', '.join(self.watched)}: see results")
        return self.watched[""].result

    @property
    def results(self) -> dict[str, Dynamics]:
        """The runs of all sets of prompts, by name."""
        return {name: watched.result for name, watched in self.watched.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()

    def _prepare(self, model: Any, step: int) -> None:
        subject = self._subject(model)
        with preserved_training_state(model):
            reader = self.reader.of(subject)
            for watched in self.watched.values():
                watched.check(subject, reader)
        for watched in self.watched.values():
            watched.open_run(subject, reader, step, self.overwrite, self.schedule.stored())

    def _subject(self, model: Any) -> Subject:
        title = self.name or getattr(model, "name_or_path", "") or model.config.model_type
        return Subject(model, self.tokenizer, title, {"kind": "memory"})

    def _point(self, model: Any, step: int, now: bool) -> dict[str, float] | None:
        """Measure and write one point; None where it is there already, or there is no time."""
        if not now and not self.schedule.has_time(step):
            return None
        subject = self._subject(model)
        missing = [watched for watched in self.watched.values() if not watched.has_point(subject, step)]
        if not missing:
            return None
        if subject.device.type == "cuda":  # what the training has left to do is no time of ours
            torch.cuda.synchronize(subject.device)
        began, numbers = time.perf_counter(), dict[str, float]()
        with preserved_training_state(model):
            reader = self.reader.of(subject)
            for watched in missing:
                numbers |= watched.add_point(subject, reader, step, self._steps_in_all)
        self.schedule.looked(step, time.perf_counter() - began)
        return numbers

    def _switch_off(self, step: int, problem: Exception) -> None:
        if self.strict or step == self.schedule.first:  # where training begins, it is not too late to be told
            raise problem
        self.off = f"{type(problem).__name__}: {problem}"
        if isinstance(problem, NumberError):
            self.off += "; a training that has diverged has such weights"
        words = f"the monitor was switched off at step {step}, and training goes on without it: {self.off}"
        for watched in self.watched.values():
            if watched.run is not None:
                watched.run.record.warnings.append(words)
        LOG.warning(words)
        traceback.clear_frames(problem.__traceback__)  # what the point held in memory is the training's again
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # What a transformers Trainer calls.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _report_first(self, _calling_handler(self))
        model = kwargs["model"]
        self.begin(model, state.global_step, of=state.max_steps, tokenizer=kwargs.get("processing_class"))
        self.step(model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        last = state.global_step >= state.max_steps
        numbers = self.step(kwargs["model"], state.global_step, now=last and self.schedule.share is None)
        if numbers is not None:  # in all processes: logging is something they do together
            self._unlogged, control.should_log = numbers, True
        return control

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if logs is not None and self._unlogged:
            logs |= self._unlogged
            if state.log_history:
                state.log_history[-1] |= self._unlogged
            self._unlogged = {}

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not args.load_best_model_at_end:  # else these may be weights of an earlier step
            self.step(kwargs["model"], state.global_step, now=self.schedule.share is None)
        self.finish()


def _prompt_sets(prompts: Any) -> dict[str, Prompts | MultiHops]:
    """Sets of prompts by name; '' names a single one."""
    if not isinstance(prompts, Mapping):
        return {"": prompts if isinstance(prompts, (Prompts, MultiHops)) else as_prompts(None, prompts, None)}
    for name in prompts:
        if not isinstance(name, str) or not KEY.fullmatch(name):
            raise RotoscopeError(
                f"a set of prompts is named in letters, digits, - and _, which a folder can be; found {name!r}"
            )
    if not prompts:
        raise RotoscopeError("the mapping holds no prompts; give at least one set of them")
    return {name: _prompt_sets(samples)[""] for name, samples in prompts.items()}


def _calling_handler(monitor: HeadMonitor) -> CallbackHandler | None:
    """The handler that is calling a monitor's method: a Trainer gives its callbacks no way to each other."""
    frame = inspect.currentframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler) and monitor in handler.callbacks:
            return handler
        frame = frame.f_back
    return None


def _report_first(monitor: HeadMonitor, handler: CallbackHandler | None) -> None:
    """Put a monitor before the callbacks that report: what it adds to a log reaches only those that come after it."""
    if handler is None:
        return
    monitors = [callback for callback in handler.callbacks if isinstance(callback, HeadMonitor)]
    if any(other.prefix == monitor.prefix for other in monitors if other is not monitor):
        raise RotoscopeError(
            "two monitors of one training have the same names in its log; give each a label: label='facts'"
        )
    handler.callbacks.remove(monitor)
    handler.callbacks.insert(0, monitor)
