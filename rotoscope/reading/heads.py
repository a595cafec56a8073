"""Reading every head of a running model, one layer at a time.

A `HeadReader` finds the attention modules of a model, learns how their heads rotate, and proves that it did:
it permutes what a module attends over, lets the model compute its own attention, and compares that with what
the counterfactual logits predict. Afterwards `read` runs the model once and hands over one layer after the
other; nothing of a layer is kept.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from rotoscope.errors import TaskError, UnprovenError
from rotoscope.maths.attention import attention_weights
from rotoscope.maths.rotation import turn
from rotoscope.reading.finite import check_logits, watched
from rotoscope.reading.layout import Layout, find_layout
from rotoscope.reading.sites import Call, Site, attending, find_sites, readable_attention, short_tables
from rotoscope.reading.threads import one_thread
from rotoscope.shapes import Bool, Float, Tensor

PROOF_TOKENS = 24
PROOF_TOLERANCE = 1e-4
SMALL = 256
"""Up to this width of the residual stream a CPU computes with one thread: several would mostly wait for each other."""


@dataclass(frozen=True)
class LayerHeads:
    """One layer's un-rotated queries and keys, float32 or better, dimensions arranged by plane."""

    layer: int
    query: Float[Tensor, "batch key_heads group queries d"]
    keys: Float[Tensor, "batch key_heads n d"]
    cos: Float[Tensor, "n planes"]
    sin: Float[Tensor, "n planes"]
    visible: Bool[Tensor, "queries n"]
    positions: tuple[int, ...]
    """Where the queries stand."""
    scaling: float
    softcap: float | None
    sinks: Float[Tensor, "heads"] | None
    layout: Layout
    residual: Float[Tensor, "batch n width"] | None = None
    """The residual stream that enters the layer, where it could be seen."""

    @property
    def residual_norm(self) -> Float[Tensor, "batch n"] | None:
        """How large the residual stream is at every position."""
        return None if self.residual is None else self.residual.float().norm(dim=-1)

    def real(self) -> Float[Tensor, "batch heads queries n"]:
        """The real logits of all query positions at once; hidden positions are -inf."""
        rows = torch.tensor(self.positions, device=self.cos.device)
        query = self._turned(self.query, self.cos[rows], self.sin[rows]).flatten(2, 3)
        products = (
            query @ self._turned(self.keys, self.cos, self.sin).mT
        )  # [batch, key_heads, group * queries, n]
        logits = self.capped(self.scaling * products.unflatten(2, self.query.shape[2:4]).flatten(1, 2))
        return logits.masked_fill(~self.visible, -torch.inf)

    def attention(self) -> Float[Tensor, "batch heads queries n"]:
        """The attention weights of all query positions at once."""
        return attention_weights(self.real(), None if self.sinks is None else self.sinks[:, None])

    def part(self, rows: slice) -> LayerHeads:
        """The same heads at some of the query positions, where all at once would be too many."""
        query, visible, positions = self.query[:, :, :, rows], self.visible[rows], self.positions[rows]
        return replace(self, query=query, visible=visible, positions=positions)

    def _turned(self, vectors: Tensor, cos: Tensor, sin: Tensor) -> Float[Tensor, "... d"]:
        """Vectors [..., positions, d] as they stand at their positions."""
        pairs, rest = vectors.split((2 * self.layout.planes, self.layout.remainder), dim=-1)
        turned = turn(pairs.unflatten(-1, (-1, 2)), cos.to(pairs), sin.to(pairs)).flatten(-2)
        return torch.cat((turned, rest), dim=-1)

    def capped(self, logits: Tensor) -> Tensor:
        """Logits under the model's soft-cap, where it has one."""
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def at(self, index: int) -> QueryHeads:
        """What the heads do at one of the query positions."""
        return QueryHeads(self, index)


