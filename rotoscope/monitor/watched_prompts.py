"""A set of prompts on which a model in training is scored again and again, and the run that the scores are written to."""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.errors import RunError, TaskError
from rotoscope.experiments.profile.nulls import score_draws
from rotoscope.experiments.profile.run import describe
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.experiments.profile.sizes import check_one_prompt
from rotoscope.experiments.train.dynamics import Dynamics, reopened, step_key
from rotoscope.experiments.train.watch import accuracy_of, averaged, point
from rotoscope.measures.batches import Batch, Halving, batches, most_tokens, prompts_hash
from rotoscope.measures.null import calibration_batches, check_null, make_nulls
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.runs.files import read_arrays, save_arrays
from rotoscope.runs.record import Proof
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run, put_together
from rotoscope.scores.classes import AT_ITS_LAYER, GAMMA, purity_classes
from rotoscope.stats.aggregate import little_at_stake, own_measures
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompts

LOG = logging.getLogger("rotoscope")
PREFIX = "rotoscope/"
"""Before the names of numbers in a trainer's log."""
LAST_WEIGHTS = "last_weights.safetensors"
"""A few of the weights at the last point, by which a training that goes on is told from another one."""
LEAST_CORRELATION = 0.5
"""Between weights of one training; those of two that began differently do not correlate."""


class ModelReader:
    """The reader of a model in training: made, and proven, once, and again whenever the model's modules are others."""

    def __init__(self) -> None:
        self.proofs = 0
        """How often a reading was proven."""
        self.reader: HeadReader | None = None
        self._modules: tuple[object, ...] = ()

    def of(self, subject: Subject) -> HeadReader:
        model = subject.model
        modules = (subject.device, model.dtype, *((name, id(module)) for name, module in model.named_modules()))
        if self.reader is None or self._modules != modules:
            self.reader, self._modules = HeadReader(model), modules
            self.proofs += 1
        return self.reader


