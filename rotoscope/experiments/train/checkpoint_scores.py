"""How heads became what they are: exact scores of every head at every checkpoint of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rotoscope.errors import ModelError, RunError, TaskError
from rotoscope.experiments.profile.run import profile
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.experiments.train.dynamics import Dynamics, reopened, step_key
from rotoscope.experiments.train.series import Series, find_series
from rotoscope.experiments.train.settings import SeriesSettings
from rotoscope.experiments.train.watch import QueryKind, accuracy_of, averaged, check_queries, point, sampled
from rotoscope.lab.checkpoints import Training, sequences_for
from rotoscope.lab.sequences import training_sequences
from rotoscope.lab.settings import TrainSettings
from rotoscope.measures.batches import prompts_hash
from rotoscope.models.hub import CERTAIN, Checkpoint, cached_commit
from rotoscope.models.loading import Subject, load
from rotoscope.models.zoo import own_model
from rotoscope.progress import progress_bar
from rotoscope.runs.files import content_hash
from rotoscope.runs.record import RUN, RunRecord
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run
from rotoscope.settings import each_tau
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompts

CONTENT = "content"
"""The column of `points` that says which files a checkpoint had."""


def measure_dynamics(
    source: str | Path | Training | Series,
    *,
    prompts: Prompts | MultiHops | None = None,
    task: str | None = None,
    queries: QueryKind | None = None,
    inputs: int = 200,
    tau: float | Sequence[float] = 1e-4,
    revisions: str | Sequence[str] = (),
    most: int | None = None,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    allow_missing: bool = False,
    show_progress: bool | None = None,
) -> Dynamics:
    """Scores of all heads along training.

    `source` is a training run or one of the embedded models "number" and "letter" (what was watched while it was
    trained is read back, unless other `queries` are asked), or a folder of checkpoints, `checkpoint-N/` or `step-N/`,
    of any model that can be profiled, or a model on the hub whose checkpoints are published as branches or tags: those that
    fit the patterns `revisions` ("step*"), fetched where they are not here yet. `most` of them are scored, log-spaced: by
    default 12 of the hub and all of a folder. Models of ours know their task; for others give `prompts`. `task` makes sure
    that the checkpoints are of that task. `allow_missing` is that of `load`; what cannot fit memory or disk is
    refused. Checkpoints that cannot be read are left out with a warning, and tried again by the
    same call; equal weights and weights out of order are warned of.
    """
    series_settings = SeriesSettings.make(revisions=revisions, most=most)
    read_back = queries is None and series_settings == SeriesSettings()
    if isinstance(source, Training):
        if read_back and "scores" in source.tables:
            return Dynamics.of_training(source)
        if source.folder is None:
            raise RunError("this training run was not written to a folder, so it has no checkpoints to score")
        source = source.folder
    if not isinstance(source, Series):
        watched = _watched(own_model(str(source)) or Path(source), task) if read_back else None
        if watched is not None:
            return watched
        source = find_series(source, series_settings, show_progress=show_progress)
    kind: QueryKind = queries or "last"
    check_queries(kind)
    question = _Question(prompts, task, kind, inputs, each_tau(tau))
    loading = {"device": device, "dtype": torch.float32, "allow_missing": allow_missing}
    return _from_checkpoints(source, question, loading, {"out": out, "overwrite": overwrite}, show_progress)


def _watched(place: Path, task: str | None) -> Dynamics | None:
    """What a run says of its own heads along training; None where there is no such run."""
    if not (place / RUN).is_file():
        return None
    record = RunRecord.read(place)
    if record.kind == Dynamics.kind:
        return Dynamics.open(place)
    if not (record.kind == Training.kind and record.complete and "scores" in record.tables):
        return None
    trained = Training.open(place)
    _check_task(task, trained.task, place)
    return Dynamics.of_training(trained)


@dataclass(frozen=True)
class _Question:
    """What every checkpoint of a series is asked."""

    prompts: Prompts | MultiHops | None
    task: str | None
    queries: QueryKind
    inputs: int
    taus: tuple[float, ...]

    @property
    def settings(self) -> ProfileSettings:
        """How one checkpoint is scored."""
        kind: Any = "last" if self.queries == "last" else "all"
        return ProfileSettings(tau=self.taus, queries=kind, null="none", examples=False)


def _from_checkpoints(
    series: Series,
    question: _Question,
    loading: dict[str, Any],
    storage: dict[str, Any],
    show_progress: bool | None,
) -> Dynamics:
    left_out: list[str] = []
    warnings = list(series.warnings)
    run: Run[Dynamics] | None = None
    with progress_bar("checkpoints", len(series.checkpoints), show_progress) as bar:
        for checkpoint in series.checkpoints:
            bar.advance()
            if run is not None and run.done(step_key(checkpoint.step)):
                _check_unchanged(run.result, checkpoint, storage["out"])
                if not loading["allow_missing"]:
                    continue
            try:
                subject = load(checkpoint.source, **loading)
            except ModelError as damage:
                left_out.append(f"{checkpoint.name} was left out: {damage}")
                continue
            warnings += [f"{checkpoint.name}: {caveat}" for caveat in subject.caveats]
            if run is None:  # the first model that can be read says what all are shown
                samples, prompts = _prompts_of(series, question, subject)
                settings = _settings(series, question, prompts, loading["allow_missing"])
                run = Run(Dynamics, settings, **storage, device=subject.device.type)
                if run.finished is not None:
                    for scored in series.checkpoints:
                        _check_unchanged(run.finished, scored, storage["out"])
                    lacking = [
                        missing for missing in series.checkpoints if missing.step not in run.finished.steps
                    ]
                    if not any(_can_be_read(missing, loading) for missing in lacking):
                        return run.finished
                    run = reopened(run.finished, run)
                if run.done(step_key(checkpoint.step)):
                    _check_unchanged(run.result, checkpoint, storage["out"])
            _check_vocabulary(samples, subject, checkpoint)
            run.piece(
                step_key(checkpoint.step), partial(_scored, subject, samples, prompts, question, checkpoint)
            )
    if run is None:
        raise ModelError(f"no checkpoint of {series.folder or series.name} could be read: {left_out[0]}")
    return run.finish(warnings=[*left_out, *warnings])


def _content(checkpoint: Checkpoint) -> dict[str, str]:
    """A checksum of a checkpoint's files, where it is a folder; of the hub, the commit that its branch or tag stands for."""
    if isinstance(checkpoint.source, Path):
        return {CONTENT: content_hash(checkpoint.source)}
    commit = cached_commit(checkpoint.source.removeprefix(CERTAIN))
    return {CONTENT: commit} if commit and commit != checkpoint.revision else {}


