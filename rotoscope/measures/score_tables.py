"""From numbers on devices to tables: fetched once, checked, and laid out one row per prompt, head and tau."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.errors import NumberError
from rotoscope.measures.batches import Batch
from rotoscope.measures.built_in import HIGHEST, SWAPS
from rotoscope.runs.result import Tables
from rotoscope.stats.aggregate import AT_TAU, INDEX, measure_columns

FIRST = ("prompt", "input_id", "query_position", *INDEX, "frequency_id", "angle")
Numbers = dict[str, np.ndarray]


@dataclass(frozen=True)
class ScorePart:
    """Numbers of some layers: of their heads at a query [layers, batch, heads, taus], or of planes [layers, heads, planes, taus]."""

    layers: tuple[int, ...]
    query: int
    numbers: dict[str, torch.Tensor]
    heads: tuple[int, ...]
    ids: tuple[int, ...] = ()
    """The planes' frequency ids."""
    angles: tuple[float, ...] = ()


def score_tables(
    batch: Batch,
    taus: tuple[float, ...],
    heads: list[ScorePart],
    planes: list[ScorePart],
    owners: dict[str, str],
) -> Tables:
    """Scores per prompt, per query where there are several, and per frequency; `owners` names a user's measure by column."""
    scored = [(part, _checked(numbers, part, batch, owners)) for part, numbers in fetch(heads)]
    rows = _rows(batch, taus, scored)
    by_plane = _rows(
        batch, taus, [(part, _all_finite(numbers, part, batch)) for part, numbers in fetch(planes)]
    )
    if len(batch.queries) == 1:
        per_prompt, per_query = rows.drop(columns="query_position"), rows.iloc[:0]
    else:
        groups = rows.groupby(["prompt", "input_id", *INDEX], sort=False)
        per_prompt, per_query = groups[measure_columns(rows)].mean().reset_index(), rows
    tables = {
        "prompts": per_prompt,
        "queries": per_query,
        "prompt_frequencies": by_plane.drop(columns="query_position", errors="ignore"),
    }
    return {name: _prompt_by_prompt(table) for name, table in tables.items()}


def _prompt_by_prompt(table: pd.DataFrame) -> pd.DataFrame:
    """All rows of one prompt, then those of the next, so that a table does not depend on how prompts were batched."""
    return table.sort_values("prompt", kind="stable", ignore_index=True) if len(table) else table


def fetch(parts: list[ScorePart]) -> list[tuple[ScorePart, Numbers]]:
    """All numbers from whichever device they are on, each device asked once; parts that differ in their layers only are
    joined."""
    flat: dict[torch.device, list[torch.Tensor]] = {}
    for part in parts:
        for tensor in part.numbers.values():
            flat.setdefault(tensor.device, []).append(tensor.reshape(-1).float())
    fetched = {device: torch.cat(tensors).cpu().numpy() for device, tensors in flat.items()}
    used = dict.fromkeys(fetched, 0)
    joined: dict[Any, list[tuple[ScorePart, Numbers]]] = {}
    for part in parts:
        numbers = {}
        for name, tensor in part.numbers.items():
            start = used[tensor.device]
            used[tensor.device] = start + tensor.numel()
            numbers[name] = fetched[tensor.device][start : used[tensor.device]].reshape(tuple(tensor.shape))
        like = (part.query, part.heads, part.ids, part.angles, tuple(numbers))
        joined.setdefault(like, []).append((part, numbers))
    return [
        (
            replace(same[0][0], layers=tuple(layer for part, _ in same for layer in part.layers), numbers={}),
            {name: np.concatenate([numbers[name] for _, numbers in same]) for name in same[0][1]},
        )
        for same in joined.values()
    ]


def _rows(batch: Batch, taus: tuple[float, ...], parts: list[tuple[ScorePart, Numbers]]) -> pd.DataFrame:
    """One row for every layer, query, prompt, head, plane and tau, in this order."""
    pieces = []
    for part, numbers in parts:
        grid = _grid(batch, taus, part)
        size = len(grid["tau"])
        rows = {name: np.tile(values, len(part.layers)) for name, values in grid.items()}
        rows["layer"] = np.repeat(np.array(part.layers, dtype=np.int16), size)
        for name, values in numbers.items():
            rows[name] = (values if values.size == len(rows["tau"]) else np.repeat(values, len(taus))).ravel()
        pieces.append(rows)
    if not pieces:
        return pd.DataFrame()
    kinds = {name: values.dtype for rows in pieces for name, values in rows.items()}
    table = {
        name: np.concatenate(
            [rows[name] if name in rows else np.full(len(rows["tau"]), np.nan, kind) for rows in pieces]
        )
        for name, kind in kinds.items()
    }
    if len(pieces) > 1:  # the sort is stable: what is equal stays in its order
        order = np.lexsort((table["query_position"], table["layer"]))
        table = {name: values[order] for name, values in table.items()}
    return pd.DataFrame({name: table[name] for name in [*FIRST, *table] if name in table})


def _grid(batch: Batch, taus: tuple[float, ...], part: ScorePart) -> Numbers:
    """Prompt, query, head, plane and tau of every row of a layer."""
    planes = (np.arange(len(part.ids)),) if part.ids else ()
    axes = (np.arange(len(batch.prompts)), np.array(part.heads), *planes, np.array(taus))
    prompt, head, *plane, tau = (axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))
    grid = {
        "prompt": (batch.first + prompt).astype(np.int32),
        "input_id": np.array(batch.inputs, dtype=np.int32)[prompt],
        "query_position": np.full(len(tau), batch.queries[part.query], dtype=np.int32),
        "head": head.astype(np.int16),
        "tau": tau,
    }
    if plane:
        grid["frequency_id"] = np.array(part.ids, dtype=np.int16)[plane[0]]
        grid["angle"] = np.array(part.angles)[plane[0]]
    return grid


@contextmanager
def name_layer(layer: int | Callable[[], int], query: int, batch: Batch) -> Iterator[None]:
    """Raise NumberError naming the layer of the first NaN or infinity."""
    try:
        yield
    except NumberError as problem:
        number = layer if isinstance(layer, int) else layer()
        raise NumberError(
            f"layer {number}, query at position {query} (indices: prompt, counted from {batch.first}; head; ...): {problem}"
        ) from problem


def _checked(numbers: Numbers, part: ScorePart, batch: Batch, owners: dict[str, str]) -> Numbers:
    """All of them numbers, NaN only where a head sees no swap; of equal symbols, where no such swap is seen."""
    highest, swaps = numbers.pop(HIGHEST), numbers.pop(SWAPS)
    named = {f"measure '{owners[name]}': {name}" if name in owners else name: numbers[name] for name in numbers}
    _all_finite({"a logit after a swap": np.maximum(highest, 0)} | named, part, batch)
    missing = (swaps == 0)[..., None]
    return {
        name: np.where(missing, np.float32(np.nan), values) if name in AT_TAU else values
        for name, values in numbers.items()
    }


def _all_finite(numbers: Numbers, part: ScorePart, batch: Batch) -> Numbers:
    """Refuse what is no number, naming the layer; a head may have no swaps of equal symbols."""
    for name, values in numbers.items():
        if not name.startswith("equal_symbol_") and not np.isfinite(values).all():
            wrong = ~np.isfinite(values).reshape(len(part.layers), -1).all(1)
            with name_layer(part.layers[int(wrong.argmax())], batch.queries[part.query], batch):
                raise NumberError(f"{name} is not a finite number; no score is given")
    return numbers
