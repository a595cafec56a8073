"""What heads do on repeated tokens of some length: scores, attention on what is to be copied, and what each plane adds to the gap.

One reading of a prompt gives all of it, and what the model answers besides. The gap of a head is its largest logit minus the second
(the discrepancy); a plane's part of it is its own logit on the first of the two keys minus that on the second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import Batch, Halving, batches
from rotoscope.analysis.losses import answer_losses
from rotoscope.analysis.measures import BatchScores, Scoring
from rotoscope.maths.attention import attention_weights
from rotoscope.maths.longer import AtDistance, plane_products
from rotoscope.maths.purity import purity_classes
from rotoscope.maths.rotation import turn
from rotoscope.reading import HeadReader, LayerHeads, Subject
from rotoscope.results.context_plan import COPYING
from rotoscope.results.saved import Tables
from rotoscope.shapes import Float, Int, Tensor
from rotoscope.tasks.prompts import Prompts

TAU = 1e-4
QUERIES = 8
"""Positions of the second copy at which heads are looked at."""
SCORED = 2
"""Of those, the last ones, at which heads are scored by swaps, which takes longer."""
KEYS, DISTANCES = 64, 64
"""Keys that stand for those of a longer input, and distances at which they are set."""

Turns = Mapping[tuple[str, int], tuple[Tensor, Tensor]]
"""Tables of cosines and sines [positions, width] by setting and length."""


def looked_at(prompts: Prompts) -> tuple[int, ...]:
    """A few queries, spread over the second copy, the last among them."""
    asked = prompts[0].queries
    return tuple(
        sorted({asked[round(len(asked) * k / QUERIES) - 1] for k in range(1, QUERIES + 1)} - {asked[0]})
    )


@dataclass
class LongerHeads:
    """The heads of one batch, gathered layer by layer."""

    copy_length: int
    """Tokens of each copy."""
    turns: Turns = field(default_factory=dict)
    """Settings and lengths for which the attention of heads that copy is predicted."""
    heads: list[pd.DataFrame] = field(default_factory=list)
    planes: list[pd.DataFrame] = field(default_factory=list)
    predicted: list[pd.DataFrame] = field(default_factory=list)

    @property
    def targets(self) -> dict[str, int]:
        """What heads that copy repeated tokens look at, by its distance: what followed in the first copy, or the token before."""
        return dict(zip(COPYING, (self.copy_length - 1, 1), strict=True))

    def visit(self, layer: LayerHeads, first: int) -> None:
        """Take a layer; `first` is the number of the batch's first prompt."""
        real = layer.real()  # [batch, heads, queries, n]
        rows = torch.tensor(layer.positions, device=real.device)
        weights = attention_weights(real, None if layer.sinks is None else layer.sinks[:, None])
        top = real.topk(2, dim=-1)
        gaps = plane_gaps(layer, top.indices)  # [batch, heads, queries, parts]
        found = {
            name: weights.gather(-1, (rows - away)[:, None].expand(*real.shape[:3], 1))[..., 0].mean(-1)
            for name, away in self.targets.items()
        } | {
            "discrepancy": (top.values[..., 0] - top.values[..., 1]).mean(-1),
        }
        self.heads.append(_rows(found, layer.layer, first))
        ids = [*range(1, layer.layout.planes + 1), *([0] if layer.layout.remainder else [])]
        by_plane = {str(frequency): gaps[..., k].mean(-1) for k, frequency in enumerate(ids)}
        wide = _rows(by_plane, layer.layer, first)
        keys = ["prompt", "layer", "head"]
        self.planes.append(wide.melt(id_vars=keys, var_name="frequency_id", value_name="gap"))
        if self.turns and not any(layer.hides):
            for (setting, n), (cos, sin) in self.turns.items():
                columns = layer.layout.columns.to(cos.device)
                table = cos[:, columns].to(real), sin[:, columns].to(real)
                shares = {
                    name: predicted_share(layer, table, away, n, self.copy_length).mean(-1)
                    for name, away in self.targets.items()
                }
                part = _rows(shares, layer.layer, first)
                self.predicted.append(part.assign(setting=setting, length=n))


def _rows(found: dict[str, Float[Tensor, "batch heads"]], layer: int, first: int) -> pd.DataFrame:
    shape = next(iter(found.values())).shape
    prompt, head = np.indices(shape)
    about = {"prompt": first + prompt.ravel(), "layer": layer, "head": head.ravel()}
    return pd.DataFrame(about | {name: values.double().cpu().numpy().ravel() for name, values in found.items()})


def plane_gaps(
    layer: LayerHeads, keys: Int[Tensor, "batch heads queries 2"]
) -> Float[Tensor, "batch heads queries parts"]:
    """What every plane adds to the logit of the first of two keys, more than to that of the second; last, the un-rotated rest."""
    planes, group = layer.layout.planes, layer.query.shape[2]
    rows = torch.tensor(layer.positions, device=layer.keys.device)

    def turned(vectors: Tensor, places: Tensor) -> Tensor:
        pairs, rest = vectors.split((2 * planes, layer.layout.remainder), dim=-1)
        cos, sin = layer.cos[places].to(pairs), layer.sin[places].to(pairs)
        return torch.cat((turn(pairs.unflatten(-1, (-1, 2)), cos, sin).flatten(-2), rest), dim=-1)

    query = turned(layer.query.flatten(1, 2), rows)  # [batch, heads, queries, d]
    own = layer.keys.repeat_interleave(group, 1)
    parts = []
    for index in keys.unbind(-1):
        chosen = own.gather(2, index[..., None].expand(*index.shape, own.shape[-1]))
        parts.append(plane_products(query, turned(chosen, index), planes))
    return layer.scaling * (parts[0] - parts[1])


