"""The model under study: itself, its tokenizer and a name; and what is inside the wrappers of other libraries.

Wrappers of torch, TransformerLens and nnsight are told by the names of their classes; no library is imported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from rotoscope.errors import ModelError
from rotoscope.models.foreign_code import hook_warnings
from rotoscope.models.identity import model_identity, weights_identity
from rotoscope.models.offloading import computes_on, each_once, not_loaded, weights
from rotoscope.models.reader import HeadReader
from rotoscope.shapes import Float, Tensor

SAMPLED = 1024
"""Numbers that stand for all weights of a model where checkpoints are compared; at least one of every matrix."""


@dataclass(frozen=True, repr=False)
class Subject:
    """A transformers model with its tokenizer, if it has one. `source` says where it came from, in plain words.

    `warnings` are sentences about the model itself that belong into everything that is made with it.
    """

    model: Any
    tokenizer: Any
    name: str
    source: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Which model this is, as it is now: see `identity`. Computed anew each time, since weights may have been changed."""
        return model_identity(self.model)

    @property
    def settings(self) -> dict[str, Any]:
        """The model as it stands among a run's settings, with the rotary settings it was loaded with, if any."""
        rope = {"rope": self.source["rope"]} if "rope" in self.source else {}
        return {"model": self.name, "fingerprint": self.fingerprint, **rope}

    @property
    def weights_fingerprint(self) -> str:
        """The same of the weights alone, for checkpoints of one training."""
        return weights_identity(self.model)

    @property
    def caveats(self) -> list[str]:
        """What belongs into everything made with this model as it is now: its warnings, and hooks that somebody has put on it."""
        return [*self.warnings, *hook_warnings(self.model)]

    def reader(self, *, prove: bool | None = None, identity: str = "") -> HeadReader:
        """A reader of the model's heads, made and proven once, and again when its modules, buffers or settings are others.

        `prove` and `identity` as for `HeadReader`.
        """
        parts = (_parts(self.model), prove is False)
        if prove or self._readers.get("parts") not in (parts, (parts[0], False)):
            self._readers["reader"] = HeadReader(self.model, prove=prove, identity=identity)
            self._readers["parts"] = parts
        kept: HeadReader = self._readers["reader"]
        return kept

    @cached_property
    def _readers(self) -> dict[str, Any]:
        return {}

    def sampled_weights(self) -> Float[Tensor, "weight"]:
        """The same few numbers of every matrix, for distances between checkpoints of one model.

        Gains and biases are left out: they are few, large, and go back and forth in training.
        """
        matrices = sum(weight.ndim > 1 for _, weight in each_once(self.model))
        parts = [
            _sample(weight, max(1, SAMPLED // matrices)) for _, weight in weights(self.model) if weight.ndim > 1
        ]
        return torch.cat(parts)

    @property
    def device(self) -> torch.device:
        """Where the model begins: the device of its first parameter, or the one that is brought to."""
        return computes_on(self.model)

    def __repr__(self) -> str:
        config = self.model.config
        layers = getattr(config.get_text_config(), "num_hidden_layers", "unknown")
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"Subject({self.name!r}: {config.model_type}, {layers} layers, {self.device}, {dtype})"


def _parts(model: Any) -> tuple[Any, ...]:
    """What a reading rests on: modules with their code and hooks, rotary tables and other buffers, settings. Not the weights."""
    modules = [
        (name, id(module), id(getattr(module.forward, "__func__", module.forward)), len(module._forward_hooks),
         len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    ]  # fmt: skip
    buffers = [
        (name, id(buffer), 0 if buffer.is_inference() else buffer._version)
        for name, buffer in model.named_buffers()
    ]
    marks = [name for name in vars(model) if name.startswith("rotoscope")]
    return computes_on(model), model.dtype, modules, buffers, marks, str(model.config)


def _sample(weight: Tensor, count: int) -> Float[Tensor, "weight"]:
    """At most so many numbers, evenly spread."""
    flat = weight.detach().flatten()
    return flat[:: max(1, flat.numel() // count)][:count].to("cpu", torch.float64)


def model_pair(source: Sequence[Any]) -> tuple[Any, Any]:
    """A model with its tokenizer, or None in the place of it."""
    if len(source) != 2:
        raise ModelError(f"a model in memory comes as a pair (model, tokenizer), found {len(source)} of them")
    model, tokenizer = source
    if isinstance(tokenizer, str):
        raise ModelError(
            f"a tokenizer is expected, found the text '{tokenizer}': load it with "
            f'transformers.AutoTokenizer.from_pretrained("{tokenizer}")'
        )
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "bos_token_id")):
        raise ModelError(f"a tokenizer of transformers is expected, found a {type(tokenizer).__name__}")
    return model, tokenizer


def unwrapped(model: Any) -> Any:
    """The model inside `torch.compile` and data parallelism; anything else as it is."""
    while True:
        names = {kind.__name__ for kind in type(model).__mro__}
        if "OptimizedModule" in names:
            model = model._orig_mod
        elif names & {"DistributedDataParallel", "DataParallel"}:
            model = model.module
        else:
            return model


def plain_model(source: Any) -> Any:
    """The transformers model inside what torch or another library made of it; anything else as it is.

    nnsight's models and TransformerLens' bridges hold one, and it is read where that can be proven. A HookedTransformer is
    written anew, so there is none inside.
    """
    source = unwrapped(source)
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(source).__mro__}
    libraries = {library for library, _ in kinds}
    name = type(source).__name__
    if "nnsight" in libraries:
        inside = next((vars(source)[key] for key in ("_module", "_model") if key in vars(source)), None)
    elif ("transformer_lens", "TransformerBridge") in kinds:
        inside = getattr(source, "original_model", None)
    elif "transformer_lens" in libraries:
        raise ModelError(
            f"a {name} is transformers' model written anew by TransformerLens, and what is measured here is the model itself; "
            f"write {_instead(source)}"
        )
    else:
        return source
    inside = unwrapped(inside)
    if not isinstance(inside, torch.nn.Module):
        raise ModelError(f"a {name} without a model inside; write {_instead(source)}")
    if not_loaded(inside):
        raise ModelError(
            f"the weights of this {name} are not in memory yet; write model.dispatch() first, or make it with dispatch=True"
        )
    if hasattr(getattr(inside, "config", None), "model_type"):
        try:
            HeadReader(inside)
        except ModelError as problem:
            raise ModelError(
                f"the model inside this {name} cannot be read as it is ({problem}); write {_instead(source, inside)}"
            ) from problem
    return inside


def _instead(*holders: Any) -> str:
    """The line that loads the plain model, with its name where one of the holders knows it."""
    about = [(holder, "name_or_path") for holder in holders]
    about += [
        (getattr(holder, "cfg", None), key) for holder in holders for key in ("tokenizer_name", "model_name")
    ]
    names = (getattr(holder, key, None) for holder, key in about)
    name = next((candidate for candidate in names if isinstance(candidate, str) and candidate), "ORG/NAME")
    return f'rs.load("{name if os.path.isdir(name) else f"hf:{name}"}")'
