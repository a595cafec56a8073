"""What stopping a plane would cost, estimated for all planes at once by gradients.

Every plane of every key head has a factor alpha: its logits are alpha times those of the rotating plane and 1 - alpha times those
of the stopped one (`rotoscope.models.partial_rope.mixed`). Stopping it takes alpha from 1 to 0, so that the loss rises by about
-dL/dalpha, in the mean over points of the way. One backward pass tells this for all planes; how they act together it does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from rotoscope.experiments.plan.rankings import mixes_alone, path_points
from rotoscope.experiments.plan.settings import RotationSettings
from rotoscope.measures.batches import Halving, batches
from rotoscope.measures.losses import MOST_TOKENS, answer_logits
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.loading import Subject
from rotoscope.models.partial_rope import mixed
from rotoscope.models.reader import HeadReader
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.prompt import Prompts

Planes = list[Float[Tensor, "_ _"]]
"""A number for every plane of every key head, layer by layer."""
GRADIENT_TOKENS = 256
"""Tokens whose gradients are held in memory together."""


def even_way(reader: HeadReader, points: int) -> Iterator[Planes]:
    """All planes alike, from rotating to stopped: the middles of so many equal steps."""
    for share in path_points(points):
        yield [
            torch.full((heads, layout.planes), share)
            for heads, layout in zip(reader.key_head_counts, reader.layouts, strict=True)
        ]


def stopping_effects(
    subject: Subject, reader: HeadReader, shown: Mapping[str, Prompts], way: Sequence[Planes]
) -> Planes:
    """-dL/dalpha of every plane, in the mean over the points of the way; the loss is the mean over sources and their prompts."""
    total: Planes = []
    for point in way:
        alphas = [share.to(subject.device).requires_grad_() for share in point]
        with mixes_alone(reader), mixed(reader, alphas):
            for prompts in shown.values():
                for batch in batches(prompts, "task", GRADIENT_TOKENS):
                    logits = answer_logits(subject, batch)
                    expected = torch.tensor([prompt.answers for prompt in batch.prompts], device=logits.device)
                    right = logits.gather(2, expected[..., None])[..., 0]
                    loss = (logits.logsumexp(-1) - right).mean(1).sum() / (len(prompts) * len(shown))
                    loss.backward()
        found = [torch.zeros_like(a) if a.grad is None else -a.grad for a in alphas]
        found = [part.detach().float().cpu() / len(way) for part in found]
        total = [a + b for a, b in zip(total, found, strict=True)] if total else found
    return total


# What the planes of every key head are ranked by: a score for each ranking, the larger the earlier a plane is kept.
#
# A key head takes the largest value of its group's query heads. Rankings are within a key head: every one keeps as many planes.


TAU = 1e-4
INDEX = ["layer", "key_head", "frequency_id"]


def plane_scores(
    subject: Subject,
    reader: HeadReader,
    shown: Mapping[str, Prompts],
    wanted: RotationSettings,
    halving: Halving,
) -> pd.DataFrame:
    """One row per (layer, key head, frequency id): a column for every ranking that is no draw."""
    table = all_planes(reader)
    rankings = set(wanted.plane_rankings)
    if "norm" in rankings:
        norms = _norms(subject, reader, shown, halving)
        table = table.merge(norms, on=INDEX, how="left", validate="1:1")
    if "fastest" in rankings:
        table["fastest"] = -table["frequency_id"].astype(float)
    if "effect" in rankings:
        way = list(even_way(reader, wanted.path_points))
        effects = stopping_effects(subject, reader, shown, way)
        table["effect"] = torch.cat([part.flatten() for part in effects]).double().numpy()
    return table[[*INDEX, "angle", *(name for name in wanted.plane_rankings if name in table)]]


def all_planes(reader: HeadReader) -> pd.DataFrame:
    """Every plane of every key head, with its angle."""
    return pd.DataFrame(
        [
            {"layer": layer, "key_head": head, "frequency_id": k + 1, "angle": angle}
            for layer, layout in enumerate(reader.layouts)
            for head in range(reader.key_head_counts[layer])
            for k, angle in enumerate(layout.angles.tolist())
        ]
    )


def ranks(table: pd.DataFrame, scores: pd.Series) -> pd.Series:
    """The rank of every plane within its key head, 0 for the largest score; of equal ones the faster plane comes first."""
    order = table.assign(score=scores).sort_values("score", ascending=False, kind="stable")
    return order.groupby(["layer", "key_head"]).cumcount().reindex(table.index)


def random_scores(table: pd.DataFrame, seed: int, draw: int) -> pd.Series:
    """Any order is as likely as any other."""
    return pd.Series(np.random.default_rng((seed, draw)).random(len(table)), index=table.index)


def _norms(
    subject: Subject, reader: HeadReader, shown: Mapping[str, Prompts], halving: Halving
) -> pd.DataFrame:
    """Logit norms of the planes at the last query of every prompt, each source counting alike."""
    found = []
    for source, prompts in shown.items():
        for batch in batches(prompts, "last", MOST_TOKENS):
            tables = halving.over(
                batch, lambda part: score_batch(reader, part, Scoring((TAU,), True), subject.tokenizer)
            )
            found.append(tables["prompt_frequencies"].assign(source=source))
    rows = pd.concat(found, ignore_index=True)
    rows = rows[rows["frequency_id"] > 0]
    groups = np.array(reader.head_counts) // np.array(reader.key_head_counts)
    rows["key_head"] = rows["head"] // groups[rows["layer"].to_numpy()]
    rows["norm"] = rows["logit_norm"]
    by_source = rows.groupby(["source", "head", *INDEX])[["norm"]].mean()
    by_head = by_source.groupby(["head", *INDEX]).mean()
    return by_head.groupby(INDEX).max().reset_index()
