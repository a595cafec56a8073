"""Long prompts that run through a model piece by piece, its cache holding what came before.

Some models need a row of numbers for every pair of positions when they run a prompt whole: a mask, where a window hides part of
the prompt from a layer, or the attention weights themselves, where they attend eagerly. At 131,072 tokens that is more memory
than there is. So the prompt is cut into chunks that run one after the other, each over the keys and values that the model's own
cache keeps of the others. The last chunk attends over all keys: there each layer is handed over, as by a whole pass.

Whether a model reads the same in chunks is tried on it before it is relied upon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rotoscope.models.interventions import AttentionInput, changing
from rotoscope.models.layer import LayerReading, Layout, Rotation
from rotoscope.models.sites import Call, Projected, Site, looks_both_ways, short_tables, visible_under
from rotoscope.models.weight_check import Watch, check_logits, watched
from rotoscope.scores.attention import attention_weights
from rotoscope.shapes import Tensor

if TYPE_CHECKING:
    from rotoscope.models.reader import HeadReader


ROOM = 2**30
"""Bytes that the masks of one call may take."""
MASK_BYTES = 8
"""What a pair of positions takes in masks that are made of one another."""
SMALLEST = 64
"""Positions that are looked at together, at least."""
WEIGHT_BYTES = 12
"""What a pair of positions takes of a head's attention, in float32 with copies."""
WINDOWS = ("sliding_window", "attention_chunk_size")
TRIED = 7
"""Tokens of a chunk when it is tried whether chunks give the same."""
TOLERANCE = 1e-4


