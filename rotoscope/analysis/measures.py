"""Everything a head is measured by on one batch of prompts, in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import Batch
from rotoscope.errors import NumberError, RunError
from rotoscope.maths.attention import attention_weights
from rotoscope.maths.blocks import Blocks, block_spread
from rotoscope.maths.exclusion_principle import Exclusion, exclusion, exclusion_from_factors
from rotoscope.maths.frequency import frequency_scores
from rotoscope.maths.swaps import score_swaps
from rotoscope.reading import HeadReader, LayerHeads, QueryHeads
from rotoscope.results.aggregate import AT_TAU, FREQUENCY_MEASURES, INDEX, MEASURES

Measures = dict[str, np.ndarray]
"""Name of a measure -> [batch, heads, taus]."""

Transform = Callable[[LayerHeads, Batch], LayerHeads]
"""Changes a layer's queries or keys before they are scored: nulls, gates."""

SINK_MASS = 0.1
SINK_SHARE = 4.0  # times an even share, which matters in short prompts
SINK_LAYERS = 0.25
SINK_NORM = 10.0
NEAR_QUERY = 4


@dataclass(frozen=True)
class Scoring:
    """What is to be measured."""

    taus: tuple[float, ...]
    frequencies: bool | frozenset[tuple[int, int]] = False
    """Score single frequencies: of all heads, of none, or of these (layer, head)."""
    transform: Transform | None = None


class BatchScores:
    """The scores of one batch, gathered layer by layer."""

    def __init__(self, batch: Batch, scoring: Scoring) -> None:
        self.batch, self.scoring = batch, scoring
        self.blocks = [batch.blocks_for(query) for query in batch.queries]
        self.symbols = [batch.symbols_for(query) for query in batch.queries]
        self.rows: list[pd.DataFrame] = []
        self.planes: list[pd.DataFrame] = []

    def visit(self, layer: LayerHeads) -> QueryHeads:
        """Score a layer; gives back its heads at the last query, as they were scored."""
        batch, scoring = self.batch, self.scoring
        if scoring.transform is not None:
            layer = scoring.transform(layer, batch)
        for index, query in enumerate(batch.queries):
            here = layer.at(index)
            with _placed(here, batch):
                found = _measure(here, self.blocks[index], scoring.taus, self.symbols[index])
            self.rows.append(_rows(batch, layer.layer, query, found, scoring.taus))
        if scoring.frequencies:
            with _placed(here, batch):
                self.planes.append(_frequencies(here, self.blocks[-1], batch, scoring))
        return here

    def tables(self, layers: int) -> dict[str, pd.DataFrame]:
        """Scores per prompt, per query and per frequency, once all layers were there."""
        queries = len(self.batch.queries)
        if len(self.rows) != layers * queries:
            raise RunError(f"{len(self.rows) // queries} of {layers} layers were read")
        rows = pd.concat(self.rows, ignore_index=True)
        if queries == 1:
            per_prompt, per_query = rows.drop(columns="query_position"), rows.iloc[:0]
        else:
            present = [name for name in MEASURES if name in rows]
            per_prompt = rows.groupby(["prompt", "input_id", *INDEX], sort=False)[present].mean().reset_index()
            per_query = rows
        planes = pd.concat(self.planes, ignore_index=True) if self.planes else pd.DataFrame()
        return {"prompts": per_prompt, "queries": per_query, "prompt_frequencies": planes}


def score_batch(reader: HeadReader, batch: Batch, scoring: Scoring, tokenizer: Any) -> dict[str, pd.DataFrame]:
    """The tables of one batch: scores per prompt, per query and per frequency, answers, sinks."""
    scores, attention = BatchScores(batch, scoring), _AttentionByPosition(batch)
    logits = reader.read(
        batch.tokens, batch.queries, lambda layer: attention.add(scores.visit(layer)), keep=batch.asked_at
    )
    found = {
        **scores.tables(reader.layers),
        "answers": _answers(batch, logits, tokenizer, attention.on_answer()),
        "sinks": attention.sinks(tokenizer),
    }
    return {name: table for name, table in found.items() if len(table)}


