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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.masking_utils import eager_mask

from rotoscope.models.interventions import Attend, AttentionInput, check_as_made, intervening
from rotoscope.models.reader import HeadReader
from rotoscope.models.sites import readable_attention
from rotoscope.shapes import Bool, Float, Int, Tensor

KeyHead = tuple[int, int]


@dataclass(frozen=True)
class Places:
    """Where queries and keys of a mask stand, counted from the first token that is no padding."""

    query: Int[Tensor, "*batch queries 1"]
    key: Int[Tensor, "*batch 1 keys"]

    @classmethod
    def of(
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
    def shown_by(cls, visible: Bool[Tensor, "*batch queries keys"]) -> Places:
        """From a mask alone: the first key that any query may see is the first token, the last one it may see is a query's own."""
        n = visible.shape[-1]
        first = visible.any(-2).long().argmax(-1)[..., None, None]  # [*batch, 1, 1]
        own = n - 1 - visible.flip(-1).long().argmax(-1)[..., None]  # [*batch, queries, 1]
        return cls(own - first, torch.arange(n, device=visible.device) - first)


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
        attention_mask: Tensor | None = None, device: Any = "cpu", **options: Any,
    ) -> Tensor | None:  # fmt: skip
        """The model's own mask, as transformers asks for it."""
        sizes = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
        mask: Tensor | None = eager_mask(**sizes, attention_mask=attention_mask, device=device, **options)
        if mask is not None:
            self.places[mask] = Places.of(q_length, kv_length, q_offset, kv_offset, attention_mask, device)
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
        return Places.shown_by(mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)


def _attend_streaming(
    masks: _Masks, heads: list[int], inputs: AttentionInput, attend: Attend
) -> Float[Tensor, "batch n heads d"]:
    """What all heads of a layer write. Heads that stream are handed over apart from the others, where they can be."""
    key_heads, group = inputs.key.shape[1], inputs.query.shape[1] // inputs.key.shape[1]
    mask = _shown(inputs)
    if not heads:
        return attend(replace(inputs, mask=mask[..., : inputs.key.shape[2]]))
    hidden = masks.hide(mask)
    if len(heads) == key_heads:
        return attend(replace(inputs, mask=hidden[..., : inputs.key.shape[2]]))
    if inputs.nested or inputs.sinks is not None:
        by_head = mask.expand(-1, key_heads * group, -1, -1).clone()
        by_head[:, _query_heads(heads, group)] = hidden
        return attend(replace(inputs, mask=by_head[..., : inputs.key.shape[2]]))
    rest = [head for head in range(key_heads) if head not in set(heads)]
    parts = [attend(_part(inputs, part, mask)) for part, mask in ((rest, mask), (heads, hidden))]
    order = torch.tensor(_query_heads([*rest, *heads], group)).argsort()
    return torch.cat(parts, dim=2)[:, :, order.to(parts[0].device)]


def _attend_mixed(
    masks: _Masks, mix: Float[Tensor, "key_heads"], inputs: AttentionInput, attend: Attend
) -> Float[Tensor, "batch n heads d"]:
    """Every key head between streaming (0) and keeping everything (1), for gradients."""
    mask, n = _shown(inputs), inputs.key.shape[2]
    full, streamed = (attend(replace(inputs, mask=part[..., :n])) for part in (mask, masks.hide(mask)))
    share = mix.repeat_interleave(inputs.query.shape[1] // inputs.key.shape[1])[:, None].to(full)
    return streamed + share * (full - streamed)


def _part(inputs: AttentionInput, heads: list[int], mask: Tensor) -> AttentionInput:
    """What some key heads attend with, and their query heads."""
    asking = _query_heads(heads, inputs.query.shape[1] // inputs.key.shape[1])
    return replace(
        inputs,
        query=inputs.query[:, asking],
        key=inputs.key[:, heads],
        value=inputs.value[:, heads],
        mask=mask[..., : inputs.key.shape[2]],
    )


def _query_heads(key_heads: list[int], group: int) -> list[int]:
    """The query heads of some key heads."""
    return [head * group + k for head in key_heads for k in range(group)]


def _shown(inputs: AttentionInput) -> Tensor:
    """The mask of a call; where there is none, the one of positions that follow each other."""
    if isinstance(inputs.mask, Tensor):
        return inputs.mask
    query, queries, keys = inputs.query, inputs.query.shape[2], inputs.key.shape[2]
    later = torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=query.dtype, device=query.device).masked_fill(
        later, torch.finfo(query.dtype).min
    )[None, None]


@contextmanager
def streaming(reader: HeadReader, plan: Streaming) -> Iterator[None]:
    """A context in which the model runs with heads streaming: `with streaming(reader, plan): model(tokens)`.

    It may be nested with gates and with readings.
    """
    masks = _Masks(plan)
    hooks = {site.layer: partial(_attend_streaming, masks, plan.of(site.layer)) for site in reader.sites}
    with readable_attention(reader.model), intervening(reader.model, reader.sites, hooks, masks.make):
        yield


def stream(reader: HeadReader, plan: Streaming) -> Callable[[], None]:
    """Let a model's heads stream from now on, also in `generate`; the function that comes back undoes it."""
    check_as_made(reader.model, "its heads can stream")
    stack = ExitStack()
    stack.enter_context(streaming(reader, plan))
    return stack.close


@contextmanager
def mixed(reader: HeadReader, plan: Streaming, mix: Mapping[int, Float[Tensor, "key_heads"]]) -> Iterator[None]:
    """A context in which every key head of layer l writes mix[l] of what it does with all keys, and the rest of what it does
    when it streams: by its gradient one learns, of all heads at once, what streaming costs."""
    masks = _Masks(plan)
    hooks = {site.layer: partial(_attend_mixed, masks, mix[site.layer]) for site in reader.sites}
    with readable_attention(reader.model), intervening(reader.model, reader.sites, hooks, masks.make):
        yield
