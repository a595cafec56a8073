"""How heads became what they are: exact scores of every head at every step of a training run.

`Watch` scores a model of ours while it is being trained; `dynamics` scores any folder of checkpoints afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from rotoscope.analysis.batches import prompts_hash
from rotoscope.analysis.profiling import profile
from rotoscope.errors import ModelError, RotoscopeError, RunError, TaskError
from rotoscope.lab.checkpoints import sequences_for
from rotoscope.lab.gptj import GPTJ, LayerState
from rotoscope.lab.training import Evaluation, TrainSettings
from rotoscope.maths.rotation import counterfactual_logits
from rotoscope.maths.swaps import check_tau, swap_scores
from rotoscope.progress import progress
from rotoscope.reading import find_checkpoints, load, own_model
from rotoscope.results.dynamics import Dynamics
from rotoscope.results.folder import RunFolder, read_run, read_table, versions, write_table
from rotoscope.results.training import Training
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.multihop import MultiHops
from rotoscope.tasks.prompts import Prompts

__all__ = ["Asking", "Watch", "dynamics", "score_heads"]

Asking = Literal["last", "path", "all"]
"""Which positions are asked: the last token, every position the path runs through, or all with two keys before them."""
MEASURED = ("positional_score", "symbolic_score", "entropy", "relative_entropy", "effective_swaps")


class Watch:
    """Scores all heads of a model in training; give it to `rs.lab.train` as `on_evaluate`."""

    def __init__(
        self, inputs: int = 200, queries: Sequence[Asking] = ("last",), tau: float | Sequence[float] = 1e-4
    ) -> None:
        self.inputs, self.queries, self.taus = inputs, tuple(queries), check_tau(tau)
        if inputs < 1:
            raise RotoscopeError(f"at least one input is needed to score heads on, found {inputs}")
        for asked in self.queries:
            check_asking(asked)

    @property
    def settings(self) -> dict[str, Any]:
        """What is scored, as it stands in `run.json`."""
        return {"inputs": self.inputs, "queries": list(self.queries), "tau": list(self.taus)}

    def __call__(self, evaluation: Evaluation) -> dict[str, pd.DataFrame]:
        samples = evaluation.held_out[: self.inputs]
        parts = [score_heads(evaluation.model, samples, asked, self.taus) for asked in self.queries]
        table = pd.concat(parts, ignore_index=True)
        table.insert(0, "step", evaluation.step)
        return {"scores": table}


def check_asking(queries: str) -> None:
    if queries not in ("last", "path", "all"):
        raise RotoscopeError(f"unknown queries '{queries}'; choose last, path or all")


@torch.no_grad()
def score_heads(
    model: GPTJ, samples: MultiHops, queries: Asking = "last", tau: float | Sequence[float] = 1e-4
) -> pd.DataFrame:
    """Mean scores of all heads of a GPT-J, all layers at once, over inputs and the positions asked."""
    taus = check_tau(tau)
    states: list[LayerState] = []
    model.logits(samples.tokens, visit=states.append)
    last = samples.length - 1
    positions = [last] if queries == "last" else range(2, samples.length)
    found, counted = [], []
    for position in positions:
        found.append(_at(states, position, taus))
        counted.append(
            samples.on_path[:, position]
            if queries == "path"
            else torch.ones_like(samples.hops, dtype=torch.bool)
        )
    values = torch.cat(found, dim=2)  # [measure, layer, input, head, tau]
    weight = torch.cat(counted).to(values.dtype)[:, None, None]
    total = weight.sum()
    mean = (values * weight).sum(2) / total
    spread = (((values - mean.unsqueeze(2)) ** 2 * weight).sum(2) / total).sqrt()
    return _table(mean.cpu(), spread.cpu(), queries, taus, int(total))


def _at(
    states: list[LayerState], position: int, taus: tuple[float, ...]
) -> Float[Tensor, "measure layer input head tau"]:
    """Scores of every layer's heads at one position, layers that rotate alike taken together."""
    parts: dict[int, Tensor] = {}
    for group in _alike(states):
        query = torch.stack([torch.view_as_real(state.query[:, :, position]) for state in group])
        keys = torch.stack([torch.view_as_real(state.key[:, :, : position + 1]) for state in group])
        scale = (2 * keys.shape[-2]) ** -0.5
        scores = swap_scores(counterfactual_logits(query, keys, group[0].angles, scale), taus)
        entropy = scores.entropy[..., None].expand_as(scores.positional)
        relative = entropy / math.log(position + 1)
        made = torch.stack((scores.positional, scores.symbolic, entropy, relative, scores.effective_swaps))
        parts |= {state.layer: made[:, k] for k, state in enumerate(group)}
    return torch.stack([parts[state.layer] for state in states], dim=1)