@contextmanager
def _placed(query: QueryHeads, batch: Batch) -> Iterator[None]:
    """A number that is none is said with the layer it was found in."""
    try:
        yield
    except NumberError as problem:
        raise NumberError(
            f"layer {query.heads.layer}, query at position {query.position} (indices: prompt, counted from {batch.first}; "
            f"head; ...): {problem}"
        ) from problem


class _AttentionByPosition:
    """Where the last query's attention goes, over all heads: sinks, and the block that holds the answer."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.weights: list[torch.Tensor] = []  # per layer: mean over heads [batch, n]
        self.norms: list[torch.Tensor] = []
        self.answer: list[torch.Tensor] = []  # per layer: [batch, heads]

    def add(self, last: QueryHeads) -> None:
        weights = attention_weights(last.real(), last.sinks)
        self.weights.append(weights.mean(1).cpu())
        if last.heads.residual_norm is not None:
            self.norms.append(last.heads.residual_norm[:, : last.position + 1].cpu())
        if self.batch.asked is not None:
            start, stop = self.batch.asked
            self.answer.append(weights[..., start:stop].sum(-1).cpu())

    def on_answer(self) -> list[tuple[float, float]] | None:
        """Per prompt: mean and largest attention of a head on the block that holds the answer."""
        if not self.answer:
            return None
        heads = torch.cat(self.answer, dim=1)
        return [(float(row.mean()), float(row.max())) for row in heads]

    def sinks(self, tokenizer: Any) -> pd.DataFrame:
        """Positions that draw attention whatever they say: by mass, in the mean or in a quarter of the layers, or by an
        outlying residual norm."""
        by_layer = torch.stack(self.weights)  # [layers, batch, n]
        mass, often = by_layer.mean(0), by_layer.quantile(1 - SINK_LAYERS, dim=0)
        much = max(SINK_MASS, SINK_SHARE / mass.shape[1])
        size = torch.zeros_like(mass)
        if self.norms:
            norms = torch.stack(self.norms)  # [layers, batch, n]
            size = (norms / norms.median(-1, keepdim=True).values).median(0).values
        swapped = set(self.batch.blocks_for(self.batch.queries[-1]).positions)
        rows = []
        for k, prompt in enumerate(self.batch.prompts):
            for position in range(mass.shape[1] - 1):  # the query's own position is no sink
                near = mass.shape[1] - 1 - position <= NEAR_QUERY  # drawn by the query, not by the place
                heavy = max(float(mass[k, position]), float(often[k, position])) >= much and not near
                large = float(size[k, position]) >= SINK_NORM
                if heavy or large:
                    rows.append(
                        {
                            "prompt": self.batch.first + k,
                            "position": position,
                            "token_text": tokenizer.decode([prompt.tokens[position]]) if tokenizer else None,
                            "attention_mass": float(mass[k, position]),
                            "largest_layer_mass": float(by_layer[:, k, position].max()),
                            "residual_norm_ratio": float(size[k, position]),
                            "found_by": "mass and norm" if heavy and large else "mass" if heavy else "norm",
                            "in_block": position in swapped,
                        }
                    )
        return pd.DataFrame(rows)


def _frequencies(query: QueryHeads, blocks: Blocks, batch: Batch, scoring: Scoring) -> pd.DataFrame:
    """Scores of every plane of the layer's heads, the un-rotated remainder as frequency id 0."""
    layer, layout = query.heads.layer, query.heads.layout
    heads = query.seen.shape[1] * query.seen.shape[3]
    wanted = list(range(heads))
    if not isinstance(scoring.frequencies, bool):
        wanted = [head for head in wanted if (layer, head) in scoring.frequencies]
    if not wanted:
        return pd.DataFrame()
    picked = torch.tensor([b * heads + h for b in range(len(batch.prompts)) for h in wanted])
    picked = picked.to(query.keys.device)
    tables = []
    for seen, keys in query.planes():
        rotating = seen.shape[-1] == 2 and seen.shape[-2] == layout.planes and layout.planes > 0
        ids = np.arange(1, layout.planes + 1) if rotating else np.zeros(1, dtype=int)
        angles = layout.angles.numpy() if rotating else np.zeros(1)
        scores = frequency_scores(seen[picked], keys[picked], blocks, scoring.taus, query.visible)
        taus = len(scoring.taus)
        prompt, head, plane, tau = np.meshgrid(
            batch.first + np.arange(len(batch.prompts)), wanted, ids, np.array(scoring.taus), indexing="ij"
        )
        columns: dict[str, Any] = {
            "prompt": prompt.ravel().astype(np.int32),
            "input_id": _input_ids(batch, prompt),
            "layer": np.full(prompt.size, layer, dtype=np.int16),
            "head": head.ravel().astype(np.int16),
            "tau": tau.ravel(),
            "frequency_id": plane.ravel().astype(np.int16),
            "angle": np.tile(np.repeat(angles, taus), prompt.size // (len(ids) * taus)),
        }
        for name in FREQUENCY_MEASURES:
            values = _finite(getattr(scores, name.removesuffix("_score")), name)
            columns[name] = values.ravel() if values.ndim == 3 else np.repeat(values.ravel(), taus)
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def _input_ids(batch: Batch, prompt: np.ndarray) -> np.ndarray:
    ids: np.ndarray = np.array(batch.inputs, dtype=np.int32)[prompt.ravel() - batch.first]
    return ids


def _measure(
    query: QueryHeads, blocks: Blocks, taus: tuple[float, ...], symbols: torch.Tensor | None
) -> Measures:
    real = query.real()
    scores = score_swaps(query.gather, real, blocks, taus, sink=query.sinks, symbols=symbols)
    spread = _exclusion(query, blocks)
    visible = query.visible.sum().clamp(min=2).log()
    plain = {
        "entropy": scores.entropy,
        "relative_entropy": scores.entropy / visible,
        "swapped_mass": scores.swapped_mass,
        "block_spread": block_spread(real, blocks),
        "logit_variance": spread.variance,
        "d_pos": spread.d_pos,
        "d_sym": spread.d_sym,
    }
    missing = scores.missing.cpu().numpy()[..., None]
    found: Measures = {}
    for name in AT_TAU:
        plain_name = name.removeprefix("equal_symbol_")
        part = scores if plain_name == name else scores.equal_symbols
        tensor = getattr(part, plain_name.removesuffix("_score"), None)
        if tensor is not None and part is scores:
            found[name] = np.where(missing, np.nan, _finite(tensor, name))
        elif tensor is not None:  # NaN where no such swap is seen
            found[name] = tensor.float().cpu().numpy()
    for name, tensor in plain.items():
        found[name] = np.repeat(_finite(tensor, name)[..., None], len(taus), axis=-1)
    return found


def _finite(tensor: torch.Tensor, name: str) -> np.ndarray:
    if not bool(tensor.isfinite().all()):
        raise NumberError(f"{name} is not a finite number; no score is given")
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
        "input_id": _input_ids(batch, prompt),
        "query_position": np.full(prompt.size, query, dtype=np.int32),
        "layer": np.full(prompt.size, layer, dtype=np.int16),
        "head": head.ravel().astype(np.int16),
        "tau": tau.ravel(),
    }
    return pd.DataFrame(columns | {name: values.ravel() for name, values in found.items()})


def _answers(
    batch: Batch, logits: torch.Tensor, tokenizer: Any, on_answer: list[tuple[float, float]] | None
) -> pd.DataFrame:
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
                    "asked_attention": on_answer[k][0] if on_answer is not None else None,
                    "asked_attention_largest": on_answer[k][1] if on_answer is not None else None,
                }
            )
    return pd.DataFrame(rows)