@dataclass(frozen=True)
class QueryHeads:
    """All heads of a layer at one query: their counterfactual logits, as a whole or entry by entry."""

    heads: LayerHeads
    index: int

    @property
    def position(self) -> int:
        """Where the query stands."""
        return self.heads.positions[self.index]

    @cached_property
    def keys(self) -> Float[Tensor, "batch key_heads n d"]:
        """The un-rotated keys up to the query."""
        return self.heads.keys[:, :, : self.position + 1]

    @cached_property
    def visible(self) -> Bool[Tensor, "n"]:
        """Which of these positions the query may see."""
        return self.heads.visible[self.index, : self.position + 1]

    @cached_property
    def seen(self) -> Float[Tensor, "batch key_heads n group d"]:
        """The query as seen from every key position, scaled: turned by the angle between the two.

        The relative angle comes from the model's own tables, so a model that rounds its cosines is read as
        it is.
        """
        heads, i = self.heads, self.position
        cos, sin = heads.cos.double(), heads.sin.double()
        relative_cos = cos[i] * cos[: i + 1] + sin[i] * sin[: i + 1]  # [n, planes]
        relative_sin = sin[i] * cos[: i + 1] - cos[i] * sin[: i + 1]
        query = heads.query[:, :, :, self.index] * heads.scaling  # [batch, key_heads, group, d]
        width = 2 * heads.layout.planes
        pairs = query[..., None, :, :width].unflatten(-1, (-1, 2))  # [batch, key_heads, 1, group, planes, 2]
        turned = turn(
            pairs, relative_cos.to(query.dtype)[:, None], relative_sin.to(query.dtype)[:, None]
        ).flatten(-2)
        rest = query[..., None, :, width:].expand(*turned.shape[:-1], heads.layout.remainder)
        return torch.cat((turned, rest), dim=-1)

    @cached_property
    def sinks(self) -> Float[Tensor, "batch heads"] | None:
        """Logits that only draw attention (gpt_oss), where the model has them."""
        if self.heads.sinks is None:
            return None
        return self.heads.sinks.expand(self.keys.shape[0], -1)

    def real(self, *, capped: bool = True) -> Float[Tensor, "batch heads n"]:
        """The head's real logits, with or without the model's soft-cap; hidden positions are -inf."""
        logits = self.heads.capped(self._products) if capped else self._products
        return logits.masked_fill(~self.visible, -torch.inf)

    @cached_property
    def _products(self) -> Tensor:
        return (self.keys[:, :, :, None] * self.seen).sum(-1).movedim(3, 2).flatten(1, 2)

    def planes(self) -> list[tuple[Tensor, Tensor]]:
        """Seen queries and keys [batch * heads, n, planes, width] of the rotating planes, and of the remainder.

        The first pair holds the planes of frequency ids 1, 2, ...; the second, where some dimensions do not rotate,
        holds them as one plane. Either may be missing.
        """
        width, group = 2 * self.heads.layout.planes, self.seen.shape[3]
        seen = self.seen.movedim(3, 2).flatten(0, 2)  # [batch * heads, n, d]
        keys = self.keys[:, :, None].expand(-1, -1, group, -1, -1).flatten(0, 2)
        parts = []
        if width:
            parts.append(tuple(x[..., :width].unflatten(-1, (-1, 2)) for x in (seen, keys)))
        if self.heads.layout.remainder:
            parts.append(tuple(x[..., None, width:] for x in (seen, keys)))
        return parts

    def gather(self, positions: Tensor, contents: Tensor) -> Float[Tensor, "batch heads offsets a b"]:
        """Entries A[position, content], offset by offset; see `maths.blocks.Gather`."""
        seen = self.seen[:, :, positions]  # [batch, key_heads, offsets, a, group, d]
        keys = self.keys[:, :, contents]  # [batch, key_heads, offsets, b, d]
        rows, group = seen.shape[3], seen.shape[4]
        logits = seen.flatten(3, 4) @ keys.mT  # [batch, key_heads, offsets, a * group, b]
        logits = logits.unflatten(3, (rows, group)).movedim(4, 2).flatten(1, 2)
        logits = self.heads.capped(logits)
        hidden = ~self.visible[positions]
        return logits.masked_fill(hidden[:, :, None], -torch.inf) if bool(hidden.any()) else logits

    def logits(self) -> Float[Tensor, "batch heads n n"]:
        """The whole counterfactual logit matrix A[p, c] of every head."""
        everything = torch.arange(self.position + 1, device=self.keys.device)[None]
        return self.gather(everything, everything)[:, :, 0]


def _parents(model: Any, sites: list[Site]) -> list[Any]:
    """The decoder block around each attention module: what enters it is the residual stream."""
    names = {id(module): name for name, module in model.named_modules()}
    return [model.get_submodule(names[id(site.module)].rpartition(".")[0]) for site in sites]


Visit = Callable[[LayerHeads], None]
OnCall = Callable[[Site, Call], None]