def _alike(states: list[LayerState]) -> list[list[LayerState]]:
    """Layers that rotate, and layers that do not."""
    groups = ([state for state in states if state.rotates == rotates] for rotates in (True, False))
    return [group for group in groups if group]


def _table(mean: Tensor, spread: Tensor, queries: str, taus: tuple[float, ...], inputs: int) -> pd.DataFrame:
    _, layers, heads, _ = mean.shape
    index = [(layer, head, tau) for layer in range(layers) for head in range(heads) for tau in taus]
    table = pd.DataFrame(index, columns=["layer", "head", "tau"])
    table.insert(2, "queries", queries)
    for k, name in enumerate(MEASURED):
        table[name] = mean[k].flatten().numpy()
    for k, name in enumerate(MEASURED[:2]):
        table[name.replace("score", "spread")] = spread[k].flatten().numpy()
    return table.assign(inputs=inputs)


def dynamics(
    source: str | Path | Training,
    *,
    prompts: Prompts | MultiHops | None = None,
    task: str | None = None,
    queries: Asking | None = None,
    inputs: int = 200,
    tau: float | Sequence[float] = 1e-4,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Dynamics:
    """Scores of all heads along training.

    `source` is a training run or one of the embedded models "number" and "letter" (what was watched while it was
    trained is read back, unless other `queries` are asked), or a folder of checkpoints, `checkpoint-N/` or `step-N/`,
    of any model that can be profiled. Models of ours know their task; for others give `prompts`. `task` makes sure
    that the checkpoints are of that task.
    """
    if isinstance(source, Training):
        if queries is None and "scores" in source.tables:
            return Dynamics.of_training(source)
        if source.folder is None:
            raise RunError("this training run was not written to a folder, so it has no checkpoints to score")
        source = source.folder
    place = own_model(str(source)) or Path(source)
    if queries is None and (place / "run.json").is_file():
        run = read_run(place)
        if run.get("kind") == Dynamics.kind:
            return Dynamics.open(place)
        if run.get("kind") == Training.kind and run.get("complete") and "scores" in run.get("tables", ()):
            trained = Training.open(place)
            _check_task(task, trained.task, place)
            return Dynamics.of_training(trained)
    asked: Asking = queries or "last"
    check_asking(asked)
    return _from_checkpoints(
        place, prompts, task, asked, inputs, check_tau(tau), device, out, overwrite, show_progress
    )


def _from_checkpoints(
    place: Path,
    prompts: Prompts | MultiHops | None,
    task: str | None,
    queries: Asking,
    inputs: int,
    taus: tuple[float, ...],
    device: str | None,
    out: str | Path | None,
    overwrite: bool,
    show_progress: bool | None,
) -> Dynamics:
    checkpoints = _checkpoints(place)
    began = time.perf_counter()
    warnings: list[str] = []
    parts: dict[str, list[pd.DataFrame]] = {"scores": [], "accuracy": []}
    settings: dict[str, Any] = {}
    shown: Prompts | None = None
    folder: RunFolder | None = None
    with progress("checkpoints", len(checkpoints), show_progress) as bar:
        for step, checkpoint in checkpoints.items():
            try:
                subject = load(checkpoint, device=device, dtype=torch.float32)
            except ModelError as damage:
                warnings.append(f"{checkpoint.name} was left out: {damage}")
                bar.advance()
                continue
            if shown is None:  # the first model that can be read says what it is shown
                samples = prompts if prompts is not None else _own_sequences(subject, place, task, inputs)
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
                if out is not None:
                    folder = RunFolder(out, Dynamics.kind, settings, overwrite=overwrite)
                    if folder.complete:
                        return Dynamics.open(folder.path)
                    folder.begin()
            _check_vocabulary(samples, subject, checkpoint)
            for name, table in _scored(subject, samples, shown, queries, taus, step, folder).items():
                parts[name].append(table)
            bar.advance()
    if not parts["scores"]:
        raise ModelError(f"no checkpoint in {place} could be read: {warnings[0]}")
    tables = {name: pd.concat(rows, ignore_index=True) for name, rows in parts.items() if rows}
    details = {"timings": {"total_s": time.perf_counter() - began}, "warnings": warnings}
    if folder is not None:
        return Dynamics(folder.finish(tables, **details), tables)
    return Dynamics({"settings": settings, "versions": versions(), **details}, tables)


def _checkpoints(place: Path) -> dict[int, Path]:
    """The checkpoints of a folder; a folder that is itself a model counts as its last one."""
    if not (place / "config.json").is_file():
        return find_checkpoints(place)
    trained = read_run(place)["settings"].get("steps", 0) if (place / "run.json").is_file() else 0
    return {int(trained): place}


def _own_sequences(subject: Any, place: Path, task: str | None, inputs: int) -> MultiHops:
    """Held-out sequences of the run the checkpoints come from, or of the task they name."""
    about = getattr(subject.model.config, "rotoscope", None) or {}
    _check_task(task, about.get("task"), place)
    if (place / "run.json").is_file() and read_run(place).get("kind") == Training.kind:
        of = TrainSettings.of(read_run(place)["settings"])
        return of.sequences("validation", count=inputs)
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


def _scored(
    subject: Any,
    samples: Any,
    shown: Prompts,
    queries: Asking,
    taus: tuple[float, ...],
    step: int,
    folder: RunFolder | None,
) -> dict[str, pd.DataFrame]:
    """One checkpoint; read back where an earlier try finished it."""
    if folder is not None and folder.piece(f"scores-{step:08d}.parquet").exists():
        return {
            name: read_table(folder.piece(f"{name}-{step:08d}.parquet"))
            for name in ("accuracy", "scores")
            if folder.piece(f"{name}-{step:08d}.parquet").exists()
        }
    result = profile(
        subject, shown, tau=taus, queries="last" if queries == "last" else "all", show_progress=False
    )
    rows = result.prompts if queries == "last" else result.queries
    if queries == "path":
        marks = samples.on_path.cpu().numpy()
        rows = rows[marks[rows["prompt"].to_numpy(), rows["query_position"].to_numpy()]]
    groups = rows.groupby(["layer", "head", "tau"])
    table = groups[list(MEASURED)].mean()
    for name in MEASURED[:2]:
        table[name.replace("score", "spread")] = groups[name].std(ddof=0)
    table = table.assign(inputs=groups.size()).reset_index()
    table.insert(2, "queries", queries)
    table.insert(0, "step", step)
    made = {"scores": table}
    answers = result.answers
    if len(answers):
        hops = pd.Series(
            samples.hops.tolist() if isinstance(samples, MultiHops) else 0, index=range(len(shown))
        )
        right = answers.assign(hops=answers["prompt"].map(hops)).groupby("hops")["correct"]
        accuracy = right.agg(["mean", "size"]).reset_index()
        accuracy.columns = ["hops", "accuracy", "inputs"]
        accuracy.insert(0, "step", step)
        made = {"accuracy": accuracy, "scores": table}
    if folder is not None:
        for name, piece in made.items():  # scores last: they mark the checkpoint as done
            write_table(folder.piece(f"{name}-{step:08d}.parquet"), piece)
    return made
