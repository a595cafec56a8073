"""Everything a head is measured by on one batch of prompts, in one forward pass.

Nothing here waits for the device layer by layer. Layers that are alike are scored together, as many as memory allows;
scores stay on the device until all layers have been there, are fetched once, and become tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import Batch
from rotoscope.analysis.where_attention_goes import WhereAttentionGoes
from rotoscope.errors import NumberError, RunError
from rotoscope.maths.blocks import Blocks, block_spread
from rotoscope.maths.exclusion_principle import Exclusion, exclusion, exclusion_from_factors
from rotoscope.maths.frequency import FrequencyScores, frequency_scores, remainder_scores
from rotoscope.maths.numbers import no_logit
from rotoscope.maths.swaps import score_swaps
from rotoscope.reading import HeadReader, LayerHeads, QueryHeads
from rotoscope.reading.layer import alike, stacked
from rotoscope.results.aggregate import AT_TAU, FREQUENCY_MEASURES, INDEX, MEASURES

Transform = Callable[[LayerHeads, Batch], LayerHeads]
"""Changes a layer's queries or keys before they are scored: nulls, gates."""

TOGETHER = {"cpu": 2**20, "cuda": 2**26}
"""Bytes of keys, and on a CPU of swaps as well, up to which layers are scored together."""


@dataclass(frozen=True)
class Scoring:
    """What is to be measured."""

    taus: tuple[float, ...]
    frequencies: bool | frozenset[tuple[int, int]] = False
    """Score single frequencies: of all heads, of none, or of these (layer, head)."""
    transform: Transform | None = None


@dataclass(frozen=True)
class _Part:
    """Numbers of one layer: at a query, of its heads [batch, heads, taus]; or of their planes [batch * heads, planes, taus]."""

    layer: int
    query: int
    numbers: dict[str, torch.Tensor]
    heads: tuple[int, ...] = ()
    """Whose planes they are."""
    ids: tuple[int, ...] = ()
    angles: tuple[float, ...] = ()


