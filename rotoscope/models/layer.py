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
from rotoscope.scores.counterfactual import Factors, turn
from rotoscope.scores.exclusion_principle import Taken
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


@dataclass(frozen=True)
class Planes:
    """The rotation planes that one module shows: dimensions and columns in no particular order."""

    table: tuple[Tensor, Tensor]
    """The model's own cosines and sines [n, columns]."""
    pairs: dict[tuple[int, int], int]
    """Columns of the table by (real, imaginary) dimension."""
    rest: set[int]
    """Dimensions that do not rotate."""
    dead: set[int]
    """Dimensions that are 0 in every query and key, whose partner is 0 as well."""

    def completed(self, neighbours: Sequence[Planes]) -> Planes:
        """Dead dimensions as they are in layers with the same table, where they are alive."""
        pairs, rest, dead = dict(self.pairs), set(self.rest), set(self.dead)
        for layer in neighbours:
            if not dead:
                break
            if all(
                torch.equal(own, neighbour_table)
                for own, neighbour_table in zip(self.table, layer.table, strict=True)
            ):
                pairs |= {pair: column for pair, column in layer.pairs.items() if dead.issuperset(pair)}
                rest |= dead & layer.rest
                dead -= {dimension for pair in pairs for dimension in pair} | rest
        return replace(self, pairs=pairs, rest=rest, dead=dead)

    def layout(self) -> Layout:
        """All dimensions in order, with each plane's angle from the model's own table."""
        rest = sorted(self.rest)
        if not self.pairs:
            empty = torch.empty(0, dtype=torch.long)
            return Layout(torch.tensor(rest), empty, torch.empty(0, dtype=torch.float64))
        cos, sin = (table.double().cpu() for table in self.table)
        turn_per_position = torch.atan2(
            sin[1] * cos[0] - cos[1] * sin[0],
            cos[1] * cos[0] + sin[1] * sin[0],
        )
        pairs = sorted(self.pairs)
        columns = torch.tensor([self.pairs[pair] for pair in pairs])
        angles = turn_per_position[columns]
        fastest_first = angles.abs().argsort(descending=True, stable=True)
        order = torch.tensor([d for k in fastest_first.tolist() for d in pairs[k]] + rest)
        return Layout(order, columns[fastest_first], angles[fastest_first])


def find_layouts(sites: Sequence[Site], calls: Sequence[Call]) -> list[Layout]:
    """The layout of every module, from one call of each.

    A plane of which one dimension is 0 in all queries and keys is known by the other. One that is 0 altogether, as where
    the weights of a norm are 0, is taken from a layer with the same rotation table.
    """
    planes = [_find_planes(site, call) for site, call in zip(sites, calls, strict=True)]
    layouts: list[Layout] = []
    for site, incomplete in zip(sites, planes, strict=True):
        complete = incomplete.completed(planes)
        if complete.dead:
            dimensions = ", ".join(map(str, sorted(complete.dead)))
            raise UnprovenError(
                f"layer {site.layer}: dimensions {dimensions} of {type(site.module).__name__} are 0 in every query and key, and no "
                "layer with the same rotation table shows whether they rotate"
            )
        layout = complete.layout()
        layouts.append(next((known for known in layouts if known.same(layout)), layout))
    return layouts


def dead_planes(unrotated: Projected, layout: Layout) -> tuple[int, ...]:
    """Frequency ids whose queries, or whose keys, are 0 in all heads: such planes add nothing to any logit."""
    pairs = layout.order[: 2 * layout.planes].view(-1, 2)
    zero = [
        (part.flatten(0, 2)[:, pairs.to(part.device)] == 0).all(2).all(0).cpu()
        for part in (unrotated.query, unrotated.key)
    ]
    return tuple((torch.stack(zero).any(0).nonzero().flatten() + 1).tolist())


