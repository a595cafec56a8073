"""Entering a model at a depth: states of our choosing go into a layer, and the model does the rest.

The blocks before that layer are stepped over, so what a run costs is what is left of the model. Masks, rotation and
the read-out stay the model's own. Making a `Depths` proves that nothing else passes from block to block: entered
anywhere with the states it had there itself, the model must say what it says anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from rotoscope.errors import TaskError, UnprovenError
from rotoscope.reading.heads import HeadReader, Visit
from rotoscope.reading.sites import Call, replaced
from rotoscope.shapes import Bool, Float, Int, Tensor

TOLERANCE = 1e-4

Visible = Mapping[int, Bool[Tensor, "batch n n"]]


class Depths:
    """Runs a model that a reader has proven, from any layer on."""

    def __init__(self, reader: HeadReader) -> None:
        self.reader = reader
        self._shapes: list[int] = []
        tokens = reader.proof_tokens
        states = self.states(tokens)
        plain = reader.read(tokens).float()
        size = float(plain.abs().max().clamp(min=1.0))
        self.proof = [
            float((self.enter(tokens, layer, entering).float() - plain).abs().max()) / size
            for layer, entering in enumerate(states)
        ]
        if not max(self.proof) <= TOLERANCE:
            layer = max(range(len(self.proof)), key=self.proof.__getitem__)
            raise UnprovenError(
                f"architecture '{reader.model.config.model_type}': entered at layer {layer} with its own states, the "
                f"model says something else ({self.proof[layer]:.2g} off, {TOLERANCE:g} allowed); more than the residual "
                "stream passes between its layers, so it cannot be entered at a depth"
            )

    def states(self, tokens: Int[Tensor, "batch n"]) -> Float[Tensor, "layers_and_one batch n width"]:
        """The residual stream before the first layer and after every layer."""
        found: list[Tensor] = []
        self._shapes = []

        def entering(module: Any, args: Any, kwargs: Any) -> None:
            found.append(args[0] if args else kwargs["hidden_states"])

        def leaving(module: Any, args: Any, output: Any) -> None:
            # A block hands on its states alone or as the first of several things.
            self._shapes.append(len(output) if isinstance(output, tuple) else 0)
            if module is self.reader.blocks[-1]:
                found.append(output[0] if isinstance(output, tuple) else output)

        with ExitStack() as stack:
            for block in self.reader.blocks:
                stack.callback(block.register_forward_pre_hook(entering, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(leaving).remove)
            self.reader.read(tokens)
        return torch.stack([state.to(found[0].device) for state in found])

    def enter(
        self,
        tokens: Int[Tensor, "batch_or_one n"],
        layer: int,
        states: Float[Tensor, "batch n width"],
        *,
        visible: Visible = MappingProxyType({}),
        queries: tuple[int, ...] = (),
        visit: Visit | None = None,
        keep: tuple[int, ...] = (-1,),
    ) -> Float[Tensor, "batch kept vocabulary"]:
        """What the model says at the positions to `keep` when `states` enter a layer (the number of layers: leave it).

        `visible[layer]` may hide keys [batch, query, key] from a layer that it would see otherwise; `visit` is shown the
        layers that run, as by `HeadReader.read`. One row of tokens serves any number of states.
        """
        if visit is not None and any(bool((seen != seen[:1]).any()) for seen in visible.values()):
            raise TaskError("heads can be read only where all inputs see the same keys; enter them one by one")
        with self.entered(layer, states, visible):
            return self.reader.read(tokens.expand(len(states), -1), queries, visit, keep)

    @contextmanager
    def entered(
        self, layer: int, states: Float[Tensor, "batch n width"], visible: Visible = MappingProxyType({})
    ) -> Iterator[None]:
        """A context in which a run of the model steps over the blocks before a layer, which `states` enter."""
        blocks = self.reader.blocks

        def entering(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

        def hiding(module: Any, args: Any, kwargs: Any, seen: Tensor) -> tuple[Any, Any]:
            call = Call.bind(module, args, kwargs)
            rows = torch.arange(seen.shape[-1], device=call.hidden.device)
            shown = call.visible(rows, module) & seen.to(call.hidden.device)
            mask = torch.zeros_like(shown, dtype=call.hidden.dtype)
            mask.masked_fill_(~shown, torch.finfo(mask.dtype).min)
            return (), {**call.arguments, **call.extra, "attention_mask": mask[:, None]}

        with ExitStack() as stack:
            for block, shape in zip(blocks[:layer], self._shapes[:layer], strict=True):
                result = (states, *[None] * (shape - 1)) if shape else states
                stack.enter_context(replaced(block, "forward", lambda *_, result=result, **__: result))
            if layer < len(blocks):
                stack.callback(blocks[layer].register_forward_pre_hook(entering, with_kwargs=True).remove)
            for site in self.reader.sites:
                if site.layer in visible:
                    hook = partial(hiding, seen=visible[site.layer])
                    stack.callback(site.module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            yield