class BatchScores:
    """The scores of one batch, gathered layer by layer."""

    def __init__(
        self, batch: Batch, scoring: Scoring, layers: int, attention: WhereAttentionGoes | None = None
    ) -> None:
        self.batch, self.scoring, self.layers, self.attention = batch, scoring, layers, attention
        self.blocks = [batch.blocks_for(query) for query in batch.queries]
        self.symbols = [batch.symbols_for(query) for query in batch.queries]
        self.waiting: dict[Any, list[LayerHeads]] = {}
        self.held = 0
        self.heads: list[_Part] = []
        self.planes: list[_Part] = []

    def visit(self, layer: LayerHeads) -> None:
        """Take a layer; it is scored now, or soon, together with others."""
        if self.scoring.transform is not None:
            layer = self.scoring.transform(layer, self.batch)
        if self.attention is not None:
            self.attention.entering(layer)
        room = TOGETHER.get(layer.keys.device.type, TOGETHER["cpu"])
        size = layer.keys.nbytes
        if layer.keys.device.type == "cpu":
            size += 4 * self.head_count(layer) * len(self.batch.prompts) * len(self.blocks[-1]) ** 2
        if self.held and self.held + size > room:
            self._score()
        self.waiting.setdefault(alike(layer), []).append(layer)
        self.held += size
        if layer.layer == self.layers - 1:
            self._score()

    @staticmethod
    def head_count(layer: LayerHeads) -> int:
        return layer.query.shape[1] * layer.query.shape[2]

    @torch.no_grad()
    def _score(self) -> None:
        groups, self.waiting, self.held = self.waiting, {}, 0
        for layers in groups.values():
            together = stacked(layers)
            for index in range(len(self.batch.queries)):
                here = together.at(index)
                with _placed(layers, here, self.batch):
                    found = _measure(
                        here, self.blocks[index], self.scoring.taus, self._symbols(index, len(layers))
                    )
                for k, layer in enumerate(layers):
                    numbers = {name: part.unflatten(0, (len(layers), -1))[k] for name, part in found.items()}
                    self.heads.append(_Part(layer.layer, index, numbers))
            if self.attention is not None:
                self.attention.add([layer.layer for layer in layers], here)
            if self.scoring.frequencies:
                with _placed(layers, here, self.batch):
                    self._score_planes(layers, here)

    def _symbols(self, index: int, layers: int) -> torch.Tensor | None:
        found = self.symbols[index]
        return None if found is None else found.repeat(layers, 1, 1)

    def _score_planes(self, layers: list[LayerHeads], here: QueryHeads) -> None:
        """All planes of the heads that are asked for, the un-rotated remainder as frequency id 0."""
        asked, prompts = self.scoring.frequencies, len(self.batch.prompts)
        everyone = tuple(range(here.heads))
        wanted = [
            everyone if asked is True else tuple(h for h in everyone if (layer.layer, h) in asked)  # type: ignore[operator]
            for layer in layers
        ]
        if asked is not True:
            rows = [
                (k * prompts + b) * here.heads + h
                for k, heads in enumerate(wanted)
                for b in range(prompts)
                for h in heads
            ]
            if not rows:
                return
            chosen: Any = here.some(torch.tensor(rows, device=here.keys.device))
        else:
            chosen = here
        sizes = [prompts * len(heads) for heads in wanted]
        layout = layers[0].layout
        made: list[tuple[FrequencyScores, tuple[int, ...], tuple[float, ...]]] = []
        if layout.planes:
            ids, angles = tuple(range(1, layout.planes + 1)), tuple(layout.angles.tolist())
            made.append((frequency_scores(chosen, self.blocks[-1], self.scoring.taus), ids, angles))
        if layout.remainder:
            made.append((remainder_scores(chosen, self.blocks[-1], self.scoring.taus), (0,), (0.0,)))
        for scores, ids, angles in made:
            parts = [getattr(scores, name.removesuffix("_score")).split(sizes) for name in FREQUENCY_MEASURES]
            for k, (layer, heads) in enumerate(zip(layers, wanted, strict=True)):
                numbers = {name: part[k] for name, part in zip(FREQUENCY_MEASURES, parts, strict=True)}
                if heads:
                    self.planes.append(_Part(layer.layer, -1, numbers, heads, ids, angles))

    def tables(self) -> dict[str, pd.DataFrame]:
        """Scores per prompt, per query and per frequency, once all layers were there."""
        queries = len(self.batch.queries)
        if len(self.heads) != self.layers * queries:
            raise RunError(f"{len(self.heads) // queries} of {self.layers} layers were read")
        self.heads.sort(key=lambda part: (part.layer, part.query))
        self.planes.sort(key=lambda part: part.layer)
        fetched = iter(fetch([part.numbers for part in [*self.heads, *self.planes]]))
        rows = self._head_rows([(part, next(fetched)) for part in self.heads])
        if queries == 1:
            per_prompt, per_query = rows.drop(columns="query_position"), rows.iloc[:0]
        else:
            present = [name for name in MEASURES if name in rows]
            per_prompt = rows.groupby(["prompt", "input_id", *INDEX], sort=False)[present].mean().reset_index()
            per_query = rows
        planes = self._plane_rows([(part, next(fetched)) for part in self.planes])
        return {"prompts": per_prompt, "queries": per_query, "prompt_frequencies": planes}

    def _head_rows(self, found: list[tuple[_Part, Numbers]]) -> pd.DataFrame:
        rows = []
        for part, numbers in found:
            query = self.batch.queries[part.query]
            with _named(part.layer, query, self.batch):
                measures = _checked(numbers, len(self.scoring.taus))
            grid = self._grid(tuple(range(measures["positional_score"].shape[1])))
            size = len(grid["tau"])
            about = {
                "prompt": grid.pop("prompt"),
                "input_id": grid.pop("input_id"),
                "query_position": np.full(size, query, dtype=np.int32),
                "layer": np.full(size, part.layer, dtype=np.int16),
                **grid,
            }
            rows.append(about | {name: values.ravel() for name, values in measures.items()})
        return _joined(rows)

    def _plane_rows(self, found: list[tuple[_Part, Numbers]]) -> pd.DataFrame:
        taus, rows = len(self.scoring.taus), []
        for part, numbers in found:
            with _named(part.layer, self.batch.queries[-1], self.batch):
                for name, values in numbers.items():
                    _refuse_infinite(values, name)
            grid = self._grid(part.heads, np.array(part.ids))
            size = len(grid["tau"])
            about = {
                "prompt": grid.pop("prompt"),
                "input_id": grid.pop("input_id"),
                "layer": np.full(size, part.layer, dtype=np.int16),
                **grid,
                "angle": np.tile(np.repeat(part.angles, taus), size // (len(part.ids) * taus)),
            }
            for name, values in numbers.items():
                about[name] = values.ravel() if values.ndim == 3 else np.repeat(values.ravel(), taus)
            rows.append(about)
        return _joined(rows)

    def _grid(self, heads: tuple[int, ...], ids: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Prompt, head, frequency id and tau of every row of a layer."""
        prompts = np.arange(len(self.batch.prompts))
        axes = (prompts, np.array(heads), *(() if ids is None else (ids,)), np.array(self.scoring.taus))
        prompt, head, *plane, tau = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        found = {
            "prompt": (self.batch.first + prompt).astype(np.int32),
            "input_id": np.array(self.batch.inputs, dtype=np.int32)[prompt],
            "head": head.astype(np.int16),
            "tau": tau,
        }
        return found | ({"frequency_id": plane[0].astype(np.int16)} if plane else {})


Numbers = dict[str, np.ndarray]


def _joined(rows: list[Numbers]) -> pd.DataFrame:
    """Columns of several parts, one under the other; NaN where a part has none."""
    names = {name: values.dtype for part in rows for name, values in part.items()}
    return pd.DataFrame(
        {
            name: np.concatenate(
                [part[name] if name in part else np.full(len(part["tau"]), np.nan, kind) for part in rows]
            )
            for name, kind in names.items()
        }
    )


def fetch(parts: list[dict[str, torch.Tensor]]) -> list[Numbers]:
    """Tensors of any shape from whichever device they are on, each device asked once."""
    flat: dict[torch.device, list[torch.Tensor]] = {}
    for part in parts:
        for tensor in part.values():
            flat.setdefault(tensor.device, []).append(tensor.reshape(-1).float())
    whole = {device: torch.cat(tensors).cpu().numpy() for device, tensors in flat.items()}
    used = dict.fromkeys(whole, 0)
    found = []
    for part in parts:
        numbers = {}
        for name, tensor in part.items():
            start = used[tensor.device]
            used[tensor.device] = start + tensor.numel()
            numbers[name] = whole[tensor.device][start : start + tensor.numel()].reshape(tuple(tensor.shape))
        found.append(numbers)
    return found


def score_batch(reader: HeadReader, batch: Batch, scoring: Scoring, tokenizer: Any) -> dict[str, pd.DataFrame]:
    """The tables of one batch: scores per prompt, per query and per frequency, answers, sinks."""
    attention = WhereAttentionGoes(batch)
    scores = BatchScores(batch, scoring, reader.layers, attention)
    logits = reader.read(batch.tokens, batch.queries, scores.visit, keep=batch.asked_at)
    found = {
        **scores.tables(),
        "answers": attention.answers(logits, tokenizer),
        "sinks": attention.sinks(tokenizer),
    }
    return {name: table for name, table in found.items() if len(table)}


@contextmanager
def _named(layer: int | str, query: int, batch: Batch) -> Iterator[None]:
    """A number that is none is said with the layer it was found in."""
    try:
        yield
    except NumberError as problem:
        raise NumberError(
            f"layer {layer}, query at position {query} (indices: prompt, counted from {batch.first}; head; ...): {problem}"
        ) from problem


def _placed(layers: list[LayerHeads], query: QueryHeads, batch: Batch) -> Any:
    """The same while layers are scored; of several, the one is named whose logits are no numbers."""
    if query.keys.device.type != "cpu":
        return _named(layers[0].layer, query.position, batch)
    real = query.real().unflatten(0, (len(layers), -1))
    wrong = no_logit(real).flatten(1).any(1).nonzero()
    return _named(layers[int(wrong[0])].layer if len(wrong) else layers[0].layer, query.position, batch)


def _measure(
    query: QueryHeads, blocks: Blocks, taus: tuple[float, ...], symbols: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Every number that the heads have at a query, on their device."""
    real = query.real()
    scores = score_swaps(query, real, blocks, taus, sink=query.sinks, symbols=symbols)
    spread = _exclusion(query, blocks)
    visible = query.visible.sum().clamp(min=2).log()
    found: dict[str, torch.Tensor] = {}
    for name in AT_TAU:
        plain_name = name.removeprefix("equal_symbol_")
        part = scores if plain_name == name else scores.equal_symbols
        tensor = getattr(part, plain_name.removesuffix("_score"), None)
        if tensor is not None:
            found[name] = tensor
    return found | {
        "entropy": scores.entropy,
        "relative_entropy": scores.entropy / visible,
        "swapped_mass": scores.swapped_mass,
        "block_spread": block_spread(real, blocks),
        "logit_variance": spread.variance,
        "d_pos": spread.d_pos,
        "d_sym": spread.d_sym,
        SWAPS: scores.swaps,
        HIGHEST: scores.highest.expand(scores.swaps.shape),
    }


SWAPS, HIGHEST = "swaps", "highest"
"""What is fetched besides the measures: whether a head sees a swap, and whether all logits after swaps are numbers."""


def _checked(numbers: Numbers, taus: int) -> Numbers:
    """Measures [batch, heads, taus]: all of them numbers, NaN only where a head sees no swap."""
    if np.isnan(numbers[HIGHEST]).any() or np.isposinf(numbers[HIGHEST]).any():
        raise NumberError("a logit after a swap is not a finite number; no score is given")
    missing = (numbers[SWAPS] == 0)[..., None]
    found: Numbers = {}
    for name, values in numbers.items():
        if name in (SWAPS, HIGHEST):
            continue
        if name.startswith("equal_symbol_"):  # NaN where no such swap is seen
            found[name] = values
            continue
        _refuse_infinite(values, name)
        if name in AT_TAU:
            found[name] = np.where(missing, np.float32(np.nan), values)
        else:
            found[name] = np.repeat(values[..., None], taus, axis=-1)
    return found


def _refuse_infinite(values: np.ndarray, name: str) -> None:
    if not np.isfinite(values).all():
        raise NumberError(f"{name} is not a finite number; no score is given")


def _exclusion(query: QueryHeads, blocks: Blocks) -> Exclusion:
    """Variance, D_pos and D_sym over the visible positions that take part in swaps."""
    if query.softcap is None:
        return exclusion_from_factors(query, blocks)
    positions = blocks.on(query.keys.device).positions
    if query.hides:
        positions = positions[query.visible[positions]]
    if len(positions):
        return exclusion(query.gather(positions[None], positions[None])[:, :, 0])
    nothing = torch.zeros(query.keys.shape[0], query.heads, device=query.keys.device)
    return Exclusion(nothing, nothing, nothing)
