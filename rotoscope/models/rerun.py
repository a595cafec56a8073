"""Running the end of a prompt again, with other tokens or other states; what comes before it stays as it was.

In a causal model nothing before the first changed position changes in any layer. So a `Reruns` runs a prompt once,
keeps the keys and values its attention modules were given, and then runs only the end, as often as wanted, from the
tokens or from the states that enter a layer on. The model's own modules do everything; they are only handed the keys and
values of the beginning. What every head attends to at the last position is noted on the way.

Making one proves it on the model at hand: the attention noted must be what the reader reads, and an end that is run
again must attend as it does when the whole changed prompt is run. A model for which the second fails is run whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from rotoscope.errors import TaskError, UnprovenError
from rotoscope.models.chunks import MASK_BYTES, ROOM, SMALLEST
from rotoscope.models.interventions import Attend, AttentionInput, intervening
from rotoscope.models.reader import HeadReader, Visit
from rotoscope.models.sites import Call, looks_both_ways, replaced, short_tables
from rotoscope.models.weight_check import check_finite
from rotoscope.scores.attention import attention_weights
from rotoscope.shapes import Bool, Float, Int, Tensor

TOLERANCE = 1e-4

OnLogits = Callable[[int, Float[Tensor, "batch heads n"]], None]
"""Shown a layer's number and the real logits of the last position; hidden positions are -inf."""


class _Enough(Exception):
    """Leaves a model at its last attention module: nothing after it is asked for."""


@dataclass
class Beginning:
    """A prompt that has been run whole: what its attention modules were given."""

    tokens: Int[Tensor, "one n"]
    inputs: dict[int, tuple[Tensor, Tensor, Tensor | None]] = field(default_factory=dict)
    """Of every layer: keys and values [one, key_heads, n, d] as they stand, and the mask [one, one, n, n]; none where nothing but what comes
    later is hidden."""
    states: Float[Tensor, "layers_and_one one n width"] | None = None
    """The residual stream, where a layer is to be entered."""


