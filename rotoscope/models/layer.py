"""Which dimensions of a head form a rotation plane, found by turning them.

Architectures lay their planes out differently (half-split, interleaved, part of the head only, not at all).
Instead of knowing each, we ask the module. Under the identity rotation it shows its un-rotated queries and
keys; under a quarter turn every plane's pair (re, im) becomes (-im, re), and what does not rotate stays. A
third call turns every column of the rotation table by an angle of its own, which tells whose column drives
which plane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from rotoscope.errors import UnprovenError
from rotoscope.models.sites import Call, Projected, Site
from rotoscope.scores.attention import attention_weights
from rotoscope.scores.blocks import Blocks
from rotoscope.scores.counterfactual import turn
from rotoscope.scores.exclusion_principle import Taken
from rotoscope.scores.factors import Factors
from rotoscope.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Layout:
    """How a head's dimensions are arranged: planes first, from the fastest to the slowest, then the rest."""

    order: Int[Tensor, "d"]
    """Dimensions as (re, im) of plane 1, of plane 2, ..., then those that never rotate."""
    columns: Int[Tensor, "planes"]
    """The column of the rotation table that drives each plane."""
    angles: Float[Tensor, "planes"]
    """How far each plane turns per position."""

    @property
    def planes(self) -> int:
        return len(self.columns)

    def same(self, other: Layout) -> bool:
        """Whether another is the same: such layers can share what is made of it."""
        names = ("order", "columns", "angles")
        return all(torch.equal(getattr(self, name), getattr(other, name)) for name in names)

    @property
    def remainder(self) -> int:
        """How many dimensions never rotate."""
        return len(self.order) - 2 * self.planes


def find_layout(site: Site, call: Call) -> Layout:
    cos, sin = site.rotation(call)
    still = _rows(site.project_unrotated(call))
    quarter = _rows(site.project(call, torch.zeros_like(cos), torch.ones_like(sin)))
    real, imaginary, rest = _pair_up(still, quarter, site)
    if not real:
        empty = torch.empty(0, dtype=torch.long)
        return Layout(torch.tensor(rest), empty, torch.empty(0, dtype=torch.float64))

    marks = _marks(cos)
    marked = _rows(
        site.project(call, marks.cos().to(cos.dtype).expand_as(cos), marks.sin().to(sin.dtype).expand_as(sin))
    )
    before = torch.complex(still[:, real], still[:, imaginary])
    after = torch.complex(marked[:, real], marked[:, imaginary])
    found = (after * before.conj()).sum(0).angle()  # [planes]
    columns = (found[:, None] - marks[None, :].to(found)).abs().argmin(1)

    wide_cos, wide_sin = cos.double().cpu(), sin.double().cpu()
    turn_per_position = torch.atan2(
        wide_sin[1] * wide_cos[0] - wide_cos[1] * wide_sin[0],
        wide_cos[1] * wide_cos[0] + wide_sin[1] * wide_sin[0],
    )
    angles = turn_per_position[columns.cpu()]
    fastest_first = angles.abs().argsort(descending=True, stable=True)
    pairs = [(real[k], imaginary[k]) for k in fastest_first.tolist()]
    order = torch.tensor([d for pair in pairs for d in pair] + rest)
    return Layout(order, columns.cpu()[fastest_first], angles[fastest_first])


def _rows(projected: Projected) -> Float[Tensor, "rows d"]:
    """All queries and keys of a call as rows, in float64 on the CPU."""
    parts = [part.flatten(0, 2).double().cpu() for part in (projected.query, projected.key)]
    return torch.cat(parts)


def _pair_up(still: Tensor, quarter: Tensor, site: Site) -> tuple[list[int], list[int], list[int]]:
    """Real and imaginary dimension of every plane, and the dimensions that did not move."""
    norm = still.norm(dim=0).clamp(min=1e-30)
    likeness = (quarter.T @ still) / (quarter.norm(dim=0).clamp(min=1e-30)[:, None] * norm[None, :])
    partner = likeness.abs().argmax(1)
    sign = likeness.gather(1, partner[:, None])[:, 0]
    real, imaginary, rest = [], [], []
    for d, other in enumerate(partner.tolist()):
        if other == d:
            rest.append(d)
        elif sign[d] < 0:  # the real part becomes minus the imaginary part
            real.append(d)
            imaginary.append(other)
    together = sorted(real + imaginary + rest)
    if together != list(range(still.shape[1])) or bool((sign.abs() < 0.999).any()):
        raise UnprovenError(
            f"layer {site.layer}: the dimensions of {type(site.module).__name__} do not fall into rotation "
            "planes under a quarter turn"
        )
    return real, imaginary, rest


