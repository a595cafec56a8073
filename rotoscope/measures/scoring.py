"""Everything a head is measured by on one batch of prompts, in one forward pass.

Nothing here waits for the device layer by layer. Layers that are alike are scored together, as many as memory allows;
scores stay on the device until all layers have been there, are fetched once, and become tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.errors import NumberError, RunError
from rotoscope.measures.attention import WhereAttentionGoes
from rotoscope.measures.batches import Batch
from rotoscope.models.layer import LayerHeads, LayerReading, Layout, alike, stacked
from rotoscope.models.reader import HeadReader
from rotoscope.scores.attention import no_logit
from rotoscope.scores.blocks import Blocks, block_spread
from rotoscope.scores.exclusion_principle import Exclusion, Taken, exclusion_from_factors, exclusion_in_parts
from rotoscope.scores.frequency_scores import frequency_scores, remainder_scores
from rotoscope.scores.swaps import score_swaps
from rotoscope.stats.aggregate import AT_TAU, FREQUENCY_MEASURES, INDEX, MEASURES

Transform = Callable[[LayerReading, Batch], LayerReading]
"""Changes a layer's queries or keys before they are scored: nulls, gates."""

TOGETHER = {"cpu": 2**22, "cuda": 3 * 2**25}
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
    """Numbers of some layers: of their heads at a query [layers, batch, heads, taus], or of planes [layers, heads, planes, taus]."""

    layers: tuple[int, ...]
    query: int
    numbers: dict[str, torch.Tensor]
    heads: tuple[int, ...]
    ids: tuple[int, ...] = ()
    """The planes' frequency ids."""
    angles: tuple[float, ...] = ()


