"""Gates: silencing chosen rotation planes, or whole heads, while a model runs.

A plane takes part in attention only through the product of its two query and key dimensions, so zeroing the query's
part of it removes exactly that plane from the logits. A whole head is removed by zeroing what it writes. The model's
own attention code does the rest, and the model is left exactly as it was, also after an exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from transformers import AttentionMaskInterface

from rotoscope.models.layer import LayerReading, Layout
from rotoscope.models.reader import HeadReader
from rotoscope.models.sites import (
    RotaryTableSite,
    attending,
    own_attention,
    readable_attention,
    registered,
    replaced,
)
from rotoscope.shapes import Bool, Tensor

Head = tuple[int, int]


@dataclass(frozen=True)
class Gate:
    """What is removed: planes of heads, by (layer, head) and frequency id (0: what does not rotate), and whole heads."""

    planes: Mapping[Head, frozenset[int]] = field(default_factory=dict)
    heads: frozenset[Head] = frozenset()

    def closes(self, layer: int, heads: int, layout: Layout) -> Bool[Tensor, "heads d"] | None:
        """Which query dimensions of a layer are zeroed; None if none are."""
        closed = torch.zeros(heads, len(layout.order), dtype=torch.bool)
        for head in range(heads):
            for plane in self.planes.get((layer, head), ()):
                if plane == 0:
                    closed[head, layout.order[2 * layout.planes :]] = True
                elif plane <= layout.planes:
                    closed[head, layout.order[2 * plane - 2 : 2 * plane]] = True
        return closed if bool(closed.any()) else None

    def silent(self, layer: int) -> list[int]:
        """Heads of a layer that write nothing."""
        return sorted(head for at, head in self.heads if at == layer)


@dataclass(frozen=True)
class _Closed:
    """A gate on one module."""

    dimensions: Tensor | None
    heads: list[int]

    def query(self, query: Tensor) -> Tensor:
        if self.dimensions is None:
            return query
        return query.masked_fill(self.dimensions.to(query.device)[None, :, None, :], 0.0)


@contextmanager
def gated(reader: HeadReader, gate: Gate) -> Iterator[None]:
    """A context in which the model runs with a gate closed: `with gated(reader, gate): model(tokens)`.

    Gates may be nested, on one model or on several: inside, everything closed by any of them is closed.
    """
    model = reader.model
    closed: dict[int, _Closed] = {}
    with readable_attention(model), ExitStack() as stack:
        for site in reader.sites:
            dimensions = gate.closes(site.layer, reader.head_counts[site.layer], reader.layouts[site.layer])
            one = _Closed(dimensions, gate.silent(site.layer))
            if one.dimensions is None and not one.heads:
                continue
            if isinstance(site, RotaryTableSite):
                attend = partial(_attend_from_table, site.module._attn, one)
                stack.enter_context(replaced(site.module, "_attn", attend))
            else:
                closed[id(site.module)] = one
        if closed:
            mask = AttentionMaskInterface._global_mapping[model.config._attn_implementation]
            name = stack.enter_context(registered(partial(_attend, closed, own_attention(model)), mask))
            stack.enter_context(attending(model, name))
        yield


def _attend(
    closed: Mapping[int, _Closed], inner: Any, module: Any, query: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Any]:
    """The module's own attention, with the gate before and behind it."""
    gate = closed.get(id(module))
    if gate is None:
        return inner(module, query, *args, **kwargs)
    output, weights = inner(module, gate.query(query), *args, **kwargs)
    if gate.heads:
        output = output.clone()
        output[:, :, gate.heads] = 0.0  # [batch, n, heads, d]
    return output, weights


def _attend_from_table(
    inner: Any, closed: _Closed, query: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Any]:
    """GPT-J and CodeGen attend in a method of their own; heads are axis 1 of what it returns."""
    output, weights = inner(closed.query(query), *args, **kwargs)
    if closed.heads:
        output = output.clone()
        output[:, closed.heads] = 0.0
    return output, weights


def silence(layer: LayerReading, gate: Gate) -> LayerReading:
    """The same gate on heads that have been read: for scoring a gated model."""
    key_heads, group = layer.query.shape[1:3]
    closed = gate.closes(layer.layer, key_heads * group, layer.layout)
    if closed is None:
        return layer
    arranged = closed[:, layer.layout.order].to(layer.query.device).unflatten(0, (key_heads, group))
    return replace(layer, query=layer.query.masked_fill(arranged[None, :, :, None, :], 0.0))