def chunk_size(reader: HeadReader, n: int) -> int | None:
    """How many tokens of a prompt of n run at a time; None where all of them can."""
    config = reader.model.config.get_text_config()
    windows = [getattr(config, name, None) for name in WINDOWS]
    if reader.model.config._attn_implementation == "eager":
        pair_bytes = WEIGHT_BYTES * n * max(reader.head_counts)
    elif any(isinstance(window, int) and window < n for window in windows):
        pair_bytes = MASK_BYTES * n
    else:
        return None
    size = max(SMALLEST, ROOM // pair_bytes)
    return size if size < n else None


def same_in_chunks(reader: HeadReader) -> bool:
    """Whether every layer of a model attends at the end of a prompt as it does when the prompt runs whole."""
    tokens = reader.proof_tokens
    last = tokens.shape[1] - 1
    allowed = max(TOLERANCE, 8 * torch.finfo(reader.model.dtype).eps)
    weights: list[dict[int, Tensor]] = [{}, {}]

    def noting(noted: dict[int, Tensor]) -> Callable[[LayerReading], None]:
        def visit(layer: LayerReading) -> None:
            noted[layer.layer] = attention_weights(layer.at(1).real())

        return visit

    queries = (last // 2, last)
    try:
        logits = reader.read(tokens, queries, noting(weights[0]), size=0)
        parts = reader.read(tokens, queries, noting(weights[1]), size=TRIED)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError):
        return False
    if weights[0].keys() != weights[1].keys():
        return False
    apart = max(float((weights[0][layer] - weights[1][layer]).abs().max()) for layer in weights[0])
    difference = float((logits.float() - parts.float()).abs().max() / logits.float().abs().max().clamp(min=1.0))
    return max(apart, difference) <= allowed


class Chunks:
    """One prompt, or several of one length, in chunks."""

    def __init__(self, reader: HeadReader, n: int, queries: tuple[int, ...], visit: Any) -> None:
        self.reader, self.n, self.visit = reader, n, visit
        self.shared = Pass(queries)
        self.first = self.stop = 0
        """Where the chunk that runs begins and ends."""
        self.calls: dict[int, Call] = {}
        self.tables: dict[int, list[tuple[Tensor, Tensor]]] = {}
        """Of every layer, the rotation tables of the chunks; layers share them."""
        self.norms: dict[int, list[Tensor]] = {}
        self.query: dict[int, list[Tensor]] = {}
        self.seen: dict[int, list[Tensor]] = {}
        """What the queries may see, those of one chunk after those of the other."""
        self.watch = Watch(reader.model)

    def run(self, tokens: Tensor, keep: tuple[int, ...], size: int) -> Tensor:
        """Chunk after chunk; the model's own logits at the positions to keep."""
        from transformers import DynamicCache

        reader, kept_logits = self.reader, {}
        positions = [position % self.n for position in keep or (-1,)]
        cache = DynamicCache()
        with ExitStack() as stack:
            for block, site in zip(reader.blocks, reader.sites, strict=True):
                entering, called = partial(self._entering, site.layer), partial(self._called, site.layer)
                stack.callback(block.register_forward_pre_hook(entering, with_kwargs=True).remove)
                stack.callback(site.module.register_forward_pre_hook(called, with_kwargs=True).remove)
            stack.enter_context(changing(reader.model, reader.sites, self._attended))
            stack.enter_context(short_tables(reader.sites, self.n))
            stack.enter_context(watched(reader.blocks, self.watch))
            for first in range(0, self.n, size):
                self.first, self.stop = first, min(self.n, first + size)
                part = tokens[:, self.first : self.stop]
                places = torch.arange(self.first, self.stop, device=tokens.device).expand(len(tokens), -1)
                inside = [position for position in positions if self.first <= position < self.stop]
                options: dict[str, Any] = {}
                trims = reader.trims
                if trims:
                    options["logits_to_keep"] = (
                        torch.tensor([p - self.first for p in inside] or [-1]) % part.shape[1]
                    )
                output = reader.model(
                    part, position_ids=places, past_key_values=cache, use_cache=True, **options
                )
                logits = output.logits if hasattr(output, "logits") else output[0]
                for k, position in enumerate(inside):
                    kept_logits[position] = logits[:, k if trims else position - self.first]
        self.watch.settle()
        return check_logits(torch.stack([kept_logits[p] for p in positions], dim=1), reader.model)[
            :, : len(keep)
        ]

    def _entering(self, layer: int, module: Any, args: Any, kwargs: Any) -> None:
        hidden = args[0] if args else kwargs.get("hidden_states")
        if isinstance(hidden, Tensor):
            width = torch.promote_types(hidden.dtype, torch.float32)
            self.norms.setdefault(layer, []).append(torch.linalg.vector_norm(hidden, dim=-1, dtype=width))

    def _called(self, layer: int, module: Any, args: Any, kwargs: Any) -> None:
        self.calls[layer] = Call.bind(module, args, kwargs)

    def _attended(self, inputs: AttentionInput) -> AttentionInput:
        layer, mask = inputs.layer, inputs.mask
        site = self.reader.sites[layer]
        self.tables.setdefault(layer, []).append(site.rotation(self.calls.pop(layer)))
        rows = [q for q in self.shared.queries if self.first <= q < self.stop]
        if rows:
            local_rows = torch.tensor(rows, device=inputs.query.device) - self.first
            self.query.setdefault(layer, []).append(inputs.query[:, :, local_rows])
            at = local_rows + self.first if mask is None else local_rows
            known = visible_under(mask, at, self.stop, both_ways=looks_both_ways(site.module)).to(
                local_rows.device
            )
            later = known.new_zeros(len(rows), self.n - self.stop)
            self.seen.setdefault(layer, []).append(torch.cat((known, later), dim=1))
        if self.stop == self.n and self.visit is not None:
            self.visit(self._layer(layer, inputs))
        return inputs

    def _layer(self, layer: int, projected: Projected) -> LayerReading:
        """A layer at all queries, over the keys of the whole prompt."""
        reader, device = self.reader, projected.key.device
        query, visible = torch.cat(self.query.pop(layer), dim=2), torch.cat(self.seen.pop(layer))
        tables = self.tables.pop(layer)
        rotation = self.shared.tables_in_parts(tables, reader.layouts[layer])
        visible, hides = self.shared.looked_at(visible)
        norms = torch.cat(self.norms.pop(layer), dim=1) if layer in self.norms else None
        last_queries = replace(projected, query=query)
        heads = reader.arranged(layer, last_queries, self.shared, rotation, (visible, hides), turned=True)
        return replace(heads, norms=None if norms is None else norms.to(device))


# What the layers of one pass through a model have in common.


class Pass:
    """What the layers of one pass have in common, made once: the queries, masks and rotation tables."""

    def __init__(self, queries: Sequence[int]) -> None:
        self.queries = tuple(queries)
        self._made: dict[Any, Any] = {}

    def rows(self, device: torch.device) -> Tensor:
        """The positions of the queries."""
        return self._once(device, lambda: torch.tensor(self.queries, dtype=torch.long, device=device))

    def order(self, layout: Layout, device: torch.device) -> Tensor:
        """The dimensions of a head by plane."""
        return self._once((id(layout), device), lambda: layout.order.to(device))

    def visible(
        self, mask: Any, n: int, device: torch.device, both_ways: bool
    ) -> tuple[Tensor, tuple[bool, ...]]:
        """What the queries may see under a mask, and which of them may not see all that comes before them."""

        def look() -> Any:
            visible = visible_under(mask, self.rows(device), n, both_ways=both_ways).to(device)
            if mask is None:
                return mask, visible, (False,) * len(self.queries)
            later = torch.arange(n, device=device) > self.rows(device)[:, None]
            return mask, visible, tuple(not all_seen for all_seen in (visible | later).all(1).tolist())

        # The mask is kept, so its id stays its own.
        return self._once(("mask", id(mask), device, both_ways), look)[1:]

    def looked_at(self, visible: Tensor) -> tuple[Tensor, tuple[bool, ...]]:
        """The same of what is known already, from a prompt in parts; layers that see the same share it."""
        known: list[Any] = self._once("looked at", list)
        for shared, hides in known:
            if torch.equal(shared, visible):
                return shared, hides
        later = torch.arange(visible.shape[1], device=visible.device) > self.rows(visible.device)[:, None]
        known.append((visible, tuple(not row for row in (visible | later).all(1).tolist())))
        return known[-1]  # type: ignore[no-any-return]

    def tables_in_parts(self, parts: Sequence[tuple[Tensor, Tensor]], layout: Layout) -> Rotation:
        """The model's tables for a layer, from those of the parts of a prompt."""

        def table() -> Any:
            columns = layout.columns.to(parts[0][0].device)
            cos, sin = (torch.cat([part[k][:, columns] for part in parts]) for k in range(2))
            return tuple(parts), Rotation(cos, sin)

        return self._once((tuple(cos.data_ptr() for cos, _ in parts), id(layout)), table)[1]

    def rotation(self, site: Site, call: Call, layout: Layout) -> Rotation:
        """The model's tables for a layer."""
        cos, sin = site.rotation(call)

        def table() -> Any:
            columns = layout.columns.to(cos.device)
            return cos, Rotation(cos[:, columns], sin[:, columns])

        return self._once((cos.data_ptr(), cos.shape, id(layout)), table)[1]

    def _once(self, name: Any, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]