@contextmanager
def exact_products() -> Iterator[None]:
    """Products of float32 numbers in float32, also where whoever trains has asked for faster ones."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class BatchScores:
    """The scores of one batch, gathered layer by layer."""

    def __init__(
        self, batch: Batch, scoring: Scoring, layers: int, attention: WhereAttentionGoes | None = None
    ) -> None:
        self.batch, self.scoring, self.layers, self.attention = batch, scoring, layers, attention
        self.blocks = [batch.blocks_for(query) for query in batch.queries]
        self.symbols = [batch.symbols_for(query) for query in batch.queries]
        self.taken: dict[Any, tuple[Any, Taken]] = {}
        self.waiting: dict[Any, list[LayerReading]] = {}
        self.held = 0
        self.heads: list[_Part] = []
        self.planes: list[_Part] = []

    def visit(self, layer: LayerReading) -> None:
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
        self.waiting.setdefault(alike(layer), []).append(replace(layer, residual=None, norms=None))
        self.held += size
        if layer.layer == self.layers - 1:
            self._score()

    @staticmethod
    def head_count(layer: LayerReading) -> int:
        return layer.query.shape[1] * layer.query.shape[2]

    @torch.no_grad()
    @exact_products()
    def _score(self) -> None:
        groups, self.waiting, self.held = list(self.waiting.values()), {}, 0
        while groups:
            layers = groups.pop(0)
            together, which, layout = stacked(layers), tuple(layer.layer for layer in layers), layers[0].layout
            layers.clear()  # their keys are in `together`
            for index in range(len(self.batch.queries)):
                here = together.at(index)
                with _placed(which, here, self.batch):
                    symbols = self._symbols(index, len(which))
                    found = _measure(here, self.blocks[index], self.scoring.taus, symbols)
                    spread = _exclusion(here, self.blocks[index], self._taken(here, index))
                    found |= dict(zip(SPREAD, (spread.variance, spread.d_pos, spread.d_sym), strict=True))
                numbers = {name: part.unflatten(0, (len(which), -1)) for name, part in found.items()}
                self.heads.append(_Part(which, index, numbers, tuple(range(here.heads))))
            if self.attention is not None:
                self.attention.add(which, here)
            if self.scoring.frequencies:
                with _placed(which, here, self.batch):
                    self._score_planes(which, layout, here)

    def _taken(self, here: LayerHeads, index: int) -> Taken:
        """The positions that take part in swaps, for all layers under one rotation and mask."""
        key = (index, id(here.cos), here.visible.data_ptr())
        if key not in self.taken:
            self.taken[key] = (
                (here.cos, here.visible),
                Taken.of(here, self.blocks[index]),
            )  # kept: ids stay their own
        return self.taken[key][1]

    def _symbols(self, index: int, layers: int) -> torch.Tensor | None:
        found = self.symbols[index]
        return None if found is None else found.repeat(layers, 1, 1)

    def _score_planes(self, layers: tuple[int, ...], layout: Layout, here: LayerHeads) -> None:
        """All planes of the heads that are asked for, the un-rotated remainder as frequency id 0."""
        asked, prompts = self.scoring.frequencies, len(self.batch.prompts)
        everyone = tuple(range(here.heads))
        wanted = [
            everyone if asked is True else tuple(h for h in everyone if (layer, h) in asked)  # type: ignore[operator]
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
        made = []
        if layout.planes:
            ids, angles = tuple(range(1, layout.planes + 1)), tuple(layout.angles.tolist())
            made.append((frequency_scores(chosen, self.blocks[-1], self.scoring.taus), ids, angles))
        if layout.remainder:
            made.append((remainder_scores(chosen, self.blocks[-1], self.scoring.taus), (0,), (0.0,)))
        sizes = [prompts * len(heads) for heads in wanted]
        for scores, ids, angles in made:
            numbers = {name: getattr(scores, name.removesuffix("_score")) for name in FREQUENCY_MEASURES}
            parts = {name: tensor.split(sizes) for name, tensor in numbers.items()}
            for k, (layer, heads) in enumerate(zip(layers, wanted, strict=True)):
                one = {name: tensors[k][None] for name, tensors in parts.items()}
                if heads:
                    self.planes.append(_Part((layer,), -1, one, heads, ids, angles))

    def tables(self) -> dict[str, pd.DataFrame]:
        """Scores per prompt, per query and per frequency, once all layers were there."""
        queries = len(self.batch.queries)
        read = sum(len(part.layers) for part in self.heads)
        if read != self.layers * queries:
            raise RunError(f"{read // queries} of {self.layers} layers were read")
        heads, planes = fetch(self.heads), fetch(self.planes)
        rows = self._rows([(part, _checked(numbers, part, self.batch)) for part, numbers in heads])
        if queries == 1:
            per_prompt, per_query = rows.drop(columns="query_position"), rows.iloc[:0]
        else:
            present = [name for name in MEASURES if name in rows]
            per_prompt = rows.groupby(["prompt", "input_id", *INDEX], sort=False)[present].mean().reset_index()
            per_query = rows
        by_plane = self._rows([(part, _all_finite(numbers, part, self.batch)) for part, numbers in planes])
        tables = {
            "prompts": per_prompt,
            "queries": per_query,
            "prompt_frequencies": by_plane.drop(columns="query_position", errors="ignore"),
        }
        return {name: _prompt_by_prompt(table) for name, table in tables.items()}

    def _rows(self, found: list[tuple[_Part, Numbers]]) -> pd.DataFrame:
        """One row for every layer, query, prompt, head, plane and tau, in this order."""
        taus, pieces = len(self.scoring.taus), []
        for part, numbers in found:
            grid = self._grid(part)
            size = len(grid["tau"])
            rows = {name: np.tile(values, len(part.layers)) for name, values in grid.items()}
            rows["layer"] = np.repeat(np.array(part.layers, dtype=np.int16), size)
            for name, values in numbers.items():
                rows[name] = (values if values.size == len(rows["tau"]) else np.repeat(values, taus)).ravel()
            pieces.append(rows)
        if not pieces:
            return pd.DataFrame()
        names = {name: values.dtype for rows in pieces for name, values in rows.items()}
        table = {
            name: np.concatenate(
                [rows[name] if name in rows else np.full(len(rows["tau"]), np.nan, kind) for rows in pieces]
            )
            for name, kind in names.items()
        }
        if len(pieces) > 1:  # the sort is stable: what is equal stays in its order
            order = np.lexsort((table["query_position"], table["layer"]))
            table = {name: values[order] for name, values in table.items()}
        return pd.DataFrame({name: table[name] for name in [*FIRST, *table] if name in table})

    def _grid(self, part: _Part) -> Numbers:
        """Prompt, query, head, plane and tau of every row of a layer."""
        prompts, taus = np.arange(len(self.batch.prompts)), np.array(self.scoring.taus)
        axes = (prompts, np.array(part.heads), *((np.arange(len(part.ids)),) if part.ids else ()), taus)
        prompt, head, *plane, tau = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
        found = {
            "prompt": (self.batch.first + prompt).astype(np.int32),
            "input_id": np.array(self.batch.inputs, dtype=np.int32)[prompt],
            "query_position": np.full(len(tau), self.batch.queries[part.query], dtype=np.int32),
            "head": head.astype(np.int16),
            "tau": tau,
        }
        if plane:
            found["frequency_id"] = np.array(part.ids, dtype=np.int16)[plane[0]]
            found["angle"] = np.array(part.angles)[plane[0]]
        return found


def _prompt_by_prompt(table: pd.DataFrame) -> pd.DataFrame:
    """All rows of one prompt, then those of the next, so that a table does not depend on how prompts were batched."""
    return table.sort_values("prompt", kind="stable", ignore_index=True) if len(table) else table


FIRST = ("prompt", "input_id", "query_position", *INDEX, "frequency_id", "angle")
Numbers = dict[str, np.ndarray]


def fetch(parts: list[_Part]) -> list[tuple[_Part, Numbers]]:
    """All numbers from whichever device they are on, each device asked once; parts that differ in their layers only are
    joined."""
    flat: dict[torch.device, list[torch.Tensor]] = {}
    for part in parts:
        for tensor in part.numbers.values():
            flat.setdefault(tensor.device, []).append(tensor.reshape(-1).float())
    whole = {device: torch.cat(tensors).cpu().numpy() for device, tensors in flat.items()}
    used = dict.fromkeys(whole, 0)
    joined: dict[Any, list[tuple[_Part, Numbers]]] = {}
    for part in parts:
        numbers = {}
        for name, tensor in part.numbers.items():
            start = used[tensor.device]
            used[tensor.device] = start + tensor.numel()
            numbers[name] = whole[tensor.device][start : used[tensor.device]].reshape(tuple(tensor.shape))
        like = (part.query, part.heads, part.ids, part.angles, tuple(numbers))
        joined.setdefault(like, []).append((part, numbers))
    return [
        (
            replace(same[0][0], layers=tuple(layer for part, _ in same for layer in part.layers), numbers={}),
            {name: np.concatenate([numbers[name] for _, numbers in same]) for name in same[0][1]},
        )
        for same in joined.values()
    ]


def score_batch(reader: HeadReader, batch: Batch, scoring: Scoring, tokenizer: Any) -> dict[str, pd.DataFrame]:
    """The tables of one batch: scores per prompt, per query and per frequency, answers, sinks."""
    attention = WhereAttentionGoes(batch)
    scores = BatchScores(batch, scoring, reader.layers, attention)
    logits = reader.read(batch.tokens, batch.queries, scores.visit, keep=batch.asked_at, size=None)
    found = {
        **scores.tables(),
        "answers": attention.answers(logits, tokenizer) if reader.predicts else pd.DataFrame(),
        "sinks": attention.sinks(tokenizer),
    }
    return {name: table for name, table in found.items() if len(table)}


@contextmanager
def _named(layer: int | Callable[[], int], query: int, batch: Batch) -> Iterator[None]:
    """A number that is none is said with the layer it was found in."""
    try:
        yield
    except NumberError as problem:
        where = layer if isinstance(layer, int) else layer()
        raise NumberError(
            f"layer {where}, query at position {query} (indices: prompt, counted from {batch.first}; head; ...): {problem}"
        ) from problem


def _placed(layers: tuple[int, ...], query: LayerHeads, batch: Batch) -> Any:
    """The same while layers are scored together: the one is named whose logits are no numbers."""

    def first_wrong() -> int:
        wrong = no_logit(query.real().unflatten(0, (len(layers), -1))).flatten(1).any(1)
        return layers[int(wrong.to(torch.int8).argmax())]

    return _named(first_wrong, query.position, batch)


def _measure(
    query: LayerHeads, blocks: Blocks, taus: tuple[float, ...], symbols: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Every number that the heads have at a query, on their device."""
    real = query.real()
    scores = score_swaps(query, real, blocks, taus, sink=query.sinks, symbols=symbols)
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
        SWAPS: scores.swaps,
        HIGHEST: scores.highest.expand(scores.swaps.shape),
    }