def _marks(cos: Tensor) -> Float[Tensor, "columns"]:
    """An angle for every column, equal where the model's own table repeats a column (both halves of a plane)."""
    width = cos.shape[-1]
    half = width // 2
    spread = torch.linspace(-0.9 * math.pi, 0.9 * math.pi, width, dtype=torch.float64, device=cos.device)
    if width % 2 == 0 and torch.equal(cos[:, :half], cos[:, half:]):
        return torch.cat((spread[::2], spread[::2]))
    if width % 2 == 0 and torch.equal(cos[:, ::2], cos[:, 1::2]):
        return spread[::2].repeat_interleave(2)
    return spread


# One layer of a running model: the queries and keys of its heads, and the rotation they stand under.


@dataclass(frozen=True, eq=False)
class Rotation:
    """The model's own rotation tables, a column for every plane; what is made of them is made once."""

    cos: Float[Tensor, "n planes"]
    sin: Float[Tensor, "n planes"]

    def relative(self, position: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angle between a position and all up to it.

        They come from the tables, so a model that rounds its cosines is read as it is.
        """
        return self._made(("relative", position, dtype), lambda: self._relative(position, dtype))

    def _relative(self, i: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos[: i + 1].double(), self.sin[: i + 1].double()
        return (cos[i] * cos + sin[i] * sin).to(dtype), (sin[i] * cos - cos[i] * sin).to(dtype)

    def back(self, vectors: Float[Tensor, "... n d"], rows: Tensor | None = None) -> Float[Tensor, "... n d"]:
        """Vectors at all positions, or at those of `rows`, turned back; what belongs to no plane stays."""
        planes, dtype = self.cos.shape[1], vectors.dtype
        if not planes:
            return vectors
        factor = self._made(("back", dtype), lambda: self._back(dtype))
        pairs = torch.view_as_complex(vectors[..., : 2 * planes].unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * (factor if rows is None else factor[rows])).flatten(-2)
        rest = vectors[..., 2 * planes :]
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned

    def angles(self, layout: Layout, dtype: torch.dtype) -> Float[Tensor, "planes"]:
        """The angles of a layout under this rotation, where its tables are."""
        return self._made(("angles", dtype), lambda: layout.angles.to(self.cos.device, dtype))

    def _back(self, dtype: torch.dtype) -> Tensor:
        """The inverse of each turn, as a complex number: some tables scale as well."""
        turns = torch.complex(self.cos.double(), self.sin.double())
        return (1 / turns).to(torch.complex128 if dtype == torch.float64 else torch.complex64)

    @cached_property
    def _kept(self) -> dict[Any, Any]:
        return {}

    def _made(self, name: Any, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


@dataclass(frozen=True, kw_only=True)
class LayerHeads(Factors):
    """All heads of a layer at one query: what a measure is computed from.

    Layers of one shape are measured together: the batch axis then holds the prompts of the first layer, those of the
    second, and so on. `blocks` and what follows it are there when a measure is called.
    """

    position: int
    """Where the query stands."""
    angles: Float[Tensor, "planes"]
    """How far each plane turns per position, fastest plane first."""
    layers: tuple[int, ...] = ()
    """The layers in the batch axis."""
    tokens: Int[Tensor, "batch n"] | None = None
    """The prompts up to the query."""
    blocks: Blocks | None = None
    """What is swapped."""
    taus: tuple[float, ...] = ()
    symbols: Int[Tensor, "batch 1 blocks"] | None = None
    """The symbol of each block, where a prompt repeats one."""
    taken: Taken | None = None
    """The positions that take part in swaps, with sums over them."""

    @cached_property
    def real_logits(self) -> Float[Tensor, "batch heads n"]:
        """The query's logits over the keys, as the model computes them; hidden positions are -inf."""
        return self.real()

    @cached_property
    def attention(self) -> Float[Tensor, "batch heads n"]:
        """The query's attention over the keys."""
        return attention_weights(self.real_logits, self.sinks)

    @property
    def plane_logits(self) -> Float[Tensor, "batch heads n planes"]:
        """What each rotation plane contributes to the query's logits; hidden positions are counted as well."""
        width, group = 2 * self.planes, self.query.shape[2]
        keys = turn(self.keys[..., :width].unflatten(-1, (-1, 2)), self.cos, -self.sin)
        keys = keys.repeat_interleave(group, dim=1)  # [batch, heads, n, planes, 2]
        query = self.query.flatten(1, 2)[..., :width].unflatten(-1, (-1, 2))
        return (query[:, :, None] * keys).sum(-1)

    @property
    def swapped(self) -> Int[Tensor, "positions"]:
        """The positions that take part in swaps."""
        assert self.blocks is not None
        return self.blocks.on(self.keys.device).positions


@dataclass(frozen=True)
class LayerReading:
    """One layer's un-rotated queries and keys, float32 or better, dimensions arranged by plane."""

    layer: int
    query: Float[Tensor, "batch key_heads group queries d"]
    keys: Float[Tensor, "batch key_heads n d"]
    rotation: Rotation
    visible: Bool[Tensor, "queries n"]
    hides: tuple[bool, ...]
    """For each query, whether it may not see all that comes before it."""
    positions: tuple[int, ...]
    """Where the queries stand."""
    scaling: float
    softcap: float | None
    sinks: Float[Tensor, "*batch heads"] | None
    layout: Layout
    residual: Float[Tensor, "batch n width"] | None = None
    """The residual stream that enters the layer, where it could be seen."""
    norms: Float[Tensor, "batch n"] | None = None
    """How large it is, where only that was kept."""

    @property
    def residual_norm(self) -> Float[Tensor, "batch n"] | None:
        """How large the residual stream is at every position."""
        if self.residual is None:
            return self.norms
        width = torch.promote_types(self.residual.dtype, torch.float32)
        return torch.linalg.vector_norm(self.residual, dim=-1, dtype=width)

    @property
    def cos(self) -> Float[Tensor, "n planes"]:
        """The model's own table, a column for every plane."""
        return self.rotation.cos

    @property
    def sin(self) -> Float[Tensor, "n planes"]:
        """The same of sines."""
        return self.rotation.sin

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

    def part(self, rows: slice) -> LayerReading:
        """The same heads at some of the query positions, where all at once would be too many."""
        return replace(
            self,
            query=self.query[:, :, :, rows],
            visible=self.visible[rows],
            hides=self.hides[rows],
            positions=self.positions[rows],
        )

    def _turned(self, vectors: Tensor, cos: Tensor, sin: Tensor) -> Float[Tensor, "... d"]:
        """Vectors [..., positions, d] as they stand at their positions."""
        pairs, rest = vectors.split((2 * self.layout.planes, self.layout.remainder), dim=-1)
        turned = turn(pairs.unflatten(-1, (-1, 2)), cos.to(pairs), sin.to(pairs)).flatten(-2)
        return torch.cat((turned, rest), dim=-1)

    def capped(self, logits: Tensor) -> Tensor:
        """Logits under the model's soft-cap, where it has one."""
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def at(self, index: int) -> LayerHeads:
        """What the heads do at one of the query positions."""
        i = self.positions[index]
        cos, sin = self.rotation.relative(i, self.keys.dtype)
        sinks = None if self.sinks is None else self.sinks.expand(self.keys.shape[0], -1)
        return LayerHeads(
            query=self.query[:, :, :, index] * self.scaling,
            keys=self.keys[:, :, : i + 1],
            cos=cos,
            sin=sin,
            visible=self.visible[index, : i + 1],
            hides=self.hides[index],
            softcap=self.softcap,
            sinks=sinks,
            position=i,
            angles=self.rotation.angles(self.layout, self.keys.dtype),
        )


def alike(layer: LayerReading) -> tuple[Any, ...]:
    """Layers for which this is equal can be scored as one: as if they were further inputs of one layer."""
    shared = (id(layer.rotation), id(layer.visible), layer.scaling, layer.softcap, layer.sinks is None)
    return (*shared, layer.keys.shape, layer.query.shape, layer.keys.device)


def stacked(layers: Sequence[LayerReading]) -> LayerReading:
    """Layers that are alike as one whose inputs are those of the first layer, then those of the second, ..."""
    first = layers[0]
    if len(layers) == 1:
        return first
    sinks = None
    if first.sinks is not None:
        sinks = torch.cat(
            [layer.sinks.expand(len(layer.keys), -1) for layer in layers if layer.sinks is not None]
        )
    query, keys = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("query", "keys"))
    return replace(first, query=query, keys=keys, sinks=sinks, residual=None)