class Reruns:
    """Runs prompts of a model that a reader has proven, and their ends again.

    `factors` multiply the logits that are noted, one for all layers or one for each, as a rescaled null wants it; what the
    model does is not changed by them. `enters` says that layers are to be entered in the middle of the model.
    """

    def __init__(self, reader: HeadReader, *, factors: Sequence[float] = (1.0,), enters: bool = False) -> None:
        self.reader = reader
        self.last = reader.layers - 1
        """Where every pass ends: nothing above this layer's attention is run."""
        self.depths = Depths(reader) if enters else None
        self.factors: Sequence[float] = (1.0,)
        self.keeps = not reader.both_ways
        """Whether the beginning of a prompt can be kept; else every pass is a whole one."""
        self.proof = self._prove()
        self.factors = factors

    def begin(self, tokens: Int[Tensor, "one n"], on_logits: OnLogits | None = None) -> Beginning:
        """Run a prompt whole and keep what its end needs."""
        kept = Beginning(tokens.to(self.reader.device))
        self._run(kept.tokens, kept, None, on_logits)
        if self.depths is not None:
            kept.states = self.depths.states(kept.tokens)
        return kept

    def again(self, kept: Beginning, first: int, tokens: Int[Tensor, "batch end"], on_logits: OnLogits) -> None:
        """Run the prompt with other tokens from position `first` on."""
        tokens = tokens.to(self.reader.device)
        if not self.keeps:
            front = kept.tokens[:, :first].expand(len(tokens), -1)
            first, tokens = 0, torch.cat((front, tokens), dim=1)
        self._run(tokens, kept, first, on_logits)

    def enter(
        self,
        kept: Beginning,
        layer: int,
        first: int,
        states: Float[Tensor, "batch end width"],
        on_logits: OnLogits,
    ) -> None:
        """Run the model from a layer on, with other states entering it from position `first` on."""
        assert self.depths is not None
        assert kept.states is not None
        if not self.keeps:
            front = kept.states[layer, :, :first].expand(len(states), -1, -1)
            first, states = 0, torch.cat((front, states), dim=1)
        with self.depths.entered(layer, states):
            self._run(kept.tokens[:, first:].expand(len(states), -1), kept, first, on_logits)

    def _run(self, tokens: Tensor, kept: Beginning, first: int | None, on_logits: OnLogits | None) -> None:
        begins = first or 0
        n = begins + tokens.shape[1]
        places = torch.arange(begins, n, device=tokens.device).expand(len(tokens), -1)
        with self.reader.ready(), self._noting(kept, first, on_logits), short_tables(self.reader.sites, n):
            try:
                self.reader.model(tokens, position_ids=places, use_cache=False)
            except _Enough:
                return
        raise UnprovenError("the model ended before its last attention module")

    @contextmanager
    def _noting(self, kept: Beginning, first: int | None, on_logits: OnLogits | None) -> Iterator[None]:
        """A context in which modules attend over what was kept before `first`; without it, what they attend over is kept."""

        def hook(inputs: AttentionInput, attend: Attend) -> Tensor:
            layer = inputs.layer
            if first is None:
                inputs = replace(inputs, mask=_form(inputs.mask, inputs.key.shape[2]))
                kept.inputs[layer] = inputs.key, inputs.value, inputs.mask
            else:
                *before, mask = kept.inputs[layer]
                front = (part[:, :, :first].expand(len(inputs.key), -1, -1, -1) for part in before)
                end = (inputs.key, inputs.value)
                key, value = (torch.cat(pair, dim=2) for pair in zip(front, end, strict=True))
                inputs = replace(
                    inputs, key=key, value=value, mask=None if mask is None else mask[:, :, first:]
                )
            if on_logits is not None:
                on_logits(layer, self._logits(inputs))
            if layer == self.last:
                raise _Enough
            if inputs.mask is None and first and not looks_both_ways(self.reader.sites[layer].module):
                return attend_causally(inputs, attend, first)
            return attend(inputs)

        with intervening(self.reader.model, self.reader.sites, hook):
            yield

    def _logits(self, inputs: AttentionInput) -> Tensor:
        """The real logits of the last position, in float32 or better."""
        layer, key, mask = inputs.layer, inputs.key, inputs.mask
        factor, query = (
            self.factors[layer] if len(self.factors) > 1 else self.factors[0],
            inputs.query[:, :, -1],
        )
        width = torch.promote_types(query.dtype, torch.float32)
        grouped = query.to(width).unflatten(1, (key.shape[1], -1))  # [batch, key_heads, group, d]
        logits = (grouped @ key.to(width).mT).flatten(1, 2) * (inputs.scaling * factor)
        if inputs.softcap is not None:
            logits = inputs.softcap * torch.tanh(logits / inputs.softcap)
        problem = f"layer {layer}: NaN or infinity in the logits of a changed prompt"
        check_finite(logits, problem, self.reader.model)
        if mask is None:
            return logits
        row = mask[:, 0, -1, None]
        hidden = ~row if row.dtype == torch.bool else row <= torch.finfo(row.dtype).min / 2
        return logits.masked_fill(hidden, -torch.inf)

    def _prove(self) -> float:
        """The largest difference of an attention weight between what is noted and what the reader reads.

        Then, on the end of a prompt, between running it again and running the whole changed prompt; where it is too
        large, beginnings are not kept.
        """
        reader, tokens = self.reader, self.reader.proof_tokens
        half = tokens.shape[1] // 2
        changed = torch.cat((tokens[:, :half], tokens[:, half:].flip(1)), dim=1)
        allowed = max(TOLERANCE, 8 * torch.finfo(reader.model.dtype).eps)
        read: Noted = {}
        reader.read(
            changed, (tokens.shape[1] - 1,), lambda layer: read.update({layer.layer: layer.at(0).real()})
        )
        changed_whole: Noted = {}
        self.begin(changed, changed_whole.__setitem__)
        difference = _apart(read, changed_whole)
        if not difference <= allowed:
            raise UnprovenError(
                f"architecture '{reader.model.config.model_type}': what its attention modules were given is not what was "
                f"read ({difference:.2g} off, {allowed:g} allowed), so a changed prompt cannot be followed"
            )
        end: Noted = {}
        try:
            self.again(self.begin(tokens), half, changed[:, half:], end.__setitem__)
            self.keeps = self.keeps and _apart(changed_whole, end) <= allowed
        except (RuntimeError, ValueError, TypeError, IndexError):
            self.keeps = False
        return max(difference, _apart(changed_whole, end)) if self.keeps else difference


