"""Streaming heads: key heads of a running model that keep the first tokens and the last ones, and forget what lies between.

Heads that stream are handed to the model's own attention by themselves, with what they have forgotten hidden: attention over the
keys that are left is what literally dropping the others gives. The other heads attend as they always do. Where queries and keys
stand is noted when the model makes its masks: there it says how many tokens came before, which of them its cache has dropped and
what is padding. So a head that streams sees the same in one pass and token by token, also in a layer with a window of its own:
it keeps what lies in that window and is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.masking_utils import eager_mask

from rotoscope.errors import ModelError
from rotoscope.models.reader import HeadReader
from rotoscope.models.sites import (
    RotaryTableSite,
    Site,
    attending_by,
    own_attention,
    readable_attention,
    registered,
    replaced,
)
from rotoscope.shapes import Bool, Float, Int, Tensor

KeyHead = tuple[int, int]
OURS = "rotoscope_"
"""How ways to attend are called that we put in place: a gate, say, which knows heads by their numbers."""
LEARNED_SINKS = "s_aux"
"""What attention functions are given for every query head of a layer: its heads cannot be handed over by themselves."""


@dataclass(frozen=True)
class Places:
    """Where queries and keys of a mask stand, counted from the first token that is no padding."""

    query: Int[Tensor, "*batch queries 1"]
    key: Int[Tensor, "*batch 1 keys"]

    @classmethod
    def asked(
        cls, queries: int, keys: int, tokens_before: Any, keys_before: Any, real: Tensor | None, device: Any
    ) -> Places:
        """As a model says it when it makes a mask: how many tokens came before, and how many keys its cache has dropped.

        `real` [batch, tokens] is false where a token is padding.
        """
        query = (torch.arange(queries, device=device) + tokens_before)[:, None]
        key = (torch.arange(keys, device=device) + keys_before)[None, :]
        if real is None:
            return cls(query, key)
        first = real.to(device).long().argmax(-1)[:, None, None, None]  # [batch, 1, 1, 1]
        return cls(query - first, key - first)

    @classmethod
    def seen(cls, visible: Bool[Tensor, "*batch queries keys"]) -> Places:
        """From a mask alone: the first key that any query may see is the first token, the last one it may see is a query's own."""
        n = visible.shape[-1]
        first = visible.any(-2).long().argmax(-1)[..., None, None]  # [*batch, 1, 1]
        here = n - 1 - visible.flip(-1).long().argmax(-1)[..., None]  # [*batch, queries, 1]
        return cls(here - first, torch.arange(n, device=visible.device) - first)


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

    def forgotten(self, places: Places) -> Bool[Tensor, "*batch queries keys"]:
        """Which keys are no longer there for which queries."""
        sink = places.key < self.sinks
        if self.context is None:
            return ~sink & (places.query - places.key >= self.window)
        return ~sink & (places.key < self.context - self.window) & (places.query >= self.context)

    def far(self, positions: Sequence[int], n: int, device: torch.device) -> Bool[Tensor, "queries keys"]:
        """For queries at some positions, which of the keys before them lie where a streaming head forgets."""
        place, key = torch.tensor(positions, device=device)[:, None], torch.arange(n, device=device)
        return (key >= self.sinks) & (place - key >= self.window)

    def of(self, layer: int) -> list[int]:
        """Key heads of a layer that stream."""
        return sorted(head for at, head in self.heads if at == layer)


Attend = Callable[..., tuple[Tensor, Any]]
"""Some heads of a layer, by the numbers of their key heads: queries, keys, values and a mask in, what they write out."""


class _Masks:
    """The masks of a running model: where their queries and keys stand, and what they become for a head that streams.

    Both are remembered as long as the model holds the mask, since layers share them.
    """

    def __init__(self, streaming: Streaming) -> None:
        self.streaming = streaming
        self.places: Any = WeakTensorKeyDictionary()
        self.hidden: Any = WeakTensorKeyDictionary()

    def make(
        self, *, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: Any = 0,
        attention_mask: Tensor | None = None, device: Any = "cpu", **how: Any,
    ) -> Tensor | None:  # fmt: skip
        """The model's own mask, as transformers asks for it."""
        asked = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
        mask: Tensor | None = eager_mask(**asked, attention_mask=attention_mask, device=device, **how)
        if mask is not None:
            self.places[mask] = Places.asked(q_length, kv_length, q_offset, kv_offset, attention_mask, device)
        return mask

    def hide(self, mask: Tensor) -> Tensor:
        """The mask of a streaming head."""
        if mask not in self.hidden:
            lowest = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
            self.hidden[mask] = mask.masked_fill(self.streaming.forgotten(self._places(mask)), lowest)
        return self.hidden[mask]  # type: ignore[no-any-return]

    def _places(self, mask: Tensor) -> Places:
        """Of a mask that was made here, also where it went to another device; of one that was made elsewhere, what it shows."""
        if mask in self.places:
            return self.places[mask]  # type: ignore[no-any-return]
        for own, places in reversed(list(self.places.items())):
            if own.shape == mask.shape and own.dtype == mask.dtype and torch.equal(own.to(mask.device), mask):
                return Places(places.query.to(mask.device), places.key.to(mask.device))
        return Places.seen(mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)