SPREAD = ("logit_variance", "d_pos", "d_sym")
SWAPS, HIGHEST = "swaps", "highest"
"""What is fetched besides the measures: whether a head sees a swap, and whether all logits after swaps are numbers."""


def _checked(numbers: Numbers, part: _Part, batch: Batch) -> Numbers:
    """All of them numbers, NaN only where a head sees no swap; of equal symbols, where no such swap is seen."""
    highest, swaps = numbers.pop(HIGHEST), numbers.pop(SWAPS)
    numbers = _all_finite({"a logit after a swap": np.maximum(highest, 0)} | numbers, part, batch)
    del numbers["a logit after a swap"]
    missing = (swaps == 0)[..., None]
    return {
        name: np.where(missing, np.float32(np.nan), values) if name in AT_TAU else values
        for name, values in numbers.items()
    }


def _all_finite(numbers: Numbers, part: _Part, batch: Batch) -> Numbers:
    """Refuse what is no number, naming the layer; a head may have no swaps of equal symbols."""
    for name, values in numbers.items():
        if not name.startswith("equal_symbol_") and not np.isfinite(values).all():
            wrong = ~np.isfinite(values).reshape(len(part.layers), -1).all(1)
            with _named(part.layers[int(wrong.argmax())], batch.queries[part.query], batch):
                raise NumberError(f"{name} is not a finite number; no score is given")
    return numbers


def _exclusion(query: LayerHeads, blocks: Blocks, taken: Taken) -> Exclusion:
    """Variance, D_pos and D_sym over the visible positions that take part in swaps."""
    if query.softcap is None:
        return exclusion_from_factors(query, taken)
    positions = blocks.on(query.keys.device).positions
    if query.hides:
        positions = positions[query.visible[positions]]
    if len(positions):
        return exclusion_in_parts(query, positions)
    nothing = torch.zeros(query.keys.shape[0], query.heads, device=query.keys.device)
    return Exclusion(nothing, nothing, nothing)
