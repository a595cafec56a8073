"""How heads became what they are: exact scores of every head at every step of a training run.

`Watch` scores a model of ours while it is being trained; `dynamics` scores any folder of checkpoints afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import prompts_hash
from rotoscope.analysis.estimate import estimate
from rotoscope.analysis.profiling import profile
from rotoscope.errors import ModelError, RotoscopeError, RunError, TaskError
from rotoscope.lab.checkpoints import sequences_for
from rotoscope.lab.gptj import GPTJ, LayerState, head_logits
from rotoscope.lab.sequences import training_sequences
from rotoscope.lab.training import Evaluation
from rotoscope.maths.swaps import swap_scores
from rotoscope.progress import progress_bar
from rotoscope.reading import Subject, find_checkpoints, load, own_model
from rotoscope.results.dynamics import Dynamics
from rotoscope.results.intervals import mean_interval, per_input
from rotoscope.results.record import RUN, RunRecord
from rotoscope.results.run import Run
from rotoscope.results.saved import Tables
from rotoscope.results.training import Training
from rotoscope.settings import ProfileSettings, TrainSettings, WatchSettings
from rotoscope.settings.profile import each_tau
from rotoscope.shapes import Bool, Float, Tensor
from rotoscope.tasks.multihop import MultiHops
from rotoscope.tasks.prompts import Prompts

QueryKind = Literal["last", "path", "all"]
"""Which positions are asked: the last token, every position the path runs through, or all with two keys before them."""
MEASURED = (
    "positional_score",
    "symbolic_score",
    "entropy",
    "relative_entropy",
    "effective_swaps",
    "swapped_mass",
)


class Watch:
    """Scores all heads of a model in training; give it to `rs.lab.train` as `on_evaluate`.

    The first evaluation of a model proves it against the reader (`GPTJ.prove`); `proof` is the largest difference found.
    """

    def __init__(
        self,
        inputs: int = 200,
        queries: QueryKind | Sequence[QueryKind] = ("last",),
        tau: float | Sequence[float] = 1e-4,
    ) -> None:
        self.settings = WatchSettings.make(inputs=inputs, queries=queries, tau=tau)
        self.proof: float | None = None

    def __call__(self, evaluation: Evaluation) -> Tables:
        return self.together([evaluation])[0]

    def together(self, evaluations: Sequence[Evaluation]) -> list[Tables]:
        """Models that are trained as one, scored as one."""
        wanted, models = self.settings, [evaluation.model for evaluation in evaluations]
        samples = [evaluation.held_out[: wanted.inputs] for evaluation in evaluations]
        kinds = [score_models(models, samples, kind, wanted.tau) for kind in wanted.queries]
        self.proof = max(model.proof or 0.0 for model in models)
        found: list[Tables] = []
        for evaluation, parts in zip(evaluations, zip(*kinds, strict=True), strict=True):
            table = pd.concat(parts, ignore_index=True)
            table.insert(0, "step", evaluation.step)
            found.append({"scores": table})
        return found


def check_queries(queries: str) -> None:
    if queries not in ("last", "path", "all"):
        raise RotoscopeError(f"unknown queries '{queries}'; choose last, path or all")


def score_heads(
    model: GPTJ, samples: MultiHops, queries: QueryKind = "last", tau: float | Sequence[float] = 1e-4
) -> pd.DataFrame:
    """Mean scores of all heads of a GPT-J, all layers at once, over inputs and the positions asked."""
    return score_models([model], [samples], queries, tau)[0]


@torch.no_grad()
def score_models(
    models: Sequence[GPTJ], samples: Sequence[MultiHops], queries: QueryKind, tau: float | Sequence[float]
) -> list[pd.DataFrame]:
    """The same of several models of one shape, all layers of all of them at once, each on as many inputs."""
    taus = each_tau(tau)
    states: list[LayerState] = []
    for model, shown in zip(models, samples, strict=True):
        if model.proof is None:
            model.prove()
        model.logits(shown.tokens, visit=states.append)
    last = samples[0].length - 1
    positions = [last] if queries == "last" else [*range(2, last + 1)]
    values = torch.stack([_at(states, position, taus) for position in positions])
    values = values.unflatten(2, (len(models), -1)).cpu()  # [query, measure, model, layer, input, head, tau]
    tables = []
    for found, shown in zip(values.unbind(2), samples, strict=True):
        everyone = torch.ones(len(positions), len(shown), dtype=torch.bool)
        asked = shown.on_path.cpu().mT[positions] if queries == "path" else everyone
        tables.append(_scored_heads(found.contiguous(), asked, queries, taus))
    return tables


def _scored_heads(
    values: Float[Tensor, "query measure layer input head tau"],
    asked: Bool[Tensor, "query input"],
    queries: str,
    taus: tuple[float, ...],
) -> pd.DataFrame:
    """One model's scores, averaged over inputs and the positions asked."""
    weight = asked.to(values.dtype)[:, None, None, :, None, None]
    total = weight.sum()
    mean = (values * weight).sum((0, 3)) / total
    spread = (((values - mean.unsqueeze(2)) ** 2 * weight).sum((0, 3)) / total).sqrt()
    sums = (values[:, :2] * weight).sum(0).movedim(2, 0)  # [input, score, layer, head, tau]
    samples_of = per_input(sums.double().numpy(), asked.sum(0).numpy()[:, None, None, None, None])
    ends = mean_interval(samples_of, (0.0, 1.0))
    table = _with_intervals(_table(mean, spread, queries, taus), *(end.reshape(2, -1) for end in ends))
    return table.assign(inputs=int(asked.any(0).sum()), asked=int(total))


