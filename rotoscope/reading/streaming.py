"""Streaming heads: key heads of a running model that keep the first tokens and the last ones, and forget what lies between.

Heads that stream are handed to the model's own attention by themselves, with what they have forgotten hidden: attention over the
keys that are left is what literally dropping the others gives. The other heads attend as they always do. Keys are counted from
the first that any query may see, so padding on the left and key-value caches of any length are as they should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.masking_utils import eager_mask

from rotoscope.reading.heads import HeadReader
from rotoscope.reading.sites import (
    RotaryTableSite,
    Site,
    attending_by,
    own_attention,
    readable_attention,
    registered,
    replaced,
)
from rotoscope.shapes import Bool, Float, Tensor

KeyHead = tuple[int, int]
OURS = "rotoscope_"
"""How ways to attend are called that we put in place: a gate, say, which knows heads by their numbers."""
LEARNED_SINKS = "s_aux"
"""What attention functions are given for every query head of a layer: its heads cannot be handed over by themselves."""


@dataclass(frozen=True)
class Streaming:
    """Key heads (layer, key head) that stream, and what they keep: the first `sinks` tokens and the last `window`.

    With a `context`, so many tokens are first read with everything in sight; then the streaming heads forget all of them but
    the first and the last, and what comes later stays: how a compressed prompt is used.
    """

    heads: frozenset[KeyHead]
    window: int
    sinks: int
    context: int | None = None

    def kept(self, visible: Bool[Tensor, "*batch queries keys"]) -> Bool[Tensor, "*batch queries keys"]:
        """What is left of the keys that queries may see."""
        n = visible.shape[-1]
        key = torch.arange(n, device=visible.device)
        first = visible.any(-2).long().argmax(-1)[..., None, None]  # [*batch, 1, 1]
        here = n - 1 - visible.flip(-1).long().argmax(-1)[..., None]  # [*batch, queries, 1]
        sink = key - first < self.sinks
        if self.context is None:
            return visible & (sink | (here - key < self.window))
        forgotten = ~sink & (key - first < self.context - self.window) & (here - first >= self.context)
        return visible & ~forgotten

    def far(self, positions: Sequence[int], n: int, device: torch.device) -> Bool[Tensor, "queries keys"]:
        """For queries at some positions, which of the keys before them lie where a streaming head forgets."""
        place, key = torch.tensor(positions, device=device)[:, None], torch.arange(n, device=device)
        return (key >= self.sinks) & (place - key >= self.window)

    def of(self, layer: int) -> list[int]:
        """Key heads of a layer that stream."""
        return sorted(head for at, head in self.heads if at == layer)


Attend = Callable[..., tuple[Tensor, Any]]
"""Some heads of a layer, by the numbers of their key heads: queries, keys, values and a mask in, what they write out."""


class _Streams:
    """One layer's heads, some of which stream; what masks become is remembered, since layers share them."""

    def __init__(self, streaming: Streaming, layer: int, masks: dict[int, tuple[Tensor, Tensor]]) -> None:
        self.streaming, self.masks = streaming, masks
        self.heads = streaming.of(layer)

    def hide(self, mask: Tensor) -> Tensor:
        """The mask of a streaming head."""
        if id(mask) not in self.masks:
            allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            gone = ~self.streaming.kept(allowed)
            hidden = (
                mask & ~gone
                if mask.dtype == torch.bool
                else mask.masked_fill(gone, torch.finfo(mask.dtype).min)
            )
            self.masks[id(mask)] = mask, hidden  # the mask is kept, so its id stays its own
        return self.masks[id(mask)][1]

    def attend(
        self, attend: Attend, key_heads: int, group: int, mask: Tensor, *, apart: bool
    ) -> tuple[Tensor, Any]:
        """What all heads of the layer write, heads that stream `apart` from the others where that can be; heads are axis 2 of it."""
        if not self.heads:
            return attend(list(range(key_heads)), mask)
        if len(self.heads) == key_heads:
            return attend(self.heads, self.hide(mask))
        if not apart:
            every = mask.expand(-1, key_heads * group, -1, -1).clone()
            every[:, _query_heads(self.heads, group)] = self.hide(mask)
            return attend(list(range(key_heads)), every)
        others = [head for head in range(key_heads) if head not in set(self.heads)]
        parts = [attend(others, mask)[0], attend(self.heads, self.hide(mask))[0]]
        order = torch.tensor(_query_heads([*others, *self.heads], group)).argsort()
        return torch.cat(parts, dim=2)[:, :, order.to(parts[0].device)], None


class _Mixed(_Streams):
    """Every key head between streaming (0) and keeping everything (1), for gradients."""

    def __init__(
        self,
        streaming: Streaming,
        layer: int,
        masks: dict[int, tuple[Tensor, Tensor]],
        mix: Float[Tensor, "key_heads"],
    ) -> None:
        super().__init__(streaming, layer, masks)
        self.mix = mix

    def attend(
        self, attend: Attend, key_heads: int, group: int, mask: Tensor, *, apart: bool
    ) -> tuple[Tensor, Any]:
        everyone = list(range(key_heads))
        full, streamed = attend(everyone, mask)[0], attend(everyone, self.hide(mask))[0]
        share = self.mix.repeat_interleave(group)[:, None].to(full)
        return streamed + share * (full - streamed), None


