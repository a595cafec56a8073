"""A loss term that favours a kind of heads in anybody's training of a transformers model.

    favour = rs.monitor.Favour(model, "symbolic", layers=range(4, 12), strength=0.03)
    with favour:
        out = model(**batch)
    loss = out.loss + favour.penalty

Queries and keys are overheard in the forward pass of the training itself, and gradients flow into them. The reader proves
once, when this is made, that what is overheard is what the model attends with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Literal, Self

import torch

from rotoscope.errors import ModelError, RotoscopeError
from rotoscope.models.chunks import Pass
from rotoscope.models.interventions import AttentionInput, changing
from rotoscope.models.layer import LayerHeads
from rotoscope.models.reader import HeadReader
from rotoscope.models.sites import Call, Projected
from rotoscope.monitor.training_process import model_inside, preserved_training_state
from rotoscope.scores.blocks import Blocks
from rotoscope.scores.exclusion_principle import Taken, exclusion_from_factors, exclusion_of
from rotoscope.settings import amount
from rotoscope.shapes import Float, Tensor

STRENGTH = amount(0, 1e6, "a penalty below 0 would favour the other kind: name that one")
OVERHEARD = ("sdpa", "eager")


class Favour:
    """Open it around the forward pass; then `penalty` belongs to the loss.

    `layers` are all by default. The penalty of a head is taken where it is asked: at the last token of every row that is no
    padding, or at the positions `queries`. It is averaged over rows, queries, heads and layers, and multiplied by `strength`.
    """

    def __init__(
        self,
        model: Any,
        kind: Literal["symbolic", "positional"],
        *,
        layers: Iterable[int] | None = None,
        strength: float = 0.03,
        queries: Sequence[int] | None = None,
    ) -> None:
        if kind not in ("symbolic", "positional"):
            raise RotoscopeError(f"unknown kind '{kind}' to favour; choose symbolic or positional")
        STRENGTH.check("strength", strength)
        self.kind, self.strength, self.queries = (
            kind,
            float(strength),
            None if queries is None else tuple(queries),
        )
        if self.queries is not None and (not self.queries or min(self.queries) < 2):
            raise RotoscopeError(
                f"queries need at least two tokens before them to compare, found {list(self.queries)}"
            )
        self.model = model_inside(model)
        with preserved_training_state(self.model):
            self.reader = HeadReader(self.model)
        if not self.reader.direct or self.reader.both_ways:
            raise ModelError(
                f"heads of {type(self.model).__name__} cannot be favoured: it must attend to earlier tokens only, and its queries "
                "and keys must be those it attends with, turned back"
            )
        all_layers = range(self.reader.layers)
        self.layers = set(all_layers if layers is None else layers)
        if not self.layers or not self.layers <= set(all_layers):
            raise RotoscopeError(f"layers must be among 0 to {all_layers[-1]}, found {sorted(self.layers)}")
        self._open: ExitStack | None = None
        self._found: list[Tensor] = []
        self._masks: dict[int, Any] = {}

    def __enter__(self) -> Self:
        implementation = self.model.config._attn_implementation
        if implementation not in OVERHEARD:
            raise ModelError(
                f"heads that attend by '{implementation}' cannot be overheard; train with attn_implementation='sdpa' or 'eager'"
            )
        if self.model.training and getattr(self.model, "is_gradient_checkpointing", False):
            raise ModelError(
                "with gradient checkpointing layers are computed again in the backward pass, where nothing is overheard; "
                "switch it off to favour a kind (model.gradient_checkpointing_disable())"
            )
        self._found, self._masks = [], {}
        calls: dict[int, Call] = {}

        def called(module: Any, args: Any, kwargs: Any) -> None:
            calls[id(module)] = Call.bind(module, args, kwargs)

        def penalised(attended: AttentionInput) -> AttentionInput:
            if attended.layer in self.layers:
                call = calls.pop(id(self.reader.sites[attended.layer].module))
                self._look(attended.layer, call, attended, attended.mask)
            return attended

        with ExitStack() as stack:
            for layer in self.layers:
                module = self.reader.sites[layer].module
                stack.callback(module.register_forward_pre_hook(called, with_kwargs=True).remove)
            stack.enter_context(changing(self.model, self.reader.sites, penalised))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *problem: Any) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
        self._masks = {}

    @property
    def penalty(self) -> Float[Tensor, ""]:
        """What to add to the loss for the forward passes that were run inside."""
        if not self._found:
            raise RotoscopeError("no forward pass was overheard; run the model inside `with favour:`")
        return self.strength * torch.stack(self._found).mean()

    def _look(self, layer: int, call: Call, projected: Projected, mask: Any) -> None:
        """Keep a layer's mean penalty."""
        n = projected.key.shape[2]
        queries = self.queries or (n - 1,)
        if max(queries) >= n or min(queries) < 2:
            raise RotoscopeError(
                f"a query must be one of the {n} tokens and have at least two before it, found {list(queries)}"
            )
        if id(mask) not in self._masks:  # the mask is kept, so its id stays its own
            self._masks[id(mask)] = mask, _rows(mask, self.queries, n)
        penalties, site = [], self.reader.sites[layer]
        for rows, row_queries in self._masks[id(mask)][1]:
            part = Projected(
                projected.query[rows],
                projected.key[rows],
                projected.scaling,
                projected.softcap,
                projected.sinks,
            )
            part_mask = mask[rows] if isinstance(mask, Tensor) and len(mask) > 1 else mask
            heads = self.reader._heads(site, call, part, Pass(row_queries), turned=True, mask=part_mask)
            penalties += [_penalty(heads.at(k), self.kind).mean(-1) for k in range(len(row_queries))]
        self._found.append(torch.cat(penalties).mean())


def _rows(mask: Any, queries: tuple[int, ...] | None, n: int) -> list[tuple[slice, tuple[int, ...]]]:
    """The queries of every row of a padded batch; of all rows at once where none has padding.

    A token that may not see itself is padding.
    """
    everything = slice(None), queries or (n - 1,)
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        return [everything]
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    real = visible[:, 0, :, :n].diagonal(dim1=-2, dim2=-1).cpu()
    if bool(real.all()):
        return [everything]
    if queries is not None and not bool(real[:, list(queries)].all()):
        raise RotoscopeError(
            f"some of the queries {list(queries)} are padding in some rows; leave queries out to take each row's last token"
        )
    last = [int(row.nonzero()[-1]) if bool(row.any()) else 0 for row in real]
    if min(last) < 2:
        raise RotoscopeError(
            "a row of the batch has fewer than three tokens, so that nothing can be compared in it"
        )
    return [(slice(row, row + 1), queries or (position,)) for row, position in enumerate(last)]


def _penalty(query: LayerHeads, kind: Literal["symbolic", "positional"]) -> Float[Tensor, "batch heads"]:
    """Of all heads at a query, over the keys it sees, its own left out."""
    if query.softcap is None:
        return exclusion_from_factors(query, Taken.of(query, Blocks.tokens(query.position))).penalty(kind)
    keys = query.visible[:-1].nonzero()[:, 0]
    return exclusion_of(query.gather(keys[None], keys[None])[:, :, 0]).penalty(kind)