def _at(
    states: list[LayerState], position: int, taus: tuple[float, ...]
) -> Float[Tensor, "measure layer input head tau"]:
    """Scores of every layer's heads at one position, layers that rotate alike taken together."""
    parts: dict[int, Tensor] = {}
    for group in _alike(states):
        scores = swap_scores(head_logits(group, position), taus)
        entropy = scores.entropy[..., None].expand_as(scores.positional)
        relative = entropy / math.log(position + 1)
        mass = scores.swapped_mass[..., None].expand_as(scores.positional)
        made = torch.stack(
            (scores.positional, scores.symbolic, entropy, relative, scores.effective_swaps, mass)
        )
        parts |= {id(state): made[:, k] for k, state in enumerate(group)}
    return torch.stack([parts[id(state)] for state in states], dim=1)


def _alike(states: list[LayerState]) -> list[list[LayerState]]:
    """Layers that rotate, and layers that do not."""
    groups = ([state for state in states if state.rotates == rotates] for rotates in (True, False))
    return [group for group in groups if group]


def _with_intervals(table: pd.DataFrame, low: np.ndarray, high: np.ndarray) -> pd.DataFrame:
    """The 95 % intervals over inputs of both scores [score, row]."""
    for name, *ends in zip(MEASURED, low, high, strict=False):
        table[f"{name}_low"], table[f"{name}_high"] = ends
    return table


def _table(mean: Tensor, spread: Tensor, queries: str, taus: tuple[float, ...]) -> pd.DataFrame:
    _, layers, heads, _ = mean.shape
    index = [(layer, head, tau) for layer in range(layers) for head in range(heads) for tau in taus]
    table = pd.DataFrame(index, columns=["layer", "head", "tau"])
    table.insert(2, "queries", queries)
    for k, name in enumerate(MEASURED):
        table[name] = mean[k].flatten().numpy()
    for k, name in enumerate(MEASURED[:2]):
        table[name.replace("score", "spread")] = spread[k].flatten().numpy()
    return table


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
    groups = rows.groupby(["layer", "head", "tau"])
    table = groups[list(MEASURED)].mean()
    for name in MEASURED[:2]:
        table[name.replace("score", "spread")] = groups[name].std(ddof=0)
    by_input = (
        rows.groupby(["prompt", "layer", "head", "tau"])[list(MEASURED[:2])]
        .agg(["sum", "size"])
        .unstack("prompt")
    )
    sums, counts = (by_input.xs(what, axis=1, level=1).fillna(0) for what in ("sum", "size"))
    wide = [part.to_numpy(dtype=float).reshape(len(table), 2, -1).transpose(2, 1, 0) for part in (sums, counts)]
    table = _with_intervals(table, *mean_interval(per_input(*wide), (0.0, 1.0)))
    table = table.assign(inputs=groups["prompt"].nunique(), asked=groups.size()).reset_index()
    table.insert(2, "queries", queries)
    table.insert(0, "step", step)
    if result.answers.empty:
        return {"scores": table}
    hops = pd.Series(samples.hops.tolist() if isinstance(samples, MultiHops) else 0, index=range(len(shown)))
    right = result.answers.assign(hops=result.answers["prompt"].map(hops)).groupby("hops")["correct"]
    accuracy = right.agg(["mean", "size"]).reset_index()
    accuracy.columns = ["hops", "accuracy", "inputs"]
    accuracy.insert(0, "step", step)
    return {"scores": table, "accuracy": accuracy}
