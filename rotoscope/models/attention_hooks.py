"""What attention modules attend with, overheard on its way to the attention function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import AttentionMaskInterface

from rotoscope.models.sites import (
    Projected,
    RotaryTableSite,
    Site,
    attending_by,
    own_attention,
    registered,
    replaced,
)
from rotoscope.shapes import Tensor

Given = Callable[[int, Projected, Tensor, Any], tuple[Tensor, Tensor, Any]]
"""Shown a layer's number and what its module attends with, values and mask; gives keys, values and mask to attend over."""


ROOM = 2**30
"""Bytes that the masks of one call may take."""
MASK_BYTES = 8
"""What a pair of positions takes in masks that are made of one another."""
SMALLEST = 64
"""Positions that are looked at together, at least."""


@dataclass(frozen=True)
class Later:
    """A mask that is never written down whole: queries at the end of a prompt, from position `first` on, see what does not come later."""

    first: int

    def attend(
        self, attend: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Any]:
        """Some queries after the others, so that no mask is larger than there is room for."""
        n, end = key.shape[2], query.shape[2]
        size = max(SMALLEST, ROOM // (MASK_BYTES * n))
        parts = []
        for begin in range(0, end, size):
            rows = torch.arange(begin, min(begin + size, end), device=key.device) + self.first
            stop = self.first + min(begin + size, end)
            seen = torch.arange(stop, device=key.device) <= rows[:, None]
            some = query[:, :, begin : begin + size]
            parts.append(attend(some, key[:, :, :stop], value[:, :, :stop], seen[None, None])[0])
        return torch.cat(parts, dim=1), None


@contextmanager
def overhearing(
    model: Any, sites: Sequence[Site], given: Given, mask: Callable[..., Any] | None = None
) -> Iterator[None]:
    """A context in which `given` is shown what every attention module attends with, on its way there.

    The modules attend as they do now, under masks made by `mask`, or by the function that makes them now.
    """
    with ExitStack() as stack:
        layers = {id(site.module): site.layer for site in sites if not isinstance(site, RotaryTableSite)}
        for site in sites:
            if isinstance(site, RotaryTableSite):
                attend = partial(_attend_from_table, site, site.module._attn, given)
                stack.enter_context(replaced(site.module, "_attn", attend))
        if layers:
            masks: Any = mask or AttentionMaskInterface._global_mapping[model.config._attn_implementation]
            attend = partial(_attend, layers, given, own_attention(model))
            name = stack.enter_context(registered(attend, masks))
            owners = (model, *(site.module for site in sites))
            for config in {id(owner.config): owner.config for owner in owners}.values():
                stack.enter_context(attending_by(config, name))
        yield


def _attend(
    layers: dict[int, int], given: Given, inner: Callable[..., Any],
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *args: Any, **kwargs: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    """The module's own attention, over what it is given."""
    scale = kwargs.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    seen = Projected(query, key, scale, kwargs.get("softcap"), kwargs.get("s_aux"))
    key, value, mask = given(layers[id(module)], seen, value, mask)
    if isinstance(mask, Later):
        attend = lambda *what: inner(module, *what, *args, **kwargs)  # noqa: E731
        return mask.attend(attend, query, key, value)
    return inner(module, query, key, value, mask, *args, **kwargs)


def _attend_from_table(
    site: Site, inner: Any, given: Given, query: Tensor, key: Tensor, value: Tensor, mask: Any = None
) -> tuple[Tensor, Any]:
    """GPT-J and CodeGen attend in a method of their own."""
    seen = Projected(query, key, 1.0 / float(site.module.scale_attn))
    return inner(query, *given(site.layer, seen, value, mask))
