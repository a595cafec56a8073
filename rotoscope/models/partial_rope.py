"""Stopping chosen rotation planes of chosen key heads while a model runs.

A plane that is stopped goes on existing, but it does not rotate: its query and key dimensions meet as they are before they are
turned, as in a head without positions (p-RoPE, partial RoPE). Queries and keys are turned back by the model's own tables on their
way to its attention; where there is a cache, keys are turned back on their way into it, so that what it holds needs no more turning.
The query heads of a group share their key head's planes. A table that also scales (YaRN) does not scale what is stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from rotoscope.errors import UnprovenError
from rotoscope.models.interventions import (
    Attend,
    AttentionInput,
    Hook,
    attend_from_table,
    attend_through,
    check_as_made,
    intervening,
)
from rotoscope.models.layer import Layout
from rotoscope.models.reader import STOPPED, HeadReader
from rotoscope.models.sites import Call, RotaryTableSite, Site, own_attention, readable_attention
from rotoscope.shapes import Bool, Float, Tensor

KeyHead = tuple[int, int]
Which = Mapping[KeyHead, frozenset[int]]
"""Frequency ids (1 = fastest) that are stopped, by (layer, key head)."""
CACHES = ("past_key_values", "past_key_value", "layer_past")


class Turning:
    """Turns planes of one module's heads back, on their way to its attention."""

    def __init__(self, site: Site, layout: Layout, still: Bool[Tensor, "key_heads planes"]) -> None:
        d, planes = len(layout.order), layout.planes
        real, imaginary = layout.order[: 2 * planes : 2], layout.order[1 : 2 * planes : 2]
        self.site, self.still, self.d = site, still, d
        self.plane = torch.full((d,), planes)
        self.plane[real] = self.plane[imaginary] = torch.arange(planes)
        self.columns = torch.zeros(d, dtype=torch.long)
        self.columns[real] = self.columns[imaginary] = layout.columns
        self.partner = torch.arange(d)
        self.partner[real], self.partner[imaginary] = imaginary, real
        self.sign = torch.zeros(d)
        self.sign[real], self.sign[imaginary] = 1.0, -1.0
        self.tables: tuple[Tensor, Tensor] | None = None
        """Cosines and sines of the present call [batch or 1, 1, n, d]."""
        self.cached = False
        """Whether the keys of the present call have been through a cache, which turned them back."""
        self._on: dict[Any, Tensor] = {}

    def called(self, module: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before the module: remember its tables, and stand between it and a cache."""
        call = Call.bind(module, args, kwargs)
        self.tables, self.cached = self._tables(call), False
        arguments = {**call.arguments, **call.extra}
        for name in CACHES:
            if arguments.get(name) is not None:
                arguments[name] = _Kept(arguments[name], self)
        return (), arguments

    def _tables(self, call: Call) -> tuple[Tensor, Tensor]:
        """The call's own tables, a column for every dimension, for every input where they differ."""
        if isinstance(self.site, RotaryTableSite):
            ids = call.arguments["position_ids"]
            sin, cos = self.site.module.embed_positions.to(ids.device)[ids].chunk(2, dim=-1)
        else:
            embeddings: Any = call.arguments.get("position_embeddings", call.extra.get("position_embeddings"))
            is_complex = isinstance(embeddings, Tensor)
            cos, sin = (embeddings.real, embeddings.imag) if is_complex else embeddings
        if cos.ndim not in (2, 3):
            raise UnprovenError(
                f"layer {self.site.layer}: rotation tables of {cos.ndim} axes, whose planes cannot be stopped; 2 or 3 were expected"
            )
        columns = self._at("columns", cos.device)
        return cos[..., columns].unsqueeze(-3), sin[..., columns].unsqueeze(-3)

    def _at(self, name: str, device: torch.device) -> Tensor:
        """One of the tensors above where it is needed."""
        if (name, device) not in self._on:
            self._on[name, device] = getattr(self, name).to(device)
        return self._on[name, device]

    def back(self, vectors: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads n d"]:
        """All planes of all heads turned back, in float32 or better; what belongs to no plane stays."""
        assert self.tables is not None
        width = torch.promote_types(vectors.dtype, torch.float32)
        cos, sin = (table.to(vectors.device, width) for table in self.tables)
        sign = self._at("sign", vectors.device).to(width)
        wide = vectors.to(width)
        turned = (wide * cos + wide[..., self._at("partner", vectors.device)] * (sin * sign)) / (
            cos**2 + sin**2
        )
        return torch.where(sign == 0, wide, turned).to(vectors.dtype)

    def stop(self, vectors: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads n d"]:
        """Queries or keys with the chosen planes of their key head turned back."""
        chosen = self._at("chosen", vectors.device)  # [key_heads, d]
        chosen = chosen.repeat_interleave(vectors.shape[1] // chosen.shape[0], dim=0)
        return torch.where(chosen[:, None, :], self.back(vectors), vectors)

    @property
    def chosen(self) -> Bool[Tensor, "key_heads d"]:
        """Dimensions that are turned back."""
        rest = torch.zeros(len(self.still), 1, dtype=torch.bool)
        return torch.cat((self.still, rest), dim=1)[:, self.plane]

    def attended(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """What the module attends with instead."""
        return self.stop(query), key if self.cached else self.stop(key)

    def hook(self, inputs: AttentionInput, attend: Attend) -> Tensor:
        """The module's own attention, over what the turning makes of its queries and keys."""
        query, key = self.attended(inputs.query, inputs.key)
        return attend(replace(inputs, query=query, key=key))


class Mixing(Turning):
    """Planes between rotating and stopped: their logits are `alpha` times the ones and 1 - alpha times the others.

    The mix is that of the logits, plane by plane: queries and keys as they stand, and turned back, beside each other.
    """

    def __init__(self, site: Site, layout: Layout, alpha: Float[Tensor, "key_heads planes"]) -> None:
        super().__init__(site, layout, torch.zeros_like(alpha, dtype=torch.bool))
        self.alpha = alpha

    def attended(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        rest = self.alpha.new_ones(len(self.alpha), 1)
        share = torch.cat((self.alpha, rest), dim=1)[:, self._at("plane", self.alpha.device)]
        share = share.repeat_interleave(query.shape[1] // key.shape[1], dim=0)[:, None, :].to(query)
        doubled = torch.cat((share * query, (1 - share) * self.back(query)), dim=-1)
        return doubled, torch.cat((key, self.back(key)), dim=-1)


class _Kept:
    """A cache that is given keys with the chosen planes turned back."""

    def __init__(self, cache: Any, turning: Turning) -> None:
        self._cache, self._turning = cache, turning

    def update(self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        if key.shape[-1] != self._turning.d:
            raise UnprovenError(
                f"layer {self._turning.site.layer} caches {key.shape[-1]} numbers a token that are not its keys ({self._turning.d}), so "
                "stopped planes cannot be cached: run the model with use_cache=False"
            )
        self._turning.cached = True
        return self._cache.update(self._turning.stop(key), value, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def check_turns_back(reader: HeadReader) -> None:
    """Refuse a model whose queries and keys are not what they were when they are turned back."""
    if not reader.direct:
        raise UnprovenError(
            f"architecture '{reader.model.config.model_type}': its queries and keys, turned back, are not what they were before they "
            "were turned, so its planes cannot be stopped"
        )


@contextmanager
def stopped(reader: HeadReader, planes: Which) -> Iterator[None]:
    """A context in which the model runs with planes stopped: `with stopped(reader, {(0, 1): frozenset({3, 4})}): model(tokens)`."""
    check_turns_back(reader)
    with turning(reader, stopped_turnings(reader, planes)):
        yield


@contextmanager
def mixed(reader: HeadReader, alphas: Sequence[Float[Tensor, "_ _"]]) -> Iterator[None]:
    """The same with every plane of a layer between rotating (1) and stopped (0), for gradients; without a cache."""
    check_turns_back(reader)
    sites = zip(reader.sites, reader.layouts, alphas, strict=True)
    with turning(reader, [Mixing(site, layout, alpha) for site, layout, alpha in sites if layout.planes]):
        yield


def stopped_turnings(reader: HeadReader, planes: Which) -> list[Turning]:
    """One for every module with planes to be stopped."""
    turnings = []
    for site, layout, key_heads in zip(reader.sites, reader.layouts, reader.key_head_counts, strict=True):
        still = torch.zeros(key_heads, layout.planes, dtype=torch.bool)
        for key_head in range(key_heads):
            for plane in planes.get((site.layer, key_head), ()):
                still[key_head, plane - 1] = True
        if bool(still.any()):
            turnings.append(Turning(site, layout, still))
    return turnings


@contextmanager
def turning(reader: HeadReader, turnings: Sequence[Turning]) -> Iterator[None]:
    """A context in which modules attend with what `turnings` make of their queries and keys."""
    hooks = {turning_back.site.layer: turning_back.hook for turning_back in turnings}
    with readable_attention(reader.model), ExitStack() as stack:
        for turning_back in turnings:
            stack.callback(
                turning_back.site.module.register_forward_pre_hook(turning_back.called, with_kwargs=True).remove
            )
        stack.enter_context(intervening(reader.model, reader.sites, hooks))
        yield


def stop_for_good(reader: HeadReader, planes: Which) -> None:
    """Let a model attend with planes stopped from now on: forward, backward, and with a cache."""
    check_turns_back(reader)
    model = reader.model
    check_as_made(model, "its planes can be stopped")
    turnings = stopped_turnings(reader, planes)
    for turning_back in turnings:
        module = turning_back.site.module
        module.rotoscope_turning = turning_back
        module.register_forward_pre_hook(_noting, with_kwargs=True)
        if isinstance(turning_back.site, RotaryTableSite):
            vars(module)["_attn"] = partial(
                attend_from_table, module, module._attn, turning_back.hook, turning_back.site.layer, False
            )
    setattr(model, STOPPED, True)
    if any(not isinstance(turning_back.site, RotaryTableSite) for turning_back in turnings):
        with readable_attention(model):
            inner = model.config._attn_implementation
            name = f"{STOPPED}_{inner}"
            attend = partial(attend_through, _turning_of, own_attention(model), False)
            AttentionInterface.register(name, attend)
            AttentionMaskInterface.register(name, AttentionMaskInterface._global_mapping[inner])
        model.set_attn_implementation(name)


def _noting(module: Any, args: Any, kwargs: Any) -> Any:
    return module.rotoscope_turning.called(module, args, kwargs)


def _turning_of(module: Any) -> tuple[int, Hook] | None:
    """The hook of a module whose planes were stopped for good: it goes with the module, also into a copy."""
    turning_back = getattr(module, "rotoscope_turning", None)
    return None if turning_back is None else (turning_back.site.layer, turning_back.hook)
