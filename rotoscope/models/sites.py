"""Attention modules of a running model, and how to ask them for their queries and keys.

No model is re-implemented here. A **site** is one attention module. It can be called again on the hidden
states it was just given, with rotation tables of our choosing, and stopped right before it attends. That
yields its queries and keys after every projection, bias, norm and layout quirk the architecture has.

Almost all of transformers attends through one interface and receives `position_embeddings`; GPT-J and
CodeGen predate it and get a small adapter.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from rotoscope.errors import NoRotaryError, UnprovenError
from rotoscope.models.devices import alone
from rotoscope.models.offloading import plain_copy, put_back
from rotoscope.shapes import Bool, Float, Tensor

CAPTURE = "rotoscope_capture"


@dataclass(frozen=True)
class Projected:
    """What a module was about to attend with."""

    query: Float[Tensor, "batch heads n d"]
    key: Float[Tensor, "batch key_heads n d"]
    scaling: float
    softcap: float | None = None
    sinks: Float[Tensor, "heads"] | None = None


class _Stop(Exception):
    """Leaves an attention module at the moment it would attend."""

    def __init__(self, projected: Projected) -> None:
        self.projected = projected


def _capture(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> NoReturn:
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    raise _Stop(Projected(query, key, scale, softcap, s_aux))


AttentionInterface.register(CAPTURE, _capture)
AttentionMaskInterface.register(CAPTURE, eager_mask)


@contextmanager
def registered(function: Callable[..., Any], mask: Callable[..., Any]) -> Iterator[str]:
    """A way of attending that transformers knows by a name of its own as long as the context is open."""
    name = f"rotoscope_{id(function):x}"
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask)
    try:
        yield name
    finally:
        del AttentionInterface._global_mapping[name], AttentionMaskInterface._global_mapping[name]


def own_attention(model: Any) -> Callable[..., Any]:
    """How the modules of a model attend at the moment: a function of the interface, or their own eager code."""
    function: Any = AttentionInterface._global_mapping.get(model.config._attn_implementation)

    def eager(module: Any, *args: Any, **kwargs: Any) -> Any:
        return sys.modules[type(module).__module__].eager_attention_forward(module, *args, **kwargs)  # type: ignore[attr-defined]

    return function or eager


@contextmanager
def attending(model: Any, implementation: str) -> Iterator[None]:
    """Let a whole model attend in another way for a while."""
    before = model.config._attn_implementation
    if before == implementation:
        yield
        return
    try:
        model.set_attn_implementation(implementation)
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def replaced(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Put something in the place of a module's method; what stood there, also another replacement, comes back."""
    own = vars(module)
    before = own.get(name)
    own[name] = value
    try:
        yield
    finally:
        if before is None:
            del own[name]
        else:
            own[name] = before


@cache
def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    """Of a module's `forward`; looked up once, since it is needed in every layer of every pass."""
    return inspect.signature(forward)