def predicted_share(
    layer: LayerHeads,
    table: tuple[Float[Tensor, "n planes"], Float[Tensor, "n planes"]],
    away: int,
    n: int,
    copy_length: int,
) -> Float[Tensor, "batch heads queries"]:
    """The attention that the key so far away would have in an input of n tokens under other angles.

    Queries and keys are those of this layer. Keys stay at their distances; what followed in the first copy and the first key of
    all, which many heads rest on, go as far away as they would be; and the keys that come in between are like a sample of those
    there are, set at their distances by rotation. Angles change from this layer on: what they change in layers before it is left out.
    """
    cos, sin = (part * table[0][0] for part in table)  # between two positions, a scale counts twice
    longer = n / (2 * copy_length)
    own = layer.keys.repeat_interleave(layer.query.shape[2], 1)
    found = []
    for k, place in enumerate(layer.positions):
        query = layer.query.flatten(1, 2)[:, :, k, None]
        keys, j, followed = own[:, :, : place + 1], place - away, place - copy_length + 1
        pairs = AtDistance(query, keys, layer.layout.planes, layer.scaling)
        last = min(round((place + 1) * longer), n) - 1
        distance = place - torch.arange(place + 1, device=keys.device)
        distance[0], distance[followed] = last, min(last, n // 2 - 1)
        logits = layer.capped(pairs.each(cos, sin, distance))
        right = logits[..., j].clone()
        logits[..., j] = -torch.inf
        others = logits.logsumexp(-1)
        if last > place:
            sample = torch.linspace(1, place, min(KEYS, place), device=keys.device).round().long()
            spread = (
                torch.linspace(place + 1, last, min(DISTANCES, last - place), device=keys.device).round().long()
            )
            some = AtDistance(query, keys[:, :, sample], layer.layout.planes, layer.scaling)
            between = layer.capped(some.all_at(cos, sin, spread)).flatten(-2)
            more = between.logsumexp(-1) - math.log(between.shape[-1]) + math.log(last - place)
            others = torch.logaddexp(others, more)
        if layer.sinks is not None:
            others = torch.logaddexp(others, layer.sinks.expand_as(others))
        found.append(torch.sigmoid(right - others))
    return torch.stack(found, dim=-1)


def read_repeats(subject: Subject, prompts: Prompts, halving: Halving, turns: Turns | None = None) -> Tables:
    """Losses, heads and planes on repeated tokens, and predictions for other angles and lengths where they are asked for."""
    reader = HeadReader(subject.model)
    copy_length = int(prompts.settings["length"])
    losses: list[dict[str, float]] = []
    scored, gathered = [], LongerHeads(copy_length, turns or {})

    def read(batch: Batch) -> None:
        last = slice(-SCORED, None)
        scores = BatchScores(replace(batch, queries=batch.queries[last]), Scoring((TAU,)), reader.layers)

        def visit(layer: LayerHeads) -> None:
            scores.visit(layer.part(last))
            gathered.visit(layer, batch.first)

        said = reader.read(batch.tokens, batch.queries, visit, keep=batch.prompts[0].queries)
        loss, right = (found.double().mean(1).tolist() for found in answer_losses(said.float(), batch))
        for k in range(len(batch)):
            losses.append({"prompt": batch.first + k, "loss": loss[k], "accuracy": right[k]})
        scored.append(scores.tables()["prompts"])

    for batch in batches(prompts, looked_at(prompts), 1):
        halving.each(batch, batch.length, read)
    tables = {"losses": pd.DataFrame(losses), "heads": _heads(pd.concat(scored), pd.concat(gathered.heads))}
    keys = ["layer", "head", "frequency_id"]
    by_plane = pd.concat(gathered.planes).astype({"frequency_id": int})
    parts = by_plane.groupby(keys, sort=True)["gap"]
    tables["planes"] = parts.agg(gap="mean", least_gap="min").reset_index()
    if gathered.predicted:
        by_head = pd.concat(gathered.predicted).groupby(["setting", "length", "layer", "head"], sort=False)
        tables["predicted"] = by_head[list(COPYING)].mean().reset_index()
    return tables


def _heads(scored: pd.DataFrame, looked: pd.DataFrame) -> pd.DataFrame:
    """One row per head: means over prompts, and its class."""
    names = ["positional_score", "symbolic_score", "swapped_mass"]
    keys = ["layer", "head"]
    means = scored.groupby(keys, sort=True)[names].mean().astype(float)
    means = means.join(looked.groupby(keys)[[*COPYING, "discrepancy"]].mean()).reset_index()
    return means.assign(head_class=purity_classes(means["positional_score"], means["symbolic_score"]))
