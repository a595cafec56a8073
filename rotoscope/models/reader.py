"""Reading every head of a running model, one layer at a time.

A `HeadReader` finds the attention modules of a model, learns how their heads rotate, and proves that it did:
it permutes what a module attends over, lets the model compute its own attention, and compares that with what
the counterfactual logits predict. Afterwards `read` runs the model once and hands over one layer after the
other; nothing of a layer is kept.

Where turning them back gives the un-rotated queries and keys, they are taken out of the forward pass itself, on their way
to the attention function. Where it does not, each attention module is called again with other rotation tables.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rotoscope.errors import TaskError, UnprovenError
from rotoscope.models.chunks import Chunks, Pass, chunk_size, same_in_chunks
from rotoscope.models.devices import alone, one_thread
from rotoscope.models.interventions import AttentionInput, changing
from rotoscope.models.layer import LayerReading, Rotation, dead_planes, find_layouts
from rotoscope.models.offloading import check_whole, computes_on, offloads, put_back
from rotoscope.models.proofs import Reading, recall, remember
from rotoscope.models.rope import context_length
from rotoscope.models.sites import (
    Call,
    Projected,
    RotaryTableSite,
    Site,
    attending,
    blocks_around,
    find_sites,
    looks_both_ways,
    names_of,
    precise,
    readable_attention,
    short_tables,
    sites_of,
)
from rotoscope.models.weight_check import Watch, check_buffers, check_finite, check_logits, watched
from rotoscope.scores.attention import attention_weights
from rotoscope.shapes import Float, Tensor

PROOF_TOKENS = 24
PROOF_TOLERANCE = 1e-4
SMALL = 256
"""Up to this width of the residual stream a CPU computes with one thread: several would mostly wait for each other."""
STOPPED = "rotoscope_stopped"
"""The mark of a model whose planes were stopped for good, and the beginning of what transformers calls its attention."""
NO_NUMBERS = "layer {layer}: NaN or infinity in the model's queries or keys"


def _again(site: Site, call: Call, model: Any) -> Projected:
    """Un-rotated queries and keys from calling a module again; all of them numbers."""
    projected = site.project_unrotated(call)
    for numbers in (projected.query, projected.key):
        check_finite(numbers, NO_NUMBERS.format(layer=site.layer), site.module, model)
    return projected


Visit = Callable[[LayerReading], None]
OnCall = Callable[[Site, Call], None]
OnGiven = Callable[[Site, Call, Projected, Any], None]
CALLED: Any = object()
"""The mask that a module was called with."""


def check_readable(model: Any) -> None:
    """Refuse a model that is not whole, holds NaN, or does not attend as its weights say."""
    if getattr(model, STOPPED, False):
        raise UnprovenError(
            "planes of this model have been stopped (stop_planes), and what would be read are its heads as they were before: load "
            "the model again"
        )
    check_whole(model)
    check_buffers(model)


class HeadReader:
    """Reads the heads of one model. Making it proves, layer by layer, that the reading is right."""

    def __init__(
        self,
        model: Any,
        *,
        prove: bool | None = None,
        identity: str = "",
        like: HeadReader | None = None,
        seed: int = 0,
    ) -> None:
        """`identity` is the model's; where it was proven before, it is not proven again unless `prove` is True.

        `like` reads a model of the same class and configuration: what it has learned holds for this one.
        """
        check_readable(model)
        self.model = model
        self.device = computes_on(model)
        self.offloads = offloads(model)
        """Whether weights are brought in for the time of a call, and have to be taken out again where one is cut short."""
        self._modules = list(model.modules())
        self.proof_tokens = self._random_tokens(seed)
        self._chunks: bool | None = None
        """Whether a prompt reads the same in chunks; None until that was tried."""
        recalled = recall(model, identity) if identity and prove is None else None
        if like is not None:
            recalled = replace(like.reading, proof=[])
        if recalled is not None:
            self.sites = sites_of(model, recalled.modules, from_table=recalled.from_table)
            self._take(recalled)
        else:
            with self.ready():
                self._learn(prove=prove is not False)
            if identity and self.proof:
                remember(model, identity, self.reading)
        self.blocks = blocks_around(model, self.sites)

    def _learn(self, *, prove: bool) -> None:
        """Find the attention modules, how their heads rotate, and prove it, unless that is not asked for."""
        self.sites = find_sites(self.model, self.proof_tokens)
        self.blocks = blocks_around(self.model, self.sites)
        eager: list[Call] = []
        if prove:
            with attending(self.model, "eager"):
                eager = self._calls()
        calls = self._calls()
        unrotated = [_again(site, call, self.model) for site, call in zip(self.sites, calls, strict=True)]
        layouts = find_layouts(self.sites, calls)
        self._take(
            Reading(
                modules=names_of(self.model, self.sites),
                from_table=isinstance(self.sites[0], RotaryTableSite),
                layouts=layouts,
                head_counts=[projected.query.shape[1] for projected in unrotated],
                key_head_counts=[projected.key.shape[1] for projected in unrotated],
                dead_planes=list(map(dead_planes, unrotated, layouts)),
                direct=True,
                both_ways=False,
                proof=[],
            )
        )
        for k, site in enumerate(self.sites):
            self._prove(site, calls[k], eager[k] if prove else None)

    def _take(self, reading: Reading) -> None:
        self._names, self._from_table = reading.modules, reading.from_table
        self.layouts = reading.layouts
        self.head_counts, self.key_head_counts = reading.head_counts, reading.key_head_counts
        self.dead_planes = reading.dead_planes
        """For every layer, the frequency ids that add nothing to any logit."""
        self.direct = reading.direct
        """Whether queries and keys come out of the forward pass itself; else modules are called again."""
        self.both_ways = reading.both_ways
        """Whether a position attends to later ones too, as in an encoder: then only the last can be asked for."""
        self.proof = reading.proof

    @property
    def reading(self) -> Reading:
        """What was learned of the model."""
        return Reading(
            modules=self._names,
            from_table=self._from_table,
            layouts=self.layouts,
            head_counts=self.head_counts,
            key_head_counts=self.key_head_counts,
            dead_planes=self.dead_planes,
            direct=self.direct,
            both_ways=self.both_ways,
            proof=self.proof,
        )

    def _random_tokens(self, seed: int) -> Tensor:
        """The tokens of the proof [1, n]."""
        generator = torch.Generator().manual_seed(seed)
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        length = min(PROOF_TOKENS, self.positions or PROOF_TOKENS)
        return torch.randint(0, vocabulary, (1, length), generator=generator).to(self.device)

    @property
    def warnings(self) -> list[str]:
        """Sentences about this model's heads that belong into everything that is read from them."""
        dead = [f"{layer}: {', '.join(map(str, ids))}" for layer, ids in enumerate(self.dead_planes) if ids]
        ids = "; ".join(dead)
        sentence = "in some rotation planes the queries or the keys of all heads are 0, so these planes add nothing to any logit"
        return [f"{sentence}. Their frequency ids, layer by layer, are {ids}"] if dead else []

    @property
    def way(self) -> str:
        """How queries and keys are read, in words."""
        return "out of the forward pass" if self.direct else "by calling each module again"

    @property
    def predicts(self) -> bool:
        """Whether the model says what comes next: it has a head for that, and does not see what comes next."""
        return not self.both_ways and self.model.can_generate()

    def check_predicts(self, advice: str) -> None:
        """Refuse `what`, a thing that takes the model's next token, of a model that has none."""
        if not self.predicts:
            raise TaskError(f"{self.no_answers}; {advice}")

    @property
    def no_answers(self) -> str:
        """Why nothing can be said about the model's answers."""
        kind = type(self.model).__name__
        reason = "sees what comes next" if self.both_ways else "has no head that says what comes next"
        return f"{kind} {reason}, so it gives no answers"

    @property
    def positions(self) -> int | None:
        """How many tokens the model can be shown; None where its configuration does not say."""
        return context_length(self.model.config.get_text_config())

    @property
    def small(self) -> bool:
        """Whether a CPU is done sooner with one thread."""
        width = int(getattr(self.model.config.get_text_config(), "hidden_size", SMALL + 1))
        return self.device.type == "cpu" and width <= SMALL

    @property
    def layers(self) -> int:
        """How many attention modules were found and proven."""
        return len(self.sites)

    def read(
        self,
        tokens: Tensor,
        queries: tuple[int, ...] = (),
        visit: Visit | None = None,
        keep: tuple[int, ...] = (-1,),
        size: int | None = 0,
    ) -> Float[Tensor, "batch kept vocabulary"]:
        """Run the model once on tokens [batch, n]; `visit` gets one layer after the other.

        Returns the model's own next-token logits at the positions to `keep`; of a model without a head, its last states.
        So many tokens as `size` says run at a time: 0 for all of them, None for as many as memory asks for (`chunks`).
        """
        n = tokens.shape[1]
        longest = self.positions
        if longest is not None and n > longest:
            raise TaskError(
                f"a prompt of {n} tokens is longer than the model's context of {longest}; "
                "use fewer pairs or a shorter text"
            )
        if self.both_ways and any(query != n - 1 for query in queries):
            raise TaskError(
                f"{type(self.model).__name__} attends to later positions as well, and a query is scored with what comes before "
                f"it: only the last position, {n - 1}, can be a query; put what is asked at the end of the prompt"
            )
        shared = Pass(queries)

        def attended(site: Site, call: Call, inputs: Projected, mask: Any) -> None:
            visit(self._heads(site, call, inputs, shared, turned=True, mask=mask))  # type: ignore[misc]

        def returned(site: Site, call: Call) -> None:
            visit(self._heads(site, call, _again(site, call, self.model), shared, turned=False))  # type: ignore[misc]

        tokens = tokens.to(self.device)
        with self.ready():
            if size is None:
                size = self._chunk(n)
            if size:
                return Chunks(self, n, tuple(queries), visit).run(tokens, keep, size)
            if visit is None:
                return self._run(tokens, keep)
            if self.direct:
                return self._run(tokens, keep, on_given=attended)
            return self._run(tokens, keep, on_call=returned)

    @property
    def trims(self) -> bool:
        """Whether the model can be told at which positions its logits are wanted."""
        return "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def _chunk(self, n: int) -> int:
        """Tokens at a time for a prompt of n; 0 for all, also where chunks would be read otherwise."""
        size = chunk_size(self, n) if self.direct and not self.both_ways else None
        if size and self._chunks is None:
            self._chunks = same_in_chunks(self)
        return size if size and self._chunks else 0

    @contextmanager
    def ready(self) -> Iterator[None]:
        """The model without dropout and gradients, attending in a way that can be read; left as it was."""
        with (
            alone(self.model),
            self._without_dropout(),
            torch.no_grad(),
            one_thread(self.small),
            readable_attention(self.model, self._modules),
        ):
            yield

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        was, training = self.model.training, {module for module in self._modules if module.training}
        if training:
            self.model.eval()
        try:
            yield
        finally:
            if self.offloads:
                put_back(self.model)
            if training:
                self.model.train(was)
                for module in self._modules:
                    module.training = module in training

    def _run(
        self,
        tokens: Tensor,
        keep: tuple[int, ...] = (-1,),
        *,
        on_call: OnCall | None = None,
        on_given: OnGiven | None = None,
    ) -> Tensor:
        """One pass of the model. `on_call` is shown every call of an attention module once it has returned, `on_given`
        what the module attends with, on its way there."""
        self._residual: dict[int, Tensor] = {}
        calls: dict[int, Call] = {}
        watch = Watch(self.model)

        def entering(layer: int, module: Any, args: Any, kwargs: Any) -> None:
            hidden = args[0] if args else kwargs.get("hidden_states")
            if isinstance(hidden, Tensor):
                self._residual = {layer: hidden}

        def called(site: Site, module: Any, args: Any, kwargs: Any) -> None:
            calls[site.layer] = Call.bind(module, args, kwargs)

        def returned(site: Site, module: Any, args: Any, kwargs: Any, output: Any) -> None:
            on_call(site, Call.bind(module, args, kwargs))  # type: ignore[misc]

        def attended(inputs: AttentionInput) -> AttentionInput:
            site = self.sites[inputs.layer]
            if inputs.key.device.type == "cpu":  # elsewhere the states that come of them are looked at
                for numbers in (inputs.query, inputs.key):
                    watch.look(numbers, NO_NUMBERS.format(layer=inputs.layer), site.module)
            on_given(site, calls.pop(inputs.layer), inputs, inputs.mask)  # type: ignore[misc]
            return inputs

        options: dict[str, Any] = {"use_cache": False}
        positions = torch.tensor(
            keep or (-1,)
        )  # on the CPU: the model may end on another device than it begins
        trims = self.trims
        if trims:
            options["logits_to_keep"] = positions % tokens.shape[1]
        with ExitStack() as stack:
            for block, site in zip(self.blocks, self.sites, strict=True):
                hooks: list[Any] = []
                if on_call is not None or on_given is not None:
                    hooks.append(
                        block.register_forward_pre_hook(partial(entering, site.layer), with_kwargs=True)
                    )
                if on_call is not None:
                    hooks.append(site.module.register_forward_hook(partial(returned, site), with_kwargs=True))
                if on_given is not None:
                    hooks.append(site.module.register_forward_pre_hook(partial(called, site), with_kwargs=True))
                for hook in hooks:
                    stack.callback(hook.remove)
            if on_given is not None:
                stack.enter_context(changing(self.model, self.sites, attended))
            stack.enter_context(short_tables(self.sites, tokens.shape[1]))
            stack.enter_context(watched(self.blocks, watch))
            output = self.model(tokens, **options)
        self._residual = {}
        watch.settle()
        logits: Tensor = output.logits if hasattr(output, "logits") else output[0]
        return check_logits(logits if trims else logits[:, positions], self.model)[:, : len(keep)]

    def _calls(self) -> list[Call]:
        """The call of every attention module in a pass over the tokens of the proof."""
        calls: dict[int, Call] = {}
        self._run(self.proof_tokens, on_call=lambda site, call: calls.update({site.layer: call}))
        if len(calls) != len(self.sites):
            raise UnprovenError(f"found {len(self.sites)} attention modules but only {len(calls)} were called")
        return [calls[site.layer] for site in self.sites]

    def _prove(self, site: Site, call: Call, eager: Call | None) -> None:
        site, call = precise(site, call)
        direct = self._turns_back(site, call)
        self.direct = self.direct and direct
        if eager is not None:
            self.proof.append(self.prove_layer(site, call, eager, direct=direct))

    def _turns_back(self, site: Site, call: Call) -> bool:
        """Whether what the module attends with, turned back, is what it has before it turns it."""
        n = call.hidden.shape[1]
        readings = [
            self._heads(site, call, site.project(call, *site.rotation(call)), Pass(range(n)), turned=True),
            self._heads(site, call, site.project_unrotated(call), Pass(range(n)), turned=False),
        ]
        self.both_ways = self.both_ways or bool(readings[0].visible.triu(1).any())
        return all(
            float((back - still).abs().max()) <= PROOF_TOLERANCE * float(still.abs().max())
            for back, still in ((readings[0].query, readings[1].query), (readings[0].keys, readings[1].keys))
        )

    def _heads(
        self, site: Site, call: Call, projected: Projected, shared: Pass, *, turned: bool, mask: Any = CALLED
    ) -> LayerReading:
        """A layer's heads at the queries of a pass, from what its module attends with (`turned`) or has before it turns it."""
        device = projected.key.device
        rotation = shared.rotation(site, call, self.layouts[site.layer])
        mask, both_ways = call.mask if mask is CALLED else mask, looks_both_ways(site.module)
        visible = shared.visible(mask, projected.key.shape[2], device, both_ways)
        at_rows = replace(projected, query=projected.query[:, :, shared.rows(device)])
        heads = self.arranged(site.layer, at_rows, shared, rotation, visible, turned=turned)
        return replace(heads, residual=self._residual.get(site.layer))

    def arranged(
        self,
        layer: int,
        projected: Projected,
        shared: Pass,
        rotation: Rotation,
        visible: tuple[Tensor, tuple[bool, ...]],
        *,
        turned: bool,
    ) -> LayerReading:
        """The heads of a layer from the keys of a prompt and its queries at the rows of a pass."""
        layout, device = self.layouts[layer], projected.key.device
        width = torch.promote_types(projected.query.dtype, torch.float32)
        order = shared.order(layout, device)
        query, keys = projected.query[..., order].to(width), projected.key[..., order].to(width)
        if turned:
            query, keys = rotation.back(query, shared.rows(device)), rotation.back(keys)
        return LayerReading(
            layer=layer,
            query=query.unflatten(1, (keys.shape[1], -1)),
            keys=keys,
            rotation=rotation,
            visible=visible[0],
            hides=visible[1],
            positions=shared.queries,
            scaling=projected.scaling,
            softcap=projected.softcap,
            sinks=None if projected.sinks is None else projected.sinks.to(width),
            layout=layout,
        )

    def prove_layer(self, site: Site, call: Call, eager: Call, *, direct: bool) -> float:
        """Permute the module's input, let the model attend, and compare with what was read.

        The model attends in its own eager code under the mask it made itself (`eager`); the prediction comes from the
        call as it will be read. Returns the largest difference of an attention weight, predicted from A and from the
        keys themselves. Comparing without a permutation would prove nothing: un-rotating and re-rotating cancel.
        `direct` says that queries and keys are taken as the module attends with them, and turned back.
        """
        n = call.hidden.shape[1]
        generator = torch.Generator().manual_seed(site.layer)
        shuffled = torch.cat((torch.randperm(n - 1, generator=generator), torch.tensor([n - 1])))
        shuffled = shuffled.to(call.hidden.device)
        weights = site.attend(eager, call.hidden[:, shuffled])
        self.both_ways = self.both_ways or bool(weights.triu(1).any())
        own = weights[:, :, -1].float()
        projected = site.project(call, *site.rotation(call)) if direct else site.project_unrotated(call)
        heads = self._heads(site, call, projected, Pass((n - 1,)), turned=direct)
        query = heads.at(0)
        positions = torch.arange(n, device=shuffled.device)
        moved = query.logits()[:, :, positions, shuffled]  # content shuffled[p] at position p
        predicted = (
            attention_weights(moved, query.sinks),
            replace(heads, keys=heads.keys[:, :, shuffled]).attention()[:, :, 0],
        )
        difference = float(max((own - weights.float()).abs().max() for weights in predicted))
        if not difference <= PROOF_TOLERANCE:
            raise UnprovenError(
                f"architecture '{self.model.config.model_type}', layer {site.layer}: the model's own attention "
                f"after a permutation differs from what was read by {difference:.2g} "
                f"(allowed {PROOF_TOLERANCE:g}); its scores would be wrong, so none are given"
            )
        return difference
