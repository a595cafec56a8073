"""What the planes of every key head are ranked by: a score for each ranking, the larger the earlier a plane is kept.

A key head takes the largest value of its group's query heads. Rankings are within a key head: every one keeps as many planes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import Halving, batches
from rotoscope.analysis.losses import MOST_TOKENS
from rotoscope.analysis.measures import Scoring, score_batch
from rotoscope.analysis.plan.plane_gradients import even_way, stopping_effects
from rotoscope.reading import HeadReader, Subject
from rotoscope.settings import RotationSettings
from rotoscope.tasks.prompts import Prompts

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
