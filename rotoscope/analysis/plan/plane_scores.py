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
from rotoscope.analysis.plan.plane_gradients import Planes, even_way, stopping_effects
from rotoscope.reading import HeadReader, Subject
from rotoscope.settings import RotationSettings
from rotoscope.tasks.prompts import Prompts

TAU = 1e-4
INDEX = ["layer", "key_head", "frequency_id"]
MEASURED = ("positional", "positional_minus_symbolic", "turning_norm", "norm")
"""Rankings by what a plane's logits do by themselves."""
COMBINED = ("effect", "turning_norm")
"""Rankings whose ranks the combined one adds up."""


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
    if rankings & {*MEASURED, "combined"}:
        table = table.merge(_measured(subject, reader, shown, halving), on=INDEX, how="left", validate="1:1")
    ids = table["frequency_id"]
    by_place = {"fastest": -ids.astype(float), "slowest": ids.astype(float), "spread": _spread(table)}
    table = table.assign(**{name: values for name, values in by_place.items() if name in rankings})
    if rankings & {"effect", "combined"}:
        way = list(even_way(reader, wanted.path_points))
        table["effect"] = _column(stopping_effects(subject, reader, shown, way))
    if "effect_rounds" in rankings:
        table["effect_rounds"] = _column(_in_rounds(subject, reader, shown))
    if "combined" in rankings:
        table["combined"] = -sum(ranks(table, table[name]) for name in COMBINED).astype(float)
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


def _measured(
    subject: Subject, reader: HeadReader, shown: Mapping[str, Prompts], halving: Halving
) -> pd.DataFrame:
    """Scores of the planes at the last query of every prompt, each source counting alike."""
    found = []
    for source, prompts in shown.items():
        for batch in batches(prompts, "last", MOST_TOKENS):
            tables = halving.over(
                batch, lambda part: score_batch(reader, part, Scoring((TAU,), True), subject.tokenizer)
            )
            mass = tables["prompts"][["prompt", "layer", "head", "swapped_mass"]]
            planes = tables["prompt_frequencies"].merge(mass, on=["prompt", "layer", "head"], validate="m:1")
            found.append(planes.assign(source=source))
    rows = pd.concat(found, ignore_index=True)
    rows = rows[rows["frequency_id"] > 0]
    groups = np.array(reader.head_counts) // np.array(reader.key_head_counts)
    rows["key_head"] = rows["head"] // groups[rows["layer"].to_numpy()]
    positional, symbolic = rows["positional_score"], rows["symbolic_score"]
    rows["positional"] = positional * rows["swapped_mass"]
    rows["positional_minus_symbolic"] = (positional - symbolic) * rows["swapped_mass"]
    rows["turning_norm"] = (1 - symbolic) * rows["logit_norm"]  # logits of a stopped plane are symbolic
    rows["norm"] = rows["logit_norm"]
    names = list(MEASURED)
    by_source = rows.groupby(["source", "head", *INDEX])[names].mean()
    by_head = by_source.groupby(["head", *INDEX]).mean()
    return by_head.groupby(INDEX).max().reset_index()


def _spread(table: pd.DataFrame) -> pd.Series:
    """Planes evenly spread over the frequencies, however many are kept: each halves the widest gap that is left."""
    orders = {count: _halving_gaps(count) for count in table.groupby(["layer", "key_head"]).size().unique()}
    sizes = table.groupby(["layer", "key_head"])["frequency_id"].transform("size")
    found = [-float(orders[size][k - 1]) for size, k in zip(sizes, table["frequency_id"], strict=True)]
    return pd.Series(found, index=table.index)


def _halving_gaps(count: int) -> list[int]:
    """The turn at which each of so many planes is taken, the first one first."""
    taken = [0]
    while len(taken) < count:
        left = [k for k in range(count) if k not in taken]
        taken.append(max(left, key=lambda k: (min(abs(k - other) for other in taken), -k)))
    return [taken.index(k) for k in range(count)]


def _in_rounds(subject: Subject, reader: HeadReader, shown: Mapping[str, Prompts]) -> Planes:
    """Effects that are estimated again after half of the planes that are left have been stopped, until one is left.

    The number is the round in which a plane goes, and within a round its order by effect.
    """
    counts = [layout.planes for layout in reader.layouts]
    left = [torch.ones(heads, count) for heads, count in zip(reader.key_head_counts, counts, strict=True)]
    scores = [torch.zeros_like(part) for part in left]
    rounds = max(1, int(np.ceil(np.log2(max(counts)))))
    for number in range(rounds):
        effects = stopping_effects(subject, reader, shown, [[0.5 * part for part in left]])
        for layer, effect in enumerate(effects):
            if not counts[layer]:
                continue
            effect = effect.masked_fill(left[layer] == 0, -torch.inf)
            place = effect.argsort(dim=-1, stable=True).argsort(dim=-1)  # 0 for the least effect
            here = left[layer] > 0
            scores[layer] = torch.where(here, number + place / counts[layer], scores[layer])
            keep = max(1, int(np.ceil(counts[layer] / 2 ** (number + 1))))
            left[layer] = (here & (place >= counts[layer] - keep)).float()
    return scores


def _column(planes: Planes) -> np.ndarray:
    return torch.cat([part.flatten() for part in planes]).double().numpy()