def _check_unchanged(scored: Dynamics, checkpoint: Checkpoint, out: str | Path | None) -> None:
    """Refuse a checkpoint whose files are not those that were scored."""
    points = scored.points
    if CONTENT not in points or checkpoint.step not in set(points["step"]):
        return
    before = points.loc[points["step"] == checkpoint.step, CONTENT].iloc[0]
    if _content(checkpoint).get(CONTENT, before) != before:
        raise RunError(
            f"{checkpoint.name} has changed since {out} was made; choose another --out, or --overwrite to replace it"
        )


def _can_be_read(checkpoint: Checkpoint, loading: dict[str, Any]) -> bool:
    try:
        load(checkpoint.source, **loading)
    except ModelError:
        return False
    return True


def _prompts_of(series: Series, question: _Question, subject: Subject) -> tuple[Prompts | MultiHops, Prompts]:
    """What all checkpoints are shown, as it was given and as prompts."""
    samples = question.prompts
    if samples is None:
        samples = _own_sequences(subject, series.folder or Path(series.name), question.task, question.inputs)
    if question.queries == "path" and not isinstance(samples, MultiHops):
        raise TaskError("only the number and letter tasks have paths; ask at the last token or at all")
    return samples, samples.prompts() if isinstance(samples, MultiHops) else samples


def _settings(series: Series, question: _Question, prompts: Prompts, allow_missing: bool) -> dict[str, Any]:
    """As they stand in `run.json`."""
    settings = {
        "source": series.name,
        "steps": [checkpoint.step for checkpoint in series.checkpoints],
        "task": prompts.task,
        "prompts_hash": prompts_hash(prompts),
        "queries": question.queries,
        "inputs": len(prompts),
        "tau": list(question.taus),
    }
    if series.folder is None:
        settings["revisions"] = [checkpoint.name for checkpoint in series.checkpoints]
    if allow_missing:
        settings["allow_missing"] = True
    return settings


def _own_sequences(subject: Any, place: Path, task: str | None, inputs: int) -> MultiHops:
    """Held-out sequences of the run the checkpoints come from, or of the task they name."""
    about = getattr(subject.model.config, "rotoscope", None) or {}
    _check_task(task, about.get("task"), place)
    if (place / RUN).is_file() and (record := RunRecord.read(place)).kind == Training.kind:
        return training_sequences(TrainSettings.read(record.settings), "validation", count=inputs)
    return sequences_for(subject.model.config, inputs, first=1_000_000)


def _check_task(expected: str | None, trained_task: str | None, place: Path) -> None:
    if expected is not None and expected != trained_task:
        trained = f"on the {trained_task} task" if trained_task else "on a task of which they say nothing"
        raise ModelError(f"the checkpoints in {place} were trained {trained}, not on the {expected} task")


def _check_vocabulary(samples: Any, subject: Any, checkpoint: Checkpoint) -> None:
    """Sequences of a multi-hop task mean something only to a model that has those words at those ids."""
    if not isinstance(samples, MultiHops):
        return
    words = subject.tokenizer.convert_ids_to_tokens(range(min(len(subject.tokenizer), len(samples.vocabulary))))
    if list(words) != list(samples.vocabulary):
        raise ModelError(
            f"{checkpoint.name} does not know the words of the {samples.task} task in these sizes; it was trained on another"
        )


def _scored(
    subject: Subject,
    samples: Prompts | MultiHops,
    prompts: Prompts,
    question: _Question,
    checkpoint: Checkpoint,
) -> Tables:
    """One checkpoint."""
    step = checkpoint.step
    result = profile(subject, prompts, question.settings, show_progress=False)
    rows = result.prompts if question.queries == "last" else result.queries
    if isinstance(samples, MultiHops) and question.queries == "path":
        marks = samples.on_path.cpu().numpy()
        rows = rows[marks[rows["prompt"].to_numpy(), rows["query_position"].to_numpy()]]
    published = {} if checkpoint.revision is None else {"revision": checkpoint.revision}
    tables = {
        "scores": averaged(rows, question.queries, step),
        "points": point(step, subject, **published, **_content(checkpoint)),
        "weights": sampled(step, subject),
    }
    if len(result.answers):
        tables["accuracy"] = accuracy_of(result.answers, samples, step)
    return tables