class _Streams:
    """One layer's heads, some of which stream."""

    def __init__(self, masks: _Masks, layer: int) -> None:
        self.masks = masks
        self.heads = masks.streaming.of(layer)

    def attend(
        self, attend: Attend, key_heads: int, group: int, mask: Tensor, *, apart: bool
    ) -> tuple[Tensor, Any]:
        """What all heads of the layer write, heads that stream `apart` from the others where that can be; heads are axis 2 of it."""
        if not self.heads:
            return attend(list(range(key_heads)), mask)
        if len(self.heads) == key_heads:
            return attend(self.heads, self.masks.hide(mask))
        if not apart:
            every = mask.expand(-1, key_heads * group, -1, -1).clone()
            every[:, _query_heads(self.heads, group)] = self.masks.hide(mask)
            return attend(list(range(key_heads)), every)
        others = [head for head in range(key_heads) if head not in set(self.heads)]
        parts = [attend(others, mask)[0], attend(self.heads, self.masks.hide(mask))[0]]
        order = torch.tensor(_query_heads([*others, *self.heads], group)).argsort()
        return torch.cat(parts, dim=2)[:, :, order.to(parts[0].device)], None


class _Mixed(_Streams):
    """Every key head between streaming (0) and keeping everything (1), for gradients."""

    def __init__(self, masks: _Masks, layer: int, mix: Float[Tensor, "key_heads"]) -> None:
        super().__init__(masks, layer)
        self.mix = mix

    def attend(
        self, attend: Attend, key_heads: int, group: int, mask: Tensor, *, apart: bool
    ) -> tuple[Tensor, Any]:
        everyone = list(range(key_heads))
        full, streamed = attend(everyone, mask)[0], attend(everyone, self.masks.hide(mask))[0]
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
    masks = _Masks(plan)
    with _attending(reader, {site.layer: _Streams(masks, site.layer) for site in reader.sites}, masks):
        yield


def stream(reader: HeadReader, plan: Streaming) -> Callable[[], None]:
    """Let a model's heads stream from now on, also in `generate`; the function that comes back undoes it."""
    check_as_made(reader.model, "its heads can stream")
    stack = ExitStack()
    stack.enter_context(streaming(reader, plan))
    return stack.close


def check_as_made(model: Any, what: str) -> None:
    """Refuse to change for good how a model attends that does not attend as it was made, or it could not be undone."""
    tables = any(hasattr(m, "embed_positions") and "_attn" in vars(m) for m in model.modules())
    if model.config._attn_implementation.startswith(OURS) or tables:
        raise ModelError(
            "this model attends in another way than it was made with already (its heads stream, its planes are stopped, or a gate is "
            f"closed): undo that, or load the model again, before {what}"
        )


@contextmanager
def mixed(reader: HeadReader, plan: Streaming, mix: Mapping[int, Float[Tensor, "key_heads"]]) -> Iterator[None]:
    """A context in which every key head of layer l writes mix[l] of what it does with all keys, and the rest of what it does
    when it streams: by its gradient one learns, of all heads at once, what streaming costs."""
    masks = _Masks(plan)
    layers = {site.layer: _Mixed(masks, site.layer, mix[site.layer]) for site in reader.sites}
    with _attending(reader, layers, masks):
        yield


@contextmanager
def _attending(reader: HeadReader, layers: Mapping[int, _Streams], masks: _Masks) -> Iterator[None]:
    """The model with the attention of some layers replaced, under masks that are always there."""
    with readable_attention(reader.model), ExitStack() as stack:
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
            name = stack.enter_context(registered(attend, masks.make))
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

    def some(heads: list[int], seen: Tensor) -> tuple[Tensor, Any]:
        seen = seen[..., : key.shape[2]]
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

    def some(heads: list[int], seen: Tensor) -> tuple[Tensor, Any]:
        seen = seen[..., : key.shape[2]]
        return inner(query[:, heads], key[:, heads], value[:, heads], seen)[0].transpose(1, 2), None

    shown = _shown(mask, query, key)
    return layer.attend(some, key.shape[1], 1, shown, apart=not nested)[0].transpose(1, 2), None


def _shown(mask: Any, query: Tensor, key: Tensor) -> Tensor:
    """The mask of a call; where there is none, the one of positions that follow each other."""
    if isinstance(mask, Tensor):
        return mask
    queries, keys = query.shape[2], key.shape[2]
    later = torch.ones(queries, keys, dtype=torch.bool, device=key.device).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=query.dtype, device=key.device).masked_fill(
        later, torch.finfo(query.dtype).min
    )[None, None]