class WatchedPrompts:
    """One set of prompts of a monitor.

    `prefix` begins the names of its numbers in a log; `out` is its run's folder, None for a run in memory.
    """

    def __init__(
        self,
        samples: Prompts | MultiHops,
        settings: ProfileSettings,
        *,
        seed: int = 0,
        prefix: str = PREFIX,
        out: Path | None = None,
        name: str | None = None,
    ) -> None:
        self.samples, self.settings, self.seed, self.prefix = samples, settings, seed, prefix
        self.out, self.name = out, name
        self.prompts = samples.prompts() if isinstance(samples, MultiHops) else samples
        self.halving = Halving()
        self.measure_columns: list[str] = []
        """Columns that a user's own measures gave at the last point."""
        self.run: Run[Dynamics] | None = None
        self.finished: Dynamics | None = None

    @property
    def result(self) -> Dynamics:
        """The run as far as it is made, or as it was finished."""
        if self.run is not None:
            return self.run.result
        if self.finished is None:
            raise RunError("the monitor has measured nothing yet, or not in this process")
        return self.finished

    # Before the training.

    def check(self, subject: Subject, reader: HeadReader) -> None:
        """Refuse before the training what would fail in its middle: prompts, memory, a null that cannot be made."""
        longest, most = max(len(prompt.tokens) for prompt in self.prompts), reader.positions
        if most is not None and longest > most:
            raise TaskError(f"a prompt to monitor with has {longest} tokens, and the model's context is {most}")
        words = int(subject.model.config.get_text_config().vocab_size)
        ids = range(words)
        unknown = next((token for prompt in self.prompts for token in prompt.tokens if token not in ids), None)
        if unknown is not None:
            raise TaskError(
                f"a prompt to monitor with has token {unknown}, and the model knows 0 to {words - 1}"
            )
        check_null(subject, self.settings.null)
        check_one_prompt(reader, self.prompts, self.settings)

    def open_run(self, subject: Subject, reader: HeadReader, step: int, overwrite: bool, every: Any) -> None:
        """Begin the run, or go on with the points up to this step that an earlier try has made."""
        settings = json.loads(json.dumps(self._run_settings(subject), default=str))
        if self.run is not None and self.run.record.settings == settings:  # begins anew in the same process
            run = self.run
        else:
            device = subject.device.type
            run = Run(Dynamics, settings, self.out, overwrite=overwrite and step == 0, device=device)
        self.run = self._resumed(run, subject, step)
        self.run.record.subject = describe(subject, reader, subject.fingerprint)
        self.run.record.details["every"] = every
        self.run.begin()

    def _run_settings(self, subject: Subject) -> dict[str, Any]:
        """What makes two tries one run: the model's shape, the prompts and how they are scored, but not the weights."""
        config = subject.model.config.get_text_config()
        sizes = {
            name: getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "vocab_size")
        }
        settings, prompts = self.settings, self.prompts
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
            "tau": list(settings.tau),
            "null": settings.null,
            "null_draws": settings.null_draws if settings.null != "none" else 0,
            "seed": self.seed,
            **settings.stored_measures(),
        }

    def _resumed(self, run: Run[Dynamics], subject: Subject, step: int) -> Run[Dynamics]:
        """The run without points after a step; a finished run is begun again."""
        steps = [int(key.removeprefix("step-")) for key in run.earlier()]
        steps = steps or [int(number) for number in (run.finished or run.result).points.get("step", ())]
        later = [number for number in steps if number > step]
        if run.finished is not None and (step == 0 or (later and not _passed(run.finished, subject, step))):
            raise RunError(
                f"{self.out} holds a finished run of such a training; choose another out, or overwrite=True to replace it"
            )
        self._check_training(run, subject, [number for number in steps if number <= step], step)
        if later:
            words = "points" if len(later) > 1 else "point"
            LOG.warning(
                "%d %s after step %d, of a try that did not get on: made again", len(later), words, step
            )
        if run.finished is not None:
            return reopened(run.finished, run, step)
        run.keep_only(step_key(number) for number in steps if number <= step)
        run.trim_log(lambda row: row["step"] <= step)
        return run

    def _check_training(self, run: Run[Dynamics], subject: Subject, steps: list[int], step: int) -> None:
        """Refuse to go on with the points of another training, told by its weights at this step, or at its last point."""
        if run.folder is None or not steps:
            return
        if max(steps) == step:
            run.done(step_key(step))
            same = _passed(run.finished or run.result, subject, step)
            difference = "" if same else f"at step {step} it had other weights"
        else:
            difference = _difference(run.folder / LAST_WEIGHTS, subject)
        if difference:
            raise RunError(
                f"{self.out} holds points of another training ({difference}); choose another out, or overwrite=True to replace it"
            )

    # A point of the training.

    def has_point(self, subject: Subject, step: int) -> bool:
        """Whether the run has this step already, with these weights."""
        assert self.run is not None
        if not self.run.done(step_key(step)):
            return False
        fingerprints = self.run.result.points.set_index("step")["fingerprint"]
        return bool(fingerprints[step] == subject.weights_fingerprint)

    def add_point(self, subject: Subject, reader: HeadReader, step: int, of: int | None) -> dict[str, float]:
        """Measure and write a step; gives the numbers for a trainer's log."""
        assert self.run is not None
        began = time.perf_counter()
        tables = self.measure(subject, reader, step)
        tables["points"] = point(step, subject, seconds=time.perf_counter() - began)
        self.run.add(step_key(step), tables)
        sample = {"step": torch.tensor(step), "weights": subject.sampled_weights()}
        self.run.beside(LAST_WEIGHTS, lambda file: save_arrays(file, sample))
        self.run.log(_log_row(step, of, tables))
        return {f"{self.prefix}{name}": value for name, value in scalars(tables, self.measure_columns).items()}

    def measure(self, subject: Subject, reader: HeadReader, step: int) -> Tables:
        """The tables of a step: scores of all heads, accuracy where the task has answers, scores of the null's heads."""
        work = batches(self.prompts, "last", most_tokens(subject, self.settings))
        scoring = Scoring(self.settings.tau, measures=self.settings.own_measures)

        def score(part: Batch) -> Tables:
            return score_batch(reader, part, scoring, subject.tokenizer)

        scored = put_together(self.halving.over(batch, score) for batch in work)
        self.measure_columns = own_measures(scored["prompts"])
        tables = {"scores": averaged(scored["prompts"], "last", step)}
        if "answers" in scored:
            tables["accuracy"] = accuracy_of(scored["answers"], self.samples, step)
        if self.settings.null != "none":
            tables["null_scores"] = self._null(subject, reader, scored["prompts"], work, scoring, step)
        return tables

    def _null(
        self,
        subject: Subject,
        reader: HeadReader,
        scored: pd.DataFrame,
        work: list[Batch],
        scoring: Scoring,
        step: int,
    ) -> pd.DataFrame:
        """Fresh models with logits as large as the model's are at this step."""
        calibration = calibration_batches(self.prompts, "last", most_tokens(subject, self.settings))
        draws, parts = range(self.settings.null_draws or 0), []
        for null in make_nulls(
            subject, reader, "random", draws, scored, calibration, seed=self.seed, halving=self.halving
        ):
            score = partial(score_draws, {null.draw: null}, scoring)
            pieces = [piece for batch in work for piece in self.halving.each(batch, batch.length, score)]
            rows = put_together(piece[null.draw] for piece in pieces)["prompts"]
            parts.append(averaged(rows, "last", step).assign(draw=null.draw))
        return pd.concat(parts, ignore_index=True)

    # After the training.

    def finish(self, reader: ModelReader, training_seconds: float) -> Dynamics | None:
        """The run, finished; None where nothing was measured."""
        if self.run is None or not len(self.run.result.points):
            return None
        run, self.run = self.run, None
        assert reader.reader is not None
        proof = Proof(len(reader.reader.proof), max(reader.reader.proof, default=None), reader.reader.way)
        seconds = {"monitor_s": float(run.result.points["seconds"].sum()), "training_s": training_seconds}
        self.finished = run.finish(timings=seconds, proof=proof, proofs=reader.proofs)
        return self.finished


