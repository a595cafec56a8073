"""Scores of all heads at one step of a training: of a model of ours while it is trained, or from what a reader read.

`Watch` scores models of ours, all layers at once; `averaged` and `accuracy_of` make the same tables from the scores of any model's
prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from rotoscope.errors import RotoscopeError
from rotoscope.lab.gptj import GPTJ, LayerState, head_logits
from rotoscope.lab.settings import WatchSettings
from rotoscope.lab.training import Evaluation
from rotoscope.models.loading import Subject
from rotoscope.runs.result import Tables
from rotoscope.scores.swaps import swap_scores
from rotoscope.settings import each_tau
from rotoscope.shapes import Bool, Float, Tensor
from rotoscope.stats.aggregate import own_measures
from rotoscope.stats.intervals import mean_interval, per_input
from rotoscope.tasks.multihop_frames import MultiHops
from rotoscope.tasks.prompt import Prompts

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
        settings, models = self.settings, [evaluation.model for evaluation in evaluations]
        samples = [evaluation.held_out[: settings.inputs] for evaluation in evaluations]
        kinds = [score_models(models, samples, kind, settings.tau) for kind in settings.queries]
        self.proof = max(model.proof or 0.0 for model in models)
        tables: list[Tables] = []
        for evaluation, parts in zip(evaluations, zip(*kinds, strict=True), strict=True):
            table = pd.concat(parts, ignore_index=True)
            table.insert(0, "step", evaluation.step)
            tables.append({"scores": table})
        return tables


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
    for model, sequences in zip(models, samples, strict=True):
        if model.proof is None:
            model.prove()
        model.logits(sequences.tokens, visit=states.append)
    last = samples[0].length - 1
    positions = [last] if queries == "last" else [*range(2, last + 1)]
    values = torch.stack([_at(states, position, taus) for position in positions])
    values = values.unflatten(2, (len(models), -1)).cpu()  # [query, measure, model, layer, input, head, tau]
    tables = []
    for model_values, sequences in zip(values.unbind(2), samples, strict=True):
        everyone = torch.ones(len(positions), len(sequences), dtype=torch.bool)
        queried = sequences.on_path.cpu().mT[positions] if queries == "path" else everyone
        tables.append(_scored_heads(model_values.contiguous(), queried, queries, taus))
    return tables


def _scored_heads(
    values: Float[Tensor, "query measure layer input head tau"],
    queried: Bool[Tensor, "query input"],
    queries: str,
    taus: tuple[float, ...],
) -> pd.DataFrame:
    """One model's scores, averaged over inputs and the positions asked."""
    weight = queried.to(values.dtype)[:, None, None, :, None, None]
    total = weight.sum()
    mean = (values * weight).sum((0, 3)) / total
    spread = (((values - mean.unsqueeze(2)) ** 2 * weight).sum((0, 3)) / total).sqrt()
    sums = (values[:, :2] * weight).sum(0).movedim(2, 0)  # [input, score, layer, head, tau]
    samples_of = per_input(sums.double().numpy(), queried.sum(0).numpy()[:, None, None, None, None])
    ends = mean_interval(samples_of, (0.0, 1.0))
    table = _with_intervals(_table(mean, spread, queries, taus), *(end.reshape(2, -1) for end in ends))
    return table.assign(inputs=int(queried.any(0).sum()), asked=int(total))


def _at(
    states: list[LayerState], position: int, taus: tuple[float, ...]
) -> Float[Tensor, "measure layer input head tau"]:
    """Scores of every layer's heads at one position."""
    scores = swap_scores(head_logits(states, position), taus)
    entropy = scores.entropy[..., None].expand_as(scores.positional)
    relative = entropy / math.log(position + 1)
    mass = scores.swapped_mass[..., None].expand_as(scores.positional)
    return torch.stack((scores.positional, scores.symbolic, entropy, relative, scores.effective_swaps, mass))


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


def averaged(rows: pd.DataFrame, queries: str, step: int) -> pd.DataFrame:
    """Scores per prompt, or per query, as one row per (layer, head, tau) of a step."""
    groups = rows.groupby(["layer", "head", "tau"])
    table = groups[[*MEASURED, *own_measures(rows)]].mean()
    for name in MEASURED[:2]:
        table[name.replace("score", "spread")] = groups[name].std(ddof=0)
    by_input = (
        rows.groupby(["prompt", "layer", "head", "tau"])[list(MEASURED[:2])]
        .agg(["sum", "size"])
        .unstack("prompt")
    )
    sums, counts = (by_input.xs(statistic, axis=1, level=1).fillna(0) for statistic in ("sum", "size"))
    wide = [part.to_numpy(dtype=float).reshape(len(table), 2, -1).transpose(2, 1, 0) for part in (sums, counts)]
    table = _with_intervals(table, *mean_interval(per_input(*wide), (0.0, 1.0)))
    table = table.assign(inputs=groups["prompt"].nunique(), asked=groups.size()).reset_index()
    table.insert(2, "queries", queries)
    table.insert(0, "step", step)
    return table


def accuracy_of(answers: pd.DataFrame, samples: Prompts | MultiHops, step: int) -> pd.DataFrame:
    """The share of right answers of a step, by number of hops; 0 hops where the task has none."""
    hops = pd.Series(samples.hops.tolist() if isinstance(samples, MultiHops) else 0, index=range(len(samples)))
    right = answers.assign(hops=answers["prompt"].map(hops)).groupby("hops")["correct"]
    accuracy = right.agg(["mean", "size"]).reset_index()
    accuracy.columns = ["hops", "accuracy", "inputs"]
    accuracy.insert(0, "step", step)
    return accuracy


def point(step: int, subject: Subject, **about: Any) -> pd.DataFrame:
    """What a step was: its weights' fingerprint, and what else is known of it."""
    return pd.DataFrame([{"step": step, "fingerprint": subject.weights_fingerprint, **about}])


def sampled(step: int, subject: Subject) -> pd.DataFrame:
    """A few of the weights of a step, the same at every one, by which steps are told to be in order."""
    values = subject.sampled_weights().float().numpy()
    return pd.DataFrame({"step": step, "weight": np.arange(len(values)), "value": values})