def attend_causally(inputs: AttentionInput, attend: Attend, first: int) -> Float[Tensor, "batch n heads d"]:
    """Queries at the end of a prompt, from position `first` on, see what does not come later; some queries after the others,
    so that no mask is larger than there is room for."""
    n, end = inputs.key.shape[2], inputs.query.shape[2]
    size = max(SMALLEST, ROOM // (MASK_BYTES * n))
    parts = []
    for begin in range(0, end, size):
        rows = torch.arange(begin, min(begin + size, end), device=inputs.key.device) + first
        stop = first + min(begin + size, end)
        visible = torch.arange(stop, device=inputs.key.device) <= rows[:, None]
        part = replace(
            inputs,
            query=inputs.query[:, :, begin : begin + size],
            key=inputs.key[:, :, :stop],
            value=inputs.value[:, :, :stop],
            mask=visible[None, None],
        )
        parts.append(attend(part))
    return torch.cat(parts, dim=1)


def _form(mask: Any, n: int) -> Tensor | None:
    """The mask of one prompt; a model that hides nothing but what comes later may have none."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        raise UnprovenError(f"an attention mask of an unknown form ({type(mask).__name__})")
    return mask[:1, :1, :, :n]


Noted = dict[int, Float[Tensor, "batch heads n"]]


def _apart(first: Noted, other: Noted) -> float:
    """The largest difference of an attention weight, sinks aside."""
    if first.keys() != other.keys():
        return float("inf")
    return max(float((attention_weights(first[k]) - attention_weights(other[k])).abs().max()) for k in first)


# Entering a model at a depth: states of our choosing go into a layer, and the model does the rest.
#
# The blocks before that layer are stepped over, so what a run costs is what is left of the model. Masks, rotation and
# the read-out stay the model's own. Making a `Depths` proves that nothing else passes from block to block: entered
# anywhere with the states it had there itself, the model must say what it says anyway.


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
        entering_states: list[Tensor] = []
        self._shapes = []

        def entering(module: Any, args: Any, kwargs: Any) -> None:
            entering_states.append(args[0] if args else kwargs["hidden_states"])

        def leaving(module: Any, args: Any, output: Any) -> None:
            # A block hands on its states alone or as the first of several things.
            self._shapes.append(len(output) if isinstance(output, tuple) else 0)
            if module is self.reader.blocks[-1]:
                entering_states.append(output[0] if isinstance(output, tuple) else output)

        with ExitStack() as stack:
            for block in self.reader.blocks:
                stack.callback(block.register_forward_pre_hook(entering, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(leaving).remove)
            self.reader.read(tokens)
        return torch.stack([state.to(entering_states[0].device) for state in entering_states])

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
        if visit is not None and any(bool((mask != mask[:1]).any()) for mask in visible.values()):
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

        def hiding(module: Any, args: Any, kwargs: Any, visible_keys: Tensor) -> tuple[Any, Any]:
            call = Call.bind(module, args, kwargs)
            rows = torch.arange(visible_keys.shape[-1], device=call.hidden.device)
            shown = call.visible(rows, module) & visible_keys.to(call.hidden.device)
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
                    hook = partial(hiding, visible_keys=visible[site.layer])
                    stack.callback(site.module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            yield
