"""Input permutation: swap the blocks of the prompt itself and run the whole model again.

A key swap exchanges what one layer attends over and leaves everything else alone. Exchanging the words of the prompt
also changes what every earlier layer made of them, so it answers another question. It is here for comparison, on a
sample of swaps, since each of them costs a forward pass.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import Batch, batches
from rotoscope.maths.attention import attention_weights
from rotoscope.maths.swaps import score_swaps
from rotoscope.progress import progress_bar
from rotoscope.reading import HeadReader, LayerHeads, load
from rotoscope.tasks.prompts import Prompts

AT_ONCE = 8


def input_permutation(
    subject: Any,
    prompts: Prompts,
    *,
    tau: float = 1e-4,
    swaps: int = 64,
    seed: int = 0,
    show_progress: bool | None = None,
) -> pd.DataFrame:
    """Scores of every head by permuting the input, beside those by key swaps on the same swaps.

    One row per (prompt, layer, head). At most `swaps` swaps per prompt are drawn.
    """
    reader = HeadReader(load(subject).model)
    tables = []
    with progress_bar("permuting", len(prompts), show_progress) as bar:
        for batch in batches(prompts, "last", 1):
            tables.append(_compare(reader, batch, tau, swaps, seed))
            bar.advance()
    return pd.concat(tables, ignore_index=True)


def _compare(reader: HeadReader, batch: Batch, tau: float, most: int, seed: int) -> pd.DataFrame:
    query, tokens, number = batch.queries[-1], batch.tokens, batch.first
    blocks = batch.blocks_for(query)
    pairs = list(itertools.combinations(range(len(blocks)), 2))
    chosen = sorted(random.Random(f"{seed} {number}").sample(range(len(pairs)), min(most, len(pairs))))
    before: dict[int, np.ndarray] = {}
    by_key: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def original(layer: LayerHeads) -> None:
        here = layer.at(0)
        real = here.real()
        before[layer.layer] = attention_weights(real, here.sinks)[0].double().cpu().numpy()
        detail = score_swaps(
            here.gather, real, blocks, tau, sink=here.sinks, variants=False, detail=True
        ).detail
        assert detail is not None
        by_key[layer.layer] = tuple(
            x[0][:, chosen].double().cpu().numpy() for x in (detail.positional, detail.symbolic)
        )  # type: ignore[assignment]

    reader.read(tokens, (query,), original)
    after: dict[int, list[np.ndarray]] = {layer: [] for layer in before}

    def permuted(layer: LayerHeads) -> None:
        here = layer.at(0)
        after[layer.layer] += list(attention_weights(here.real(), here.sinks).double().cpu().numpy())

    for start in range(0, len(chosen), AT_ONCE):
        orders = [blocks.exchange(*pairs[k], tokens.shape[1]) for k in chosen[start : start + AT_ONCE]]
        reader.read(tokens[0, torch.tensor(orders)], (query,), permuted)

    rows = []
    for layer, weights in before.items():
        old = np.stack(
            [_two(weights, *(slice(*blocks.spans[i]) for i in pairs[k])) for k in chosen]
        )  # [swaps, 2, heads]
        new = np.stack([_two(w, *blocks.slots(*pairs[k])) for w, k in zip(after[layer], chosen, strict=True)])
        size = np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)
        seen = size > 0
        gap = np.where(seen, np.abs(old[:, 0] - old[:, 1]), -np.inf)
        largest = np.where(seen.any(0), gap.max(0), 0.0)
        weight = np.exp((gap - largest) / tau)
        # A head that sees no swapped block, as behind a window, has no score.
        weight = np.where(seen.any(0), weight / np.maximum(weight.sum(0), 1e-300), np.nan)
        cosine = [(new * side).sum(1) / np.where(seen, size, 1) for side in (old, old[:, ::-1])]
        for head in range(weights.shape[0]):
            w = weight[:, head]
            rows.append(
                {
                    "prompt": number,
                    "layer": layer,
                    "head": head,
                    "positional_score": float(w @ by_key[layer][0][head]),
                    "symbolic_score": float(w @ by_key[layer][1][head]),
                    "input_positional_score": float(w @ cosine[0][:, head]),
                    "input_symbolic_score": float(w @ cosine[1][:, head]),
                }
            )
    return pd.DataFrame(rows)


def _two(weights: np.ndarray, first: slice, second: slice) -> np.ndarray:
    """Mean attention of every head on two slots [2, heads]."""
    return np.stack([weights[:, first].mean(1), weights[:, second].mean(1)])


def agreement(compared: pd.DataFrame) -> pd.DataFrame:
    """Per layer: how far the two ways differ, and how their scores correlate over heads."""
    heads = compared.groupby(["layer", "head"]).mean().reset_index()
    rows = []
    for layer, group in heads.groupby("layer"):
        row: dict[str, object] = {"layer": layer}
        for kind in ("positional", "symbolic"):
            ours, theirs = group[f"{kind}_score"], group[f"input_{kind}_score"]
            row[f"{kind}_difference"] = float((ours - theirs).abs().mean())
            varies = len(group) > 2 and ours.std() > 0 and theirs.std() > 0
            row[f"{kind}_correlation"] = float(np.corrcoef(ours, theirs)[0, 1]) if varies else None
        rows.append(row)
    return pd.DataFrame(rows)