def class_counts(scores: pd.DataFrame) -> dict[str, int]:
    """How many heads of a step are of each class."""
    classes = list(purity_classes(scores["positional_score"], scores["symbolic_score"], GAMMA))
    return {name: classes.count(name) for name in AT_ITS_LAYER}


def scalars(tables: Tables, measure_columns: list[str]) -> dict[str, float]:
    """A handful of numbers about a step, for a trainer's log.

    Pure heads are counted from layer 1 on, and only those with something at stake; the shares are those of all heads.
    """
    heads = _at_first_tau(tables["scores"])
    kinds = purity_classes(heads["positional_score"], heads["symbolic_score"], GAMMA)
    heads = heads.assign(head_class=kinds)
    counted = heads[(heads["layer"] >= 1) & ~little_at_stake(heads).fillna(False).astype(bool)]
    numbers = {name: float(heads[name].mean()) for name in ("positional_score", "symbolic_score")}
    numbers |= {
        f"{kind}_heads": float((counted["head_class"] == kind).sum()) for kind in ("positional", "symbolic")
    }
    numbers["pure_heads"] = numbers["positional_heads"] + numbers["symbolic_heads"]
    numbers |= {f"share_{name}": count / len(heads) for name, count in class_counts(heads).items()}
    for name in measure_columns:
        numbers |= {f"{name}_mean": float(heads[name].mean()), f"{name}_max": float(heads[name].max())}
    if "accuracy" in tables:
        by_hops = tables["accuracy"]
        numbers["accuracy"] = float((by_hops["accuracy"] * by_hops["inputs"]).sum() / by_hops["inputs"].sum())
    return numbers


def _at_first_tau(scores: pd.DataFrame) -> pd.DataFrame:
    return scores[scores["tau"] == scores["tau"].iloc[0]]


def _log_row(step: int, of: int | None, tables: Tables) -> dict[str, Any]:
    """A point as one line, for people and tools that watch a run while it is going."""
    by_hops = {str(row.hops): row.accuracy for row in tables.get("accuracy", pd.DataFrame()).itertuples()}
    classes = class_counts(_at_first_tau(tables["scores"]))
    return {"step": step, "of": of, "loss": None, "accuracy": by_hops, "classes": classes}


def _difference(file: Path, subject: Subject) -> str:
    """How a model differs from the one at the last point; empty where it may be the same one, trained a little more."""
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