def _query_heads(key_heads: list[int], group: int) -> list[int]:
    """The query heads of some key heads."""
    return [head * group + one for head in key_heads for one in range(group)]


@contextmanager
def streaming(reader: HeadReader, plan: Streaming) -> Iterator[None]:
    """A context in which the model runs with heads streaming: `with streaming(reader, plan): model(tokens)`.

    It may be nested with gates and with readings.
    """
    masks: dict[int, tuple[Tensor, Tensor]] = {}
    with _attending(reader, {site.layer: _Streams(plan, site.layer, masks) for site in reader.sites}, masks):
        yield


def stream(model: Any, plan: Streaming) -> Callable[[], None]:
    """Let a model's heads stream from now on, also in `generate`; the function that comes back undoes it.

    The reading is proven first, as it always is.
    """
    reader = HeadReader(model)
    stack = ExitStack()
    stack.enter_context(streaming(reader, plan))
    return stack.close


@contextmanager
def mixed(reader: HeadReader, plan: Streaming, mix: Mapping[int, Float[Tensor, "key_heads"]]) -> Iterator[None]:
    """A context in which every key head of layer l writes mix[l] of what it does with all keys, and the rest of what it does
    when it streams: by its gradient one learns, of all heads at once, what streaming costs."""
    masks: dict[int, tuple[Tensor, Tensor]] = {}
    layers = {site.layer: _Mixed(plan, site.layer, masks, mix[site.layer]) for site in reader.sites}
    with _attending(reader, layers, masks):
        yield


@contextmanager
def _attending(
    reader: HeadReader, layers: Mapping[int, _Streams], masks: dict[int, tuple[Tensor, Tensor]]
) -> Iterator[None]:
    """The model with the attention of some layers replaced, under masks that are always there."""
    with readable_attention(reader.model), ExitStack() as stack:
        stack.callback(reader.model.register_forward_pre_hook(lambda *_: masks.clear()).remove)
        by_module: dict[int, _Streams] = {}
        for site in reader.sites:
            if isinstance(site, RotaryTableSite):
                nested = "_attn" in vars(site.module)
                attend = partial(_attend_from_table, site.module._attn, layers[site.layer], nested)
                stack.enter_context(replaced(site.module, "_attn", attend))
            else:
                by_module[id(site.module)] = layers[site.layer]
        if by_module:
            nested = reader.model.config._attn_implementation.startswith(OURS)
            attend = partial(_attend, by_module, own_attention(reader.model), nested)
            name = stack.enter_context(registered(attend, eager_mask))
            for config in _configs(reader.model, reader.sites):
                stack.enter_context(attending_by(config, name))
        yield


def _configs(model: Any, sites: list[Site]) -> list[Any]:
    """Every configuration that says how the modules of a model attend, once."""
    owners = (model, *(site.module for site in sites))
    return list({id(owner.config): owner.config for owner in owners}.values())


def _attend(
    layers: Mapping[int, _Streams], inner: Attend, nested: bool,
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **kwargs: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """A module's own attention, heads that stream apart from the others."""
    group = query.shape[1] // key.shape[1]

    def some(heads: list[int], seen: Any) -> tuple[Tensor, Any]:
        if len(heads) == key.shape[1]:
            return inner(module, query, key, value, seen, *args, **kwargs)
        asking = _query_heads(heads, group)
        return inner(module, query[:, asking], key[:, heads], value[:, heads], seen, *args, **kwargs)

    apart = kwargs.get(LEARNED_SINKS) is None and not nested
    return layers[id(module)].attend(some, key.shape[1], group, _shown(mask, query, key), apart=apart)


def _attend_from_table(
    inner: Any, layer: _Streams, nested: bool, query: Tensor, key: Tensor, value: Tensor, mask: Any = None
) -> tuple[Tensor, Any]:
    """GPT-J and CodeGen attend in a method of their own; heads are axis 1 of what it returns."""

    def some(heads: list[int], seen: Any) -> tuple[Tensor, Any]:
        return inner(query[:, heads], key[:, heads], value[:, heads], seen)[0].transpose(1, 2), None

    shown = _shown(mask, query, key)
    return layer.attend(some, key.shape[1], 1, shown, apart=not nested)[0].transpose(1, 2), None


def _shown(mask: Any, query: Tensor, key: Tensor) -> Tensor:
    """The mask of a call; where there is none, the one of positions that follow each other."""
    if isinstance(mask, Tensor):
        return mask if mask.shape[-1] == key.shape[2] else mask[..., : key.shape[2]]
    queries, keys = query.shape[2], key.shape[2]
    later = torch.ones(queries, keys, dtype=torch.bool, device=key.device).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=query.dtype, device=key.device).masked_fill(
        later, torch.finfo(query.dtype).min
    )[None, None]
