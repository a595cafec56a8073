"""Everything a head is measured by on one batch of prompts, in one forward pass.

Nothing here waits for the device layer by layer. Layers that are alike are measured together, as many as memory allows;
numbers stay on the device until all layers have been read, are fetched once, and become tables.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch.overrides import TorchFunctionMode

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.measures.batches import Batch
from rotoscope.measures.built_in import BUILT_IN, WhereAttentionGoes
from rotoscope.measures.measure import Measure
from rotoscope.measures.score_tables import ScorePart, name_layer, score_tables
from rotoscope.models.layer import LayerHeads, LayerReading, Layout, alike, stacked
from rotoscope.models.reader import HeadReader
from rotoscope.scores.attention import no_logit
from rotoscope.scores.exclusion_principle import Taken
from rotoscope.scores.frequency_scores import frequency_scores, remainder_scores
from rotoscope.shapes import Tensor
from rotoscope.stats.aggregate import FREQUENCY_MEASURES, MEASURES, ROW_NAMES

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
    measures: tuple[Measure, ...] = ()
    """A user's own measures, beside the built-in ones."""


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
        self.tokens = batch.tokens if scoring.measures else None
        self.blocks = [batch.blocks_for(query) for query in batch.queries]
        self.symbols = [batch.symbols_for(query) for query in batch.queries]
        self.taken: dict[Any, tuple[Any, Taken]] = {}
        self.waiting: dict[Any, list[LayerReading]] = {}
        self.held = 0
        self.heads: list[ScorePart] = []
        self.planes: list[ScorePart] = []
        self.owners: dict[str, str] = {}
        """Of every column of a user's measure the measure's name."""

    def visit(self, layer: LayerReading) -> None:
        """Take a layer; it is scored now, or soon, together with others."""
        if self.scoring.transform is not None:
            layer = self.scoring.transform(layer, self.batch)
        if self.attention is not None:
            self.attention.entering(layer)
        room = TOGETHER.get(layer.keys.device.type, TOGETHER["cpu"])
        size = layer.keys.nbytes
        if layer.keys.device.type == "cpu":
            heads = layer.query.shape[1] * layer.query.shape[2]
            size += 4 * heads * len(self.batch.prompts) * len(self.blocks[-1]) ** 2
        if self.held and self.held + size > room:
            self._score()
        self.waiting.setdefault(alike(layer), []).append(replace(layer, residual=None, norms=None))
        self.held += size
        if layer.layer == self.layers - 1:
            self._score()

    @torch.no_grad()
    @exact_products()
    def _score(self) -> None:
        groups, self.waiting, self.held = list(self.waiting.values()), {}, 0
        while groups:
            group = groups.pop(0)
            together, layers, layout = stacked(group), tuple(layer.layer for layer in group), group[0].layout
            group.clear()  # their keys are in `together`
            for index in range(len(self.batch.queries)):
                heads = self._heads(together, layers, index)
                with _placed(heads, self.batch):
                    columns = {name: part for built_in in BUILT_IN for name, part in built_in(heads).items()}
                for measure in self.scoring.measures:
                    own = measured(measure, heads, columns)
                    self.owners |= dict.fromkeys(own, measure.name)
                    columns |= own
                numbers = {name: part.unflatten(0, (len(layers), -1)) for name, part in columns.items()}
                self.heads.append(ScorePart(layers, index, numbers, tuple(range(heads.heads))))
            if self.attention is not None:
                self.attention.add(heads)
            if self.scoring.frequencies:
                with _placed(heads, self.batch):
                    self._score_planes(layout, heads)

    def _heads(self, together: LayerReading, layers: tuple[int, ...], index: int) -> LayerHeads:
        """The heads of layers at one of the queries, with all that measures are computed from."""
        heads, symbols = together.at(index), self.symbols[index]
        tokens = None if self.tokens is None else self.tokens[:, : heads.position + 1]
        return replace(
            heads,
            layers=layers,
            tokens=None if tokens is None else tokens.to(heads.keys.device).repeat(len(layers), 1),
            blocks=self.blocks[index],
            taus=self.scoring.taus,
            symbols=None if symbols is None else symbols.repeat(len(layers), 1, 1),
            taken=self._swap_positions(heads, index),
        )

    def _swap_positions(self, heads: LayerHeads, index: int) -> Taken:
        """The positions that take part in swaps, for all layers under one rotation and mask."""
        key = (index, id(heads.cos), heads.visible.data_ptr())
        if key not in self.taken:  # tables and mask are held on to, so that their ids stay their own
            self.taken[key] = (heads.cos, heads.visible), Taken.of(heads, self.blocks[index])
        return self.taken[key][1]

    def _score_planes(self, layout: Layout, heads: LayerHeads) -> None:
        """All planes of the chosen heads, the un-rotated remainder as frequency id 0."""
        prompts, chosen = len(self.batch.prompts), self.scoring.frequencies
        numbers = [
            tuple(h for h in range(heads.heads) if chosen is True or (layer, h) in chosen)  # type: ignore[operator]
            for layer in heads.layers
        ]
        factors: Any = heads
        if chosen is not True:
            rows = [
                (k * prompts + b) * heads.heads + h
                for k, own in enumerate(numbers)
                for b in range(prompts)
                for h in own
            ]
            if not rows:
                return
            factors = heads.picked_heads(torch.tensor(rows, device=heads.keys.device))
        parts = []
        if layout.planes:
            ids, angles = tuple(range(1, layout.planes + 1)), tuple(layout.angles.tolist())
            parts.append((frequency_scores(factors, self.blocks[-1], self.scoring.taus), ids, angles))
        if layout.remainder:
            parts.append((remainder_scores(factors, self.blocks[-1], self.scoring.taus), (0,), (0.0,)))
        sizes = [prompts * len(own) for own in numbers]
        for scores, ids, angles in parts:
            tensors = {
                name: getattr(scores, name.removesuffix("_score")).split(sizes) for name in FREQUENCY_MEASURES
            }
            for k, (layer, own) in enumerate(zip(heads.layers, numbers, strict=True)):
                if own:
                    columns = {name: tensor[k][None] for name, tensor in tensors.items()}
                    self.planes.append(ScorePart((layer,), -1, columns, own, ids, angles))

    def tables(self) -> dict[str, pd.DataFrame]:
        """Scores per prompt, per query and per frequency, once all layers were read."""
        queries = len(self.batch.queries)
        read = sum(len(part.layers) for part in self.heads)
        if read != self.layers * queries:
            raise RunError(f"{read // queries} of {self.layers} layers were read")
        return score_tables(self.batch, self.scoring.taus, self.heads, self.planes, self.owners)