class HeadReader:
    """Reads the heads of one model. Making it proves, layer by layer, that the reading is right."""

    def __init__(self, model: Any, *, prove: bool = True, seed: int = 0) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        generator = torch.Generator().manual_seed(seed)
        vocabulary = int(model.config.get_text_config().vocab_size)
        length = min(PROOF_TOKENS, self.positions or PROOF_TOKENS)
        self.proof_tokens = torch.randint(0, vocabulary, (1, length), generator=generator).to(self.device)
        self.layouts: list[Layout] = []
        self.head_counts: list[int] = []
        self.proof: list[float] = []
        with self.ready():
            self.sites = find_sites(model, self.proof_tokens)
            self.blocks = _parents(model, self.sites)
            eager: list[Call] = []
            if prove:
                with attending(model, "eager"):
                    self._run(self.proof_tokens, lambda _, call: eager.append(call))
            self._run(self.proof_tokens, lambda site, call: self._learn(site, call, eager))
        if len(self.layouts) != len(self.sites):
            raise UnprovenError(
                f"found {len(self.sites)} attention modules but only {len(self.layouts)} were called"
            )

    @property
    def positions(self) -> int | None:
        """How many tokens the model can be shown; None where its configuration does not say."""
        longest: int | None = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return longest

    @property
    def _small(self) -> bool:
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
    ) -> Float[Tensor, "batch kept vocabulary"]:
        """Run the model once on tokens [batch, n]; `visit` gets one layer after the other.

        Returns the model's own next-token logits at the positions to `keep`.
        """
        n = tokens.shape[1]
        longest = self.positions
        if longest is not None and n > longest:
            raise TaskError(
                f"a prompt of {n} tokens is longer than the model's context of {longest}; "
                "use fewer pairs or a shorter text"
            )
        on_call: OnCall | None = None
        if visit is not None:
            on_call = lambda site, call: visit(self._heads(site, call, queries))  # noqa: E731
        with self.ready():
            return self._run(tokens.to(self.device), on_call, keep)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """The model without dropout and gradients, attending in a way that can be read; left as it was."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), one_thread(self._small), readable_attention(self.model):
                yield
        finally:
            self.model.train(was_training)

    def _run(self, tokens: Tensor, on_call: OnCall | None, keep: tuple[int, ...] = (-1,)) -> Tensor:
        handles = []
        self._residual: dict[int, Tensor] = {}
        for layer, (block, site) in enumerate(zip(self.blocks, self.sites, strict=True)):
            if on_call is None:
                break

            def note(module: Any, args: Any, kwargs: Any, layer: int = layer) -> None:
                hidden = args[0] if args else kwargs.get("hidden_states")
                if isinstance(hidden, Tensor):
                    self._residual = {layer: hidden}

            def hook(module: Any, args: Any, kwargs: Any, output: Any, site: Site = site) -> None:
                on_call(site, Call.bind(module, args, kwargs))

            handles.append(block.register_forward_pre_hook(note, with_kwargs=True))
            handles.append(site.module.register_forward_hook(hook, with_kwargs=True))
        options: dict[str, Any] = {"use_cache": False}
        positions = torch.tensor(keep or (-1,), device=tokens.device)
        trims = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        if trims:
            options["logits_to_keep"] = positions % tokens.shape[1]
        try:
            with short_tables(self.sites, tokens.shape[1]), watched(self.blocks):
                output = self.model(tokens, **options)
        finally:
            self._residual = {}
            for handle in handles:
                handle.remove()
        logits: Tensor = output.logits if trims else output.logits[:, positions]
        return check_logits(logits, self.model)[:, : len(keep)]

    def _learn(self, site: Site, call: Call, eager: list[Call]) -> None:
        layout = find_layout(site, call)
        self.layouts.append(layout)
        self.head_counts.append(site.project_unrotated(call).query.shape[1])
        if eager:
            self.proof.append(self.prove_layer(site, call, eager[site.layer]))

    def _heads(self, site: Site, call: Call, queries: tuple[int, ...]) -> LayerHeads:
        layout = self.layouts[site.layer]
        projected = site.project_unrotated(call)
        cos, sin = site.rotation(call)
        width = torch.promote_types(projected.query.dtype, torch.float32)
        order = layout.order.to(projected.query.device)
        rows = torch.tensor(queries, device=projected.query.device)
        query = projected.query[:, :, rows][..., order].to(width)
        keys = projected.key[..., order].to(width)
        columns = layout.columns.to(cos.device)
        return LayerHeads(
            layer=site.layer,
            query=query.unflatten(1, (keys.shape[1], -1)),
            keys=keys,
            cos=cos[:, columns],
            sin=sin[:, columns],
            visible=call.visible(rows.to(call.hidden.device)).to(keys.device),
            positions=queries,
            scaling=projected.scaling,
            softcap=projected.softcap,
            sinks=None if projected.sinks is None else projected.sinks.to(width),
            layout=layout,
            residual=self._residual.get(site.layer),
        )

    def prove_layer(self, site: Site, call: Call, eager: Call) -> float:
        """Permute the module's input, let the model attend, and compare with what was read.

        The model attends in its own eager code under the mask it made itself (`eager`); the prediction comes from the
        call as it will be read. Returns the largest difference of an attention weight, predicted from A and from the
        keys themselves. Comparing without a permutation would prove nothing: un-rotating and re-rotating cancel.
        Half-precision modules are proven on a float32 copy.
        """
        if call.hidden.dtype in (torch.bfloat16, torch.float16):
            site = replace(site, module=copy.deepcopy(site.module).float())
            call = replace(call, arguments=dict(call.arguments, hidden_states=call.hidden.float()))
        n = call.hidden.shape[1]
        generator = torch.Generator().manual_seed(site.layer)
        shuffled = torch.cat((torch.randperm(n - 1, generator=generator), torch.tensor([n - 1])))
        shuffled = shuffled.to(call.hidden.device)
        own = site.attend(eager, call.hidden[:, shuffled])[:, :, -1].float()
        heads = self._heads(site, call, (n - 1,))
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
