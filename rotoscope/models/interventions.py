"""One hook between a model and its attention: it sees what every module attends with, and decides what is done with it.

A hook gets a module's queries, keys, values and mask on their way to the attention function, and that function. It looks at
them, changes them, or attends several times. The model's own attention code does the rest, and the model is left exactly as
it was, also after an exception. Gates are here; streaming heads (`streaming`) and stopped rotations (`partial_rope`) are
hooks as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from transformers import AttentionMaskInterface

from rotoscope.errors import ModelError
from rotoscope.models.layer import LayerReading, Layout
from rotoscope.models.sites import (
    Projected,
    RotaryTableSite,
    Site,
    attending_by,
    own_attention,
    readable_attention,
    registered,
    replaced,
)
from rotoscope.shapes import Bool, Float, Tensor

OURS = "rotoscope_"
"""The beginning of what transformers calls the attention functions that are put in place here."""


@dataclass(frozen=True, kw_only=True)
class AttentionInput(Projected):
    """What a module is about to attend with."""

    layer: int
    value: Float[Tensor, "batch key_heads n d_value"]
    mask: Any
    nested: bool = False
    """Whether another hook comes before the attention function: it knows heads by their numbers."""


Attend = Callable[[AttentionInput], Float[Tensor, "batch n heads d_value"]]
Hook = Callable[[AttentionInput, Attend], Float[Tensor, "batch n heads d_value"]]
"""Gets what a module attends with, and the attention function; gives what its heads write."""
Change = Callable[[AttentionInput], AttentionInput]


@contextmanager
def intervening(
    model: Any,
    sites: Sequence[Site],
    hooks: Hook | Mapping[int, Hook],
    masks: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """A context in which attention modules attend through a hook, one for all or one by layer.

    They attend as they do now, under masks made by `masks`, or by the function that makes them now. Inside another such
    context the hook comes before those that are there already.
    """
    by_layer = hooks if isinstance(hooks, Mapping) else {site.layer: hooks for site in sites}
    chosen = [site for site in sites if site.layer in by_layer]
    with ExitStack() as stack:
        by_module: dict[int, tuple[int, Hook]] = {}
        for site in chosen:
            if isinstance(site, RotaryTableSite):
                nested = "_attn" in vars(site.module)
                attend = partial(
                    attend_from_table, site.module, site.module._attn, by_layer[site.layer], site.layer, nested
                )
                stack.enter_context(replaced(site.module, "_attn", attend))
            else:
                by_module[id(site.module)] = site.layer, by_layer[site.layer]
        if by_module:
            before = model.config._attn_implementation
            through = partial(
                attend_through,
                lambda module: by_module.get(id(module)),
                own_attention(model),
                before.startswith(OURS),
            )
            name = stack.enter_context(
                registered(through, masks or AttentionMaskInterface._global_mapping[before])
            )
            owners = (model, *(site.module for site in sites))
            for config in {id(owner.config): owner.config for owner in owners}.values():
                stack.enter_context(attending_by(config, name))
        yield


@contextmanager
def changing(model: Any, sites: Sequence[Site], change: Change) -> Iterator[None]:
    """A context in which `change` sees what every module attends with, and gives what it attends with instead."""
    with intervening(model, sites, lambda inputs, attend: attend(change(inputs))):
        yield


def attend_through(
    find: Callable[[Any], tuple[int, Hook] | None], inner: Any, nested: bool,
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **options: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """An attention function of transformers' interface: the module's own, through its hook where it has one."""
    entry = find(module)
    if entry is None:
        return inner(module, query, key, value, mask, *args, **options)  # type: ignore[no-any-return]
    width, scaling = query.shape[-1], options.get("scaling")
    inputs = AttentionInput(
        query, key, width**-0.5 if scaling is None else float(scaling), options.get("softcap"), options.get("s_aux"),
        layer=entry[0], value=value, mask=mask, nested=nested,
    )  # fmt: skip
    weights: list[Any] = []

    def attend(changed: AttentionInput) -> Tensor:
        own = options if changed.query.shape[-1] == width else {**options, "scaling": changed.scaling}
        output, attention = inner(module, changed.query, changed.key, changed.value, changed.mask, *args, **own)
        weights.append(attention)
        return output  # type: ignore[no-any-return]

    output = entry[1](inputs, attend)
    return output, weights[0] if len(weights) == 1 else None


def attend_from_table(
    module: Any, inner: Any, hook: Hook, layer: int, nested: bool,
    query: Tensor, key: Tensor, value: Tensor, mask: Any = None,
) -> tuple[Tensor, Any]:  # fmt: skip
    """GPT-J and CodeGen attend in a method of their own; heads are axis 1 of what it returns."""
    inputs = AttentionInput(
        query, key, 1.0 / float(module.scale_attn), layer=layer, value=value, mask=mask, nested=nested
    )
    weights: list[Any] = []

    def attend(changed: AttentionInput) -> Tensor:
        output, attention = inner(changed.query, changed.key, changed.value, changed.mask)
        weights.append(attention)
        return output.transpose(1, 2)  # type: ignore[no-any-return]

    output = hook(inputs, attend).transpose(1, 2)
    return output, weights[0] if len(weights) == 1 else None


def check_as_made(model: Any, purpose: str) -> None:
    """Refuse to change for good how a model attends that does not attend as it was made, or it could not be undone."""
    tables = any(hasattr(m, "embed_positions") and "_attn" in vars(m) for m in model.modules())
    if model.config._attn_implementation.startswith(OURS) or tables:
        raise ModelError(
            "this model attends in another way than it was made with already (its heads stream, its planes are stopped, or a gate is "
            f"closed): undo that, or load the model again, before {purpose}"
        )


# Gates: silencing chosen rotation planes, or whole heads.
#
# A plane takes part in attention only through the product of its two query and key dimensions, so zeroing the query's
# part of it removes exactly that plane from the logits. A whole head is removed by zeroing what it writes.

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


@contextmanager
def gated(reader: Any, gate: Gate) -> Iterator[None]:
    """A context in which the model of a reader runs with a gate closed: `with gated(reader, gate): model(tokens)`.

    Gates may be nested, on one model or on several: inside, everything closed by any of them is closed.
    """
    hooks: dict[int, Hook] = {}
    for layer, (layout, heads) in enumerate(zip(reader.layouts, reader.head_counts, strict=True)):
        closed, silent = gate.closes(layer, heads, layout), gate.silent(layer)
        if closed is not None or silent:
            hooks[layer] = partial(_attend_gated, closed, silent)
    with readable_attention(reader.model), intervening(reader.model, reader.sites, hooks):
        yield


def _attend_gated(
    closed: Tensor | None, silent: list[int], inputs: AttentionInput, attend: Attend
) -> Float[Tensor, "batch n heads d"]:
    """The module's own attention, with the gate before and behind it."""
    if closed is not None:
        query = inputs.query.masked_fill(closed.to(inputs.query.device)[None, :, None, :], 0.0)
        inputs = replace(inputs, query=query)
    output = attend(inputs)
    if silent:
        output = output.clone()
        output[:, :, silent] = 0.0
    return output


def silence(layer: LayerReading, gate: Gate) -> LayerReading:
    """The same gate on heads that have been read: for scoring a gated model."""
    key_heads, group = layer.query.shape[1:3]
    closed = gate.closes(layer.layer, key_heads * group, layer.layout)
    if closed is None:
        return layer
    arranged = closed[:, layer.layout.order].to(layer.query.device).unflatten(0, (key_heads, group))
    return replace(layer, query=layer.query.masked_fill(arranged[None, :, :, None, :], 0.0))