def _find_planes(site: Site, call: Call) -> Planes:
    cos, sin = site.rotation(call)
    identity = _rows(site.project_unrotated(call))
    quarter = _rows(site.project(call, torch.zeros_like(cos), torch.ones_like(sin)))
    pairs, rest, dead = _pair_up(identity, quarter, site)
    if not pairs:
        return Planes((cos, sin), {}, rest, dead)

    marks = _marks(cos)
    marked = _rows(
        site.project(call, marks.cos().to(cos.dtype).expand_as(cos), marks.sin().to(sin.dtype).expand_as(sin))
    )
    real, imaginary = zip(*pairs, strict=True)
    before = torch.complex(identity[:, real], identity[:, imaginary])
    after = torch.complex(marked[:, real], marked[:, imaginary])
    angles = (after * before.conj()).sum(0).angle()  # [planes]
    columns = (angles[:, None] - marks[None, :].to(angles)).abs().argmin(1)
    return Planes((cos, sin), dict(zip(pairs, columns.tolist(), strict=True)), rest, dead)


def _rows(projected: Projected) -> Float[Tensor, "rows d"]:
    """All queries and keys of a call as rows, in float64 on the CPU."""
    parts = [part.flatten(0, 2).double().cpu() for part in (projected.query, projected.key)]
    return torch.cat(parts)


def _pair_up(identity: Tensor, quarter: Tensor, site: Site) -> tuple[list[tuple[int, int]], set[int], set[int]]:
    """Real and imaginary dimension of every plane, dimensions that did not move, and those that are 0 throughout.

    What a live dimension becomes lies in its partner: a plane with one live dimension is found from that one alone.
    """
    lengths = [rows.norm(dim=0) for rows in (quarter, identity)]
    likeness = (quarter.T @ identity) / (
        lengths[0].clamp(min=1e-30)[:, None] * lengths[1].clamp(min=1e-30)[None, :]
    )
    partner = likeness.abs().argmax(1)
    sign = likeness.gather(1, partner[:, None])[:, 0]
    live = (lengths[0] > 0).nonzero().flatten()
    pairs: set[tuple[int, int]] = set()
    rest: set[int] = set()
    for d, other in zip(live.tolist(), partner[live].tolist(), strict=True):
        if other == d:
            rest.add(d)
        else:  # the real part becomes minus the imaginary part
            pairs.add((d, other) if sign[d] < 0 else (other, d))
    placed = sorted([d for pair in pairs for d in pair] + list(rest))
    dead = set(range(identity.shape[1])) - set(placed)
    if (
        len(placed) + len(dead) > identity.shape[1]
        or bool((sign[live].abs() < 0.999).any())
        or any(lengths[1][d] > 0 for d in dead)
    ):
        raise UnprovenError(
            f"layer {site.layer}: the dimensions of {type(site.module).__name__} do not fall into rotation "
            "planes under a quarter turn"
        )
    return sorted(pairs), rest, dead


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
        return self._once(("relative", position, dtype), lambda: self._relative(position, dtype))

    def _relative(self, i: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos[: i + 1].double(), self.sin[: i + 1].double()
        return (cos[i] * cos + sin[i] * sin).to(dtype), (sin[i] * cos - cos[i] * sin).to(dtype)

    def back(self, vectors: Float[Tensor, "... n d"], rows: Tensor | None = None) -> Float[Tensor, "... n d"]:
        """Vectors at all positions, or at those of `rows`, turned back; what belongs to no plane stays."""
        planes, dtype = self.cos.shape[1], vectors.dtype
        if not planes:
            return vectors
        factor = self._once(("back", dtype), lambda: self._back(dtype))
        pairs = torch.view_as_complex(vectors[..., : 2 * planes].unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * (factor if rows is None else factor[rows])).flatten(-2)
        rest = vectors[..., 2 * planes :]
        return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned

    def angles(self, layout: Layout, dtype: torch.dtype) -> Float[Tensor, "planes"]:
        """The angles of a layout under this rotation, where its tables are."""
        return self._once(("angles", dtype), lambda: layout.angles.to(self.cos.device, dtype))

    def _back(self, dtype: torch.dtype) -> Tensor:
        """The inverse of each turn, as a complex number: some tables scale as well."""
        turns = torch.complex(self.cos.double(), self.sin.double())
        return (1 / turns).to(torch.complex128 if dtype == torch.float64 else torch.complex64)

    @cached_property
    def _kept(self) -> dict[Any, Any]:
        return {}

    def _once(self, name: Any, make: Callable[[], Any]) -> Any:
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