@dataclass(frozen=True)
class Call:
    """The arguments of one call of an attention module, by name."""

    arguments: dict[str, Any]
    extra: dict[str, Any]

    @classmethod
    def bind(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        bound = _signature(type(module).forward).bind(module, *args, **kwargs)
        arguments = dict(list(bound.arguments.items())[1:])
        extra = arguments.pop("kwargs", {})
        return cls(arguments, extra)

    def run(self, module: nn.Module, **changed: Any) -> Any:
        """Call the module again, past its hooks, without touching any key-value cache."""
        arguments = {**self.arguments, **self.extra, **changed}
        for kept in ("past_key_values", "past_key_value", "layer_past", "use_cache"):
            arguments.pop(kept, None)
        try:
            return module.forward(**arguments)
        except _Stop:
            put_back(module)
            raise

    @property
    def hidden(self) -> Tensor:
        hidden: Tensor = self.arguments["hidden_states"]
        return hidden

    @property
    def mask(self) -> Any:
        return self.arguments.get("attention_mask", self.extra.get("attention_mask"))

    def visible(self, rows: Tensor, module: Any) -> Bool[Tensor, "rows n"]:
        """Which key positions each query position of a module may see: the model's own mask, or what it does without one."""
        return visible_under(self.mask, rows, self.hidden.shape[1], both_ways=looks_both_ways(module))


def looks_both_ways(module: Any) -> bool:
    """Whether a module, given no mask, attends to what comes later as well: it or its configuration says so."""
    return not all(getattr(holder, "is_causal", True) for holder in (module, getattr(module, "config", None)))


def visible_under(mask: Any, rows: Tensor, n: int, *, both_ways: bool = False) -> Bool[Tensor, "rows n"]:
    """Which key positions each query position may see under a mask; without one, all, or all that do not come later."""
    if mask is None:
        earlier = torch.arange(n, device=rows.device)[None, :] <= rows[:, None]
        return torch.ones_like(earlier) if both_ways else earlier
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise UnprovenError(f"an attention mask of an unknown form ({type(mask).__name__})")
    row = mask[0, 0, rows.to(mask.device), :n]
    return row if row.dtype == torch.bool else row > torch.finfo(row.dtype).min / 2


@dataclass(frozen=True)
class Site(ABC):
    """One attention module that rotates its queries and keys."""

    module: Any
    layer: int

    @abstractmethod
    def rotation(self, call: Call) -> tuple[Tensor, Tensor]:
        """The model's own rotation tables for this call: cosines and sines [n, columns]."""

    @abstractmethod
    def project(self, call: Call, cos: Tensor, sin: Tensor) -> Projected:
        """Queries and keys of this call under other rotation tables [n, columns]."""

    @abstractmethod
    def attend(self, call: Call, hidden: Tensor) -> Float[Tensor, "batch heads n n"]:
        """The model's own attention weights on other hidden states, computed by its own eager code.

        The call must come from a model that was `attending` eagerly: then it holds the mask that model made.
        """

    def project_unrotated(self, call: Call) -> Projected:
        """Queries and keys of this call as they are before they are turned."""
        cos, sin = self.rotation(call)
        return self.project(call, torch.ones_like(cos), torch.zeros_like(sin))


class InterfaceSite(Site):
    """A module that attends through transformers' attention interface."""

    def _embeddings(self, call: Call) -> Any:
        return call.arguments.get("position_embeddings", call.extra.get("position_embeddings"))

    def rotation(self, call: Call) -> tuple[Tensor, Tensor]:
        embeddings = self._embeddings(call)
        if isinstance(embeddings, Tensor) and embeddings.is_complex():
            cos, sin = embeddings.real, embeddings.imag
        else:
            cos, sin = embeddings
        return (cos[0], sin[0]) if cos.ndim == 3 else (cos, sin)

    def project(self, call: Call, cos: Tensor, sin: Tensor) -> Projected:
        own = self._embeddings(call)
        if isinstance(own, Tensor):
            embeddings: Any = torch.complex(cos, sin).expand(own.shape)
        else:
            embeddings = (cos.expand(own[0].shape), sin.expand(own[1].shape))
        with _module_attending(self.module, CAPTURE):
            try:
                call.run(self.module, position_embeddings=embeddings)
            except _Stop as stop:
                return stop.projected
        raise UnprovenError(_never_attended(self.module))

    def attend(self, call: Call, hidden: Tensor) -> Tensor:
        with _module_attending(self.module, "eager"):
            return _weights_of(self.module, call.run(self.module, hidden_states=hidden))


class RotaryTableSite(Site):
    """GPT-J and CodeGen: rotation comes from a table of sines and cosines looked up by `position_ids`."""

    def rotation(self, call: Call) -> tuple[Tensor, Tensor]:
        ids = call.arguments["position_ids"][0]
        table = self.module.embed_positions.to(ids.device)[ids]
        sin, cos = table.chunk(2, dim=-1)
        return cos, sin

    def project(self, call: Call, cos: Tensor, sin: Tensor) -> Projected:
        n = cos.shape[0]
        ids = torch.arange(n, device=cos.device)[None].expand(call.hidden.shape[0], n)

        def stop(query: Tensor, key: Tensor, *_: Any, **__: Any) -> NoReturn:
            raise _Stop(Projected(query, key, 1.0 / float(self.module.scale_attn)))

        table = self.module.embed_positions
        self.module.embed_positions = torch.cat((sin, cos), dim=-1)
        try:
            with replaced(self.module, "_attn", stop):
                call.run(self.module, position_ids=ids)
        except _Stop as stopped:
            return stopped.projected
        finally:
            self.module.embed_positions = table
        raise UnprovenError(_never_attended(self.module))

    def attend(self, call: Call, hidden: Tensor) -> Tensor:
        return _weights_of(self.module, call.run(self.module, hidden_states=hidden, output_attentions=True))


@contextmanager
def short_tables(sites: Sequence[Site], n: int) -> Iterator[None]:
    """Let modules that copy their rotation table for every prompt copy only the part a pass needs."""
    modules = [site.module for site in sites if isinstance(site, RotaryTableSite)]
    tables = [module.embed_positions for module in modules]
    for module, table in zip(modules, tables, strict=True):
        module.embed_positions = table[:n]
    try:
        yield
    finally:
        for module, table in zip(modules, tables, strict=True):
            module.embed_positions = table


@contextmanager
def _module_attending(module: nn.Module, implementation: str) -> Iterator[None]:
    """Let one module attend in another way for a moment."""
    with attending_by(module.config, implementation):
        yield


@contextmanager
def attending_by(config: Any, implementation: str) -> Iterator[None]:
    """The same for all modules of a configuration, without asking each of them."""
    before = config._attn_implementation
    config._attn_implementation_internal = implementation
    try:
        yield
    finally:
        config._attn_implementation_internal = before


def _weights_of(module: nn.Module, output: Any) -> Tensor:
    for item in output[1:]:
        if isinstance(item, Tensor) and item.ndim == 4:
            return item
    raise UnprovenError(f"{type(module).__name__} does not return attention weights to compare with")


def _never_attended(module: nn.Module) -> str:
    return f"{type(module).__name__} did not reach its attention when called again"


@contextmanager
def readable_attention(model: Any, modules: Sequence[Any] | None = None) -> Iterator[None]:
    """Kernels that hide their mask (flash, flex) and compiled code make room for SDPA or eager attention, and come back.

    The model is this thread's alone meanwhile. `modules` are those of the model, where somebody knows them.
    """
    with alone(model), uncompiled(modules or list(model.modules())):
        before = model.config._attn_implementation
        if before not in ("sdpa", "eager") and not before.startswith("rotoscope_"):
            before = "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"
        with attending(model, before):
            yield


@contextmanager
def uncompiled(modules: Sequence[Any]) -> Iterator[None]:
    """Run what was compiled in place (`model.compile()`) as it was written."""
    with ExitStack() as stack:
        for module in modules:
            if getattr(module, "_compiled_call_impl", None) is not None:
                stack.enter_context(replaced(module, "_compiled_call_impl", None))
        yield


def find_sites(model: Any, tokens: Tensor) -> list[Site]:
    """All rotating attention modules in the order the model calls them."""
    name = model.config.model_type
    tables = [m for m in model.modules() if hasattr(m, "_attn") and hasattr(m, "embed_positions")]
    if tables:
        return [RotaryTableSite(module, layer) for layer, module in enumerate(tables)]
    modules: list[nn.Module] = []

    def discover(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Any:
        modules.append(module)
        copies = query.shape[1] // value.shape[1]
        return value.repeat_interleave(copies, dim=1).transpose(1, 2), None

    try:
        with registered(discover, eager_mask) as observing, attending(model, observing):
            model(tokens, use_cache=False)
    except (KeyError, ValueError, TypeError, RuntimeError, AttributeError) as problem:
        raise UnprovenError(
            f"architecture '{name}': its attention cannot be observed through transformers' attention "
            f"interface ({problem}); rotoscope reads models that attend through it, GPT-J and CodeGen"
        ) from problem
    rotating = [m for m in modules if "position_embeddings" in inspect.signature(m.forward).parameters]
    if not modules:
        raise UnprovenError(
            f"architecture '{name}' does not attend through transformers' attention interface, so its heads "
            "cannot be read; rotoscope reads models that do, GPT-J and CodeGen"
        )
    if not rotating:
        raise NoRotaryError(
            f"architecture '{name}' has no rotary positions: its keys do not depend on where they stand, so "
            "under key swaps each of its heads is symbolic by construction and there is nothing to measure"
        )
    if len(rotating) < len(modules):
        raise UnprovenError(
            f"architecture '{name}' mixes rotating attention modules with {len(modules) - len(rotating)} "
            "of another kind, which rotoscope cannot read"
        )
    if len({id(m) for m in modules}) < len(modules):
        raise UnprovenError(f"architecture '{name}' calls one attention module several times in a pass")
    return [InterfaceSite(module, layer) for layer, module in enumerate(modules)]


def names_of(model: Any, sites: Sequence[Site]) -> list[str]:
    """The names of the attention modules in a model."""
    names = {id(module): name for name, module in model.named_modules()}
    return [names[id(site.module)] for site in sites]


def sites_of(model: Any, names: Sequence[str], *, from_table: bool) -> list[Site]:
    """The sites whose names are known already."""
    kind = RotaryTableSite if from_table else InterfaceSite
    return [kind(model.get_submodule(name), layer) for layer, name in enumerate(names)]


def blocks_around(model: Any, sites: Sequence[Site]) -> list[Any]:
    """The decoder block around each attention module: what enters it is the residual stream."""
    return [model.get_submodule(name.rpartition(".")[0]) for name in names_of(model, sites)]


def precise(site: Site, call: Call) -> tuple[Site, Call]:
    """A module of half precision as a float32 copy: what it computes can be compared."""
    if call.hidden.dtype not in (torch.bfloat16, torch.float16):
        return site, call
    arguments = dict(call.arguments, hidden_states=call.hidden.float())
    return replace(site, module=plain_copy(site.module).float()), replace(call, arguments=arguments)
