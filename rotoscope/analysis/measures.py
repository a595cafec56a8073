"""Everything a head is measured by on one batch of prompts, in one forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import Batch
from rotoscope.errors import NumberError, RunError
from rotoscope.maths.blocks import Blocks
from rotoscope.maths.exclusion import Exclusion, exclusion, exclusion_from_factors
from rotoscope.maths.swaps import score_swaps
from rotoscope.reading import HeadReader, LayerHeads, QueryHeads
from rotoscope.results.aggregate import INDEX, MEASURES

__all__ = ["score_batch"]

Measures = dict[str, np.ndarray]
"""Name of a measure -> [batch, heads, taus]."""


def score_batch(
    reader: HeadReader, batch: Batch, taus: tuple[float, ...], tokenizer: Any
) -> dict[str, pd.DataFrame]:
    """The tables of one batch: `prompts`, `queries` (when there are several) and `answers`."""
    tables: list[pd.DataFrame] = []
    blocks = [batch.blocks_for(query) for query in batch.queries]

    def visit(layer: LayerHeads) -> None:
        for index, query in enumerate(batch.queries):
            found = _measure(layer.at(index), blocks[index], taus)
            tables.append(_rows(batch, layer.layer, query, found, taus))

    logits = reader.read(batch.tokens, batch.queries, visit, keep=batch.asked_at)
    if len(tables) != reader.layers * len(batch.queries):
        raise RunError(f"{len(tables) // len(batch.queries)} of {reader.layers} layers were read")
    rows = pd.concat(tables, ignore_index=True)
    if len(batch.queries) == 1:
        per_prompt, per_query = rows.drop(columns="query_position"), rows.iloc[:0]
    else:
        present = [name for name in MEASURES if name in rows]
        per_prompt = rows.groupby(["prompt", *INDEX], sort=False)[present].mean().reset_index()
        per_query = rows
    return {"prompts": per_prompt, "queries": per_query, "answers": _answers(batch, logits, tokenizer)}


def _measure(query: QueryHeads, blocks: Blocks, taus: tuple[float, ...]) -> Measures:
    scores = score_swaps(query.gather, query.real(), blocks, taus, sink=query.sinks)
    spread = _exclusion(query, blocks)
    visible = query.visible.sum().clamp(min=2).log()
    at_tau = {
        "positional_score": scores.positional,
        "symbolic_score": scores.symbolic,
        "renormalised_positional_score": scores.renormalised_positional,
        "renormalised_symbolic_score": scores.renormalised_symbolic,
        "centred_positional_score": scores.centred_positional,
        "centred_symbolic_score": scores.centred_symbolic,
        "effective_swaps": scores.effective_swaps,
        "renormalised_effective_swaps": scores.renormalised_effective_swaps,
    }
    plain = {
        "entropy": scores.entropy,
        "relative_entropy": scores.entropy / visible,
        "swapped_mass": scores.swapped_mass,
        "logit_variance": spread.variance,
        "d_pos": spread.d_pos,
        "d_sym": spread.d_sym,
    }
    missing = scores.missing.cpu().numpy()[..., None]
    found: Measures = {}
    for name, tensor in at_tau.items():
        if tensor is not None:
            found[name] = np.where(missing, np.nan, _finite(tensor, name, query))
    for name, tensor in plain.items():
        found[name] = np.repeat(_finite(tensor, name, query)[..., None], len(taus), axis=-1)
    return found


def _finite(tensor: torch.Tensor, name: str, query: QueryHeads) -> np.ndarray:
    if not bool(tensor.isfinite().all()):
        raise NumberError(f"layer {query.heads.layer}: {name} is not a finite number; no score is given")
    array: np.ndarray = tensor.float().cpu().numpy()
    return array


def _exclusion(query: QueryHeads, blocks: Blocks) -> Exclusion:
    """Variance, D_pos and D_sym over the visible positions that take part in swaps."""
    positions = torch.tensor(blocks.positions, device=query.keys.device)
    positions = positions[query.visible[positions]]
    if query.heads.softcap is None and len(positions):
        seen = query.seen[:, :, positions].movedim(3, 2)  # [batch, key_heads, group, keys, d]
        spread = exclusion_from_factors(seen, query.keys[:, :, None, positions])
        return Exclusion(*(part.flatten(1, 2) for part in (spread.variance, spread.d_pos, spread.d_sym)))
    if len(positions):
        return exclusion(query.gather(positions[None], positions[None])[:, :, 0])
    nothing = torch.zeros(query.keys.shape[0], query.seen.shape[1] * query.seen.shape[3])
    return Exclusion(nothing, nothing, nothing)


def _rows(batch: Batch, layer: int, query: int, found: Measures, taus: tuple[float, ...]) -> pd.DataFrame:
    prompts, heads, _ = next(iter(found.values())).shape
    prompt, head, tau = np.meshgrid(
        batch.first + np.arange(prompts), np.arange(heads), np.array(taus), indexing="ij"
    )
    columns: dict[str, Any] = {
        "prompt": prompt.ravel().astype(np.int32),
        "query_position": np.full(prompt.size, query, dtype=np.int32),
        "layer": np.full(prompt.size, layer, dtype=np.int16),
        "head": head.ravel().astype(np.int16),
        "tau": tau.ravel(),
    }
    return pd.DataFrame(columns | {name: values.ravel() for name, values in found.items()})


def _answers(batch: Batch, logits: torch.Tensor, tokenizer: Any) -> pd.DataFrame:
    """What the model answered where the task expects something."""
    rows = []
    chances = logits.float().log_softmax(-1)
    for k, prompt in enumerate(batch.prompts):
        for q, position in enumerate(batch.asked_at):
            expected = prompt.answers[q]
            if expected is None:
                continue
            predicted = int(logits[k, q].argmax())
            rows.append(
                {
                    "prompt": batch.first + k,
                    "query_position": position,
                    "expected": expected,
                    "predicted": predicted,
                    "expected_text": tokenizer.decode([expected]) if tokenizer else None,
                    "predicted_text": tokenizer.decode([predicted]) if tokenizer else None,
                    "correct": predicted == expected,
                    "log_likelihood": float(chances[k, q, expected]),
                    "asked_block": prompt.asked,
                }
            )
    return pd.DataFrame(rows)