def score_batch(reader: HeadReader, batch: Batch, scoring: Scoring, tokenizer: Any) -> dict[str, pd.DataFrame]:
    """The tables of one batch: scores per prompt, per query and per frequency, answers, sinks."""
    attention = WhereAttentionGoes(batch)
    scores = BatchScores(batch, scoring, reader.layers, attention)
    logits = reader.read(batch.tokens, batch.queries, scores.visit, keep=batch.asked_at, size=None)
    tables = {
        **scores.tables(),
        "answers": attention.answers(logits, tokenizer) if reader.predicts else pd.DataFrame(),
        "sinks": attention.sinks(tokenizer),
    }
    return {name: table for name, table in tables.items() if len(table)}


def _placed(heads: LayerHeads, batch: Batch) -> Any:
    """Raise NumberError naming the first layer whose logits are no numbers."""

    def first_wrong() -> int:
        wrong = no_logit(heads.real_logits.unflatten(0, (len(heads.layers), -1))).flatten(1).any(1)
        return heads.layers[int(wrong.to(torch.int8).argmax())]

    return name_layer(first_wrong, heads.position, batch)


# A user's own measure: called once for layers of one shape, and what it returns is looked at before anything is done with it.


WAITS = ("item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "masked_select", "unique", "__bool__", "__int__",
         "__float__", "__index__")  # fmt: skip
"""Functions that wait until a GPU has computed what they were given."""


class _Waiting(TorchFunctionMode):
    """Notes which functions would wait for a GPU, on whatever device they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        by_mask = name == "__getitem__" and any(
            isinstance(index, Tensor) and index.dtype == torch.bool
            for index in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        if name in WAITS or by_mask or (name == "to" and "cpu" in map(str, args[1:])):
            self.called.add("indexing with a mask" if by_mask else f"{name}()")
        return function(*args, **(kwargs or {}))


def measured(measure: Measure, heads: LayerHeads, columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """The columns of a user's measure; what is wrong with them is told by its name. NaN is looked for when all are fetched."""
    waiting = _Waiting()
    try:
        with waiting:
            own = measure(heads)
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:
        raise RotoscopeError(
            f"measure '{measure.name}' failed: {type(problem).__name__}: {problem}"
        ) from problem
    if waiting.called:
        warnings.warn(
            f"measure '{measure.name}' waits for the device in every layer ({', '.join(sorted(waiting.called))}): on a GPU "
            "it is slow; compute with tensors to the end and return them",
            stacklevel=2,
        )
    if not isinstance(own, dict):
        raise RotoscopeError(
            f"measure '{measure.name}' must return a dictionary from column names to tensors, found {type(own).__name__}"
        )
    return {name: _column(measure, name, tensor, heads, columns) for name, tensor in own.items()}


def _column(measure: Measure, name: Any, tensor: Any, heads: LayerHeads, columns: dict[str, Tensor]) -> Tensor:
    shape = (heads.keys.shape[0], heads.heads)
    if not isinstance(name, str) or name in {*columns, *MEASURES, *ROW_NAMES}:
        raise RotoscopeError(
            f"measure '{measure.name}': the column {name!r} exists already; give it another name"
        )
    if not isinstance(tensor, Tensor) or tensor.is_complex():
        kind = str(tensor.dtype) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise RotoscopeError(
            f"measure '{measure.name}': the column '{name}' must be a tensor of real numbers, found {kind}"
        )
    if tuple(tensor.shape) != shape:
        raise RotoscopeError(
            f"measure '{measure.name}': the column '{name}' must have the shape [batch, heads] = {list(shape)}, found "
            f"{list(tensor.shape)}"
        )
    return tensor.float()
