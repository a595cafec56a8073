"""How heads became what they are: exact scores of every head at every checkpoint of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rotoscope.analysis.batches import prompts_hash
from rotoscope.analysis.estimate import estimate
from rotoscope.analysis.profiling import profile
from rotoscope.analysis.watching import QueryKind, accuracy_of, averaged, check_queries, point
from rotoscope.errors import ModelError, RunError, TaskError
from rotoscope.lab.checkpoints import sequences_for
from rotoscope.lab.sequences import training_sequences
from rotoscope.progress import progress_bar
from rotoscope.reading import Subject, find_checkpoints, load, own_model
from rotoscope.results.dynamics import Dynamics
from rotoscope.results.record import RUN, RunRecord
from rotoscope.results.run import Run
from rotoscope.results.saved import Tables
from rotoscope.results.training import Training
from rotoscope.settings import ProfileSettings, TrainSettings
from rotoscope.settings.profile import each_tau
from rotoscope.tasks.multihop import MultiHops
from rotoscope.tasks.prompts import Prompts


def measure_dynamics(
    source: str | Path | Training,
    *,
    prompts: Prompts | MultiHops | None = None,
    task: str | None = None,
    queries: QueryKind | None = None,
    inputs: int = 200,
    tau: float | Sequence[float] = 1e-4,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    force: bool = False,
    allow_missing: bool = False,
    show_progress: bool | None = None,
) -> Dynamics:
    """Scores of all heads along training.

    `source` is a training run or one of the embedded models "number" and "letter" (what was watched while it was
    trained is read back, unless other `queries` are asked), or a folder of checkpoints, `checkpoint-N/` or `step-N/`,
    of any model that can be profiled. Models of ours know their task; for others give `prompts`. `task` makes sure
    that the checkpoints are of that task. `allow_missing` is that of `load`; what does not fit memory or would take days is
    refused, unless you `force` it.
    """
    if isinstance(source, Training):
        if queries is None and "scores" in source.tables:
            return Dynamics.of_training(source)
        if source.folder is None:
            raise RunError("this training run was not written to a folder, so it has no checkpoints to score")
        source = source.folder
    place = own_model(str(source)) or Path(source)
    if queries is None and (place / RUN).is_file():
        record = RunRecord.read(place)
        if record.kind == Dynamics.kind:
            return Dynamics.open(place)
        if record.kind == Training.kind and record.complete and "scores" in record.tables:
            trained = Training.open(place)
            _check_task(task, trained.task, place)
            return Dynamics.of_training(trained)
    asked: QueryKind = queries or "last"
    check_queries(asked)
    how = {"device": device, "dtype": torch.float32, "allow_missing": allow_missing}
    kept = {"out": out, "overwrite": overwrite}
    return _from_checkpoints(
        place, prompts, task, asked, inputs, each_tau(tau), how, kept, force, show_progress
    )


def _from_checkpoints(
    place: Path,
    prompts: Prompts | MultiHops | None,
    task: str | None,
    queries: QueryKind,
    inputs: int,
    taus: tuple[float, ...],
    loading: dict[str, Any],
    kept: dict[str, Any],
    force: bool,
    show_progress: bool | None,
) -> Dynamics:
    checkpoints = _checkpoints(place)
    warnings: list[str] = []
    run: Run[Dynamics] | None = None
    with progress_bar("checkpoints", len(checkpoints), show_progress) as bar:
        for step, checkpoint in checkpoints.items():
            bar.advance()
            key = f"step-{step:08d}"
            if run is not None and run.done(key) and not loading["allow_missing"]:
                continue
            try:
                subject = load(checkpoint, **loading)
            except ModelError as damage:
                warnings.append(f"{checkpoint.name} was left out: {damage}")
                continue
            warnings += [f"{checkpoint.name}: {said}" for said in subject.warnings]
            if run is None:  # the first model that can be read says what all are shown
                samples = prompts if prompts is not None else _own_sequences(subject, place, task, inputs)
                few = samples[:1].prompts() if isinstance(samples, MultiHops) else samples
                _check_cost(subject, few, len(samples), len(checkpoints), _plain(queries, taus), force)
                shown = samples.prompts() if isinstance(samples, MultiHops) else samples
                if queries == "path" and not isinstance(samples, MultiHops):
                    raise TaskError(
                        "only the number and letter tasks have paths; ask at the last token or at all"
                    )
                settings = {
                    "source": place.name,
                    "steps": list(checkpoints),
                    "task": samples.task,
                    "prompts_hash": prompts_hash(shown),
                    "queries": queries,
                    "inputs": len(shown),
                    "tau": list(taus),
                }
                if loading["allow_missing"]:
                    settings["allow_missing"] = True
                run = Run(Dynamics, settings, **kept)
                if run.finished is not None:
                    return run.finished
            _check_vocabulary(samples, subject, checkpoint)
            scored = partial(_scored, subject, samples, shown, queries, taus, step, force)
            run.piece(key, scored)
    if run is None:
        raise ModelError(f"no checkpoint in {place} could be read: {warnings[0]}")
    return run.finish(warnings=warnings)


def _checkpoints(place: Path) -> dict[int, Path]:
    """The checkpoints of a folder; a folder that is itself a model counts as its last one."""
    if not (place / "config.json").is_file():
        return find_checkpoints(place)
    trained = RunRecord.read(place).settings.get("steps", 0) if (place / RUN).is_file() else 0
    return {int(trained): place}


def _own_sequences(subject: Any, place: Path, task: str | None, inputs: int) -> MultiHops:
    """Held-out sequences of the run the checkpoints come from, or of the task they name."""
    about = getattr(subject.model.config, "rotoscope", None) or {}
    _check_task(task, about.get("task"), place)
    if (place / RUN).is_file() and (record := RunRecord.read(place)).kind == Training.kind:
        return training_sequences(TrainSettings.read(record.settings), "validation", count=inputs)
    return sequences_for(subject.model.config, inputs, first=1_000_000)


def _check_task(wanted: str | None, found: str | None, place: Path) -> None:
    if wanted is not None and wanted != found:
        trained = f"on the {found} task" if found else "on a task of which they say nothing"
        raise ModelError(f"the checkpoints in {place} were trained {trained}, not on the {wanted} task")


def _check_vocabulary(samples: Any, subject: Any, checkpoint: Path) -> None:
    """Sequences of a multi-hop task mean something only to a model that has those words at those ids."""
    if not isinstance(samples, MultiHops):
        return
    known = subject.tokenizer.convert_ids_to_tokens(range(min(len(subject.tokenizer), len(samples.vocabulary))))
    if list(known) != list(samples.vocabulary):
        raise ModelError(
            f"{checkpoint} does not know the words of the {samples.task} task in these sizes; it was trained on another"
        )


def _plain(queries: str, taus: tuple[float, ...]) -> ProfileSettings:
    """How one checkpoint is scored."""
    return ProfileSettings(
        tau=taus, queries="last" if queries == "last" else "all", null="none", examples=False
    )


def _check_cost(
    subject: Subject, prompts: Prompts, count: int, checkpoints: int, settings: ProfileSettings, force: bool
) -> None:
    """Refuse what is too much: so many prompts like these, at all checkpoints one after the other."""
    once = estimate(subject, prompts, settings, count=count).cost
    whole = replace(once, what=f"{checkpoints} times {once.what}", seconds=checkpoints * once.seconds)
    whole.check(subject.device, force=force)


def _scored(
    subject: Any,
    samples: Any,
    shown: Prompts,
    queries: QueryKind,
    taus: tuple[float, ...],
    step: int,
    force: bool,
) -> Tables:
    """One checkpoint."""
    result = profile(subject, shown, _plain(queries, taus), force=force, show_progress=False)
    rows = result.prompts if queries == "last" else result.queries
    if queries == "path":
        marks = samples.on_path.cpu().numpy()
        rows = rows[marks[rows["prompt"].to_numpy(), rows["query_position"].to_numpy()]]
    found = {"scores": averaged(rows, queries, step), "points": point(step, subject)}
    if len(result.answers):
        found["accuracy"] = accuracy_of(result.answers, samples, step)
    return found
