"""Rotation planes, and the counterfactual logit matrix they give.

RoPE turns plane k of a key at position p by p * g_k, and plane k of the query at position i by
i * g_k. Their product depends on i - p only, so one may leave every key as it is and turn the query
instead: "the query as seen from position p". The logit that key content c would have at position p is

    A[p, c] = scale * < key_c , query turned by (i - p) g >

which is one matrix product between n seen queries and n un-rotated keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from rotoscope.settings import BASE
from rotoscope.shapes import Bool, Float, Int, Tensor


def turn(
    pairs: Float[Tensor, "... planes 2"], cos: Float[Tensor, "..."], sin: Float[Tensor, "..."]
) -> Float[Tensor, "... planes 2"]:
    """Turn each plane's (real, imaginary) pair by the angle whose cosine and sine are given.

    `cos` and `sin` broadcast against the plane axis and everything before it. A common factor in both
    (as in YaRN) scales the pair.
    """
    real, imaginary = pairs[..., 0], pairs[..., 1]
    return torch.stack((real * cos - imaginary * sin, imaginary * cos + real * sin), dim=-1)


def split_planes(
    vectors: Float[Tensor, "... d"], rotated: int | None = None, *, interleaved: bool = False
) -> Float[Tensor, "... planes 2"]:
    """Queries or keys of a head as planes of (real, imaginary), as `counterfactual_logits` takes them.

    Most models turn dimension k of the rotated ones with dimension k + rotated / 2 (Llama, Pythia); GPT-J turns
    neighbours: `interleaved`. Dimensions from `rotated` on do not turn. They follow as planes, whose angle is 0.
    """
    width = vectors.shape[-1] if rotated is None else rotated
    turning, rest = vectors[..., :width], vectors[..., width:]
    pairs = turning.unflatten(-1, (-1, 2)) if interleaved else turning.unflatten(-1, (2, -1)).mT
    return torch.cat((pairs, rest.unflatten(-1, (-1, 2))), dim=-2)


def rope_angles(planes: int, base: float = BASE, ids: Sequence[int] = ()) -> Float[Tensor, "planes"]:
    """RoPE's g_k = base^(-2(k-1)/d), in the float32 arithmetic of models' own tables.

    With `ids` (from 1 on, the fastest) only those angles, the planes dealt out evenly over them in order.
    """
    usual = 1.0 / base ** (torch.arange(0, 2 * planes, 2, dtype=torch.int64) / (2 * planes))
    return usual[[ids[plane * len(ids) // planes] - 1 for plane in range(planes)]] if ids else usual


def relative_phases(
    angles: Float[Tensor, "... planes"], n: int, query_position: int
) -> Float[Tensor, "... positions planes"]:
    """(i - p) * g_k for p = 0..n-1, always in float64: long positions need the digits."""
    distance = query_position - torch.arange(n, dtype=torch.float64, device=angles.device)
    return distance[:, None] * angles.to(torch.float64).unsqueeze(-2)


def counterfactual_logits(
    query: Float[Tensor, "... planes 2"],
    keys: Float[Tensor, "... n planes 2"],
    angles: Float[Tensor, "... planes"],
    scale: float = 1.0,
    query_position: int | None = None,
) -> Float[Tensor, "... n n"]:
    """The logit A[p, c] if key content c stood at position p, for one query.

    `query` and `keys` are un-rotated, split into planes of (real, imaginary); `angles[k]` is how far
    plane k turns per position; axes in front of theirs go with those of the query. Keys stand at positions
    0..n-1 and the query at `query_position` (default n-1: it is the last token itself). The diagonal holds the head's real logits.
    """
    n = keys.shape[-3]
    position = n - 1 if query_position is None else query_position
    phases = relative_phases(angles, n, position)
    cos, sin = phases.cos().to(keys.dtype), phases.sin().to(keys.dtype)
    turned = turn(query.unsqueeze(-3), cos, sin)  # [..., n, planes, 2]
    return scale * turned.flatten(-2) @ keys.flatten(-2).transpose(-1, -2)


ROOM = 2**28
"""Bytes of work space for several inputs together, at most."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Many heads at one query. A head's dimensions are the (real, imaginary) pairs of its planes, then what never turns."""

    query: Float[Tensor, "batch key_heads group d"]
    """Un-rotated, times the scaling."""
    keys: Float[Tensor, "batch key_heads n d"]
    """Un-rotated; the query's own is the last."""
    cos: Float[Tensor, "n planes"]
    """Of the angle between the query and each position."""
    sin: Float[Tensor, "n planes"]
    visible: Bool[Tensor, "n"]
    """Which positions the query may see."""
    hides: bool
    """Whether there is one it may not see: known without asking the device."""
    softcap: float | None = None
    sinks: Float[Tensor, "batch heads"] | None = None
    """Logits that only draw attention (gpt_oss), where the model has them."""

    @property
    def planes(self) -> int:
        """How many pairs of dimensions turn."""
        return self.cos.shape[1]

    @property
    def heads(self) -> int:
        """How many heads an input has."""
        return self.query.shape[1] * self.query.shape[2]

    @cached_property
    def turned_query(self) -> Float[Tensor, "batch key_heads n group d"]:
        """The query as seen from every key position."""
        width = 2 * self.planes
        pairs = self.query[:, :, None, :, :width].unflatten(
            -1, (-1, 2)
        )  # [batch, key_heads, 1, group, planes, 2]
        turned = turn(pairs, self.cos[:, None], self.sin[:, None]).flatten(-2)
        if width == self.query.shape[-1]:
            return turned
        rest = self.query[:, :, None, :, width:].expand(*turned.shape[:-1], -1)
        return torch.cat((turned, rest), dim=-1)

    def capped(self, logits: Tensor) -> Tensor:
        """Logits under the model's soft-cap, where it has one."""
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def real(self, *, capped: bool = True) -> Float[Tensor, "batch heads n"]:
        """The heads' real logits, with or without the soft-cap; hidden positions are -inf."""
        logits = self.capped(self._products) if capped else self._products
        return logits.masked_fill(~self.visible, -torch.inf) if self.hides else logits

    @cached_property
    def _products(self) -> Float[Tensor, "batch heads n"]:
        """Keys turned back instead of queries: one pass over the keys serves every head that shares them."""
        width = 2 * self.planes
        keys = self.keys[..., :width].unflatten(-1, (-1, 2))
        turned = turn(keys, self.cos, -self.sin).flatten(-2)
        products = self.query[..., :width] @ turned.mT
        if self.keys.shape[-1] > width:
            products = products + self.query[..., width:] @ self.keys[..., width:].mT
        return products.flatten(1, 2)

    def gather(self, positions: Tensor, contents: Tensor) -> Float[Tensor, "batch heads offsets a b"]:
        """Entries A[position, content], offset by offset; see `scores.blocks.Gather`."""
        slots = self.turned_query[:, :, positions]  # [batch, key_heads, offsets, a, group, d]
        keys = self.keys[:, :, contents]  # [batch, key_heads, offsets, b, d]
        rows, group = slots.shape[3], slots.shape[4]
        logits = slots.flatten(3, 4) @ keys.mT  # [batch, key_heads, offsets, a * group, b]
        logits = self.capped(logits.unflatten(3, (rows, group)).movedim(4, 2).flatten(1, 2))
        if not self.hides:
            return logits
        return logits.masked_fill(~self.visible[positions][:, :, None], -torch.inf)

    def entries(
        self, positions: Int[Tensor, "heads entries"], contents: Int[Tensor, "heads entries"]
    ) -> Float[Tensor, "batch heads entries"]:
        """Single entries A[position, content], of each head its own."""
        own = torch.arange(self.heads, device=contents.device)[:, None]
        n, d = self.keys.shape[2:]
        if n * n <= positions.shape[1] * d:  # the whole matrix is less work
            return self.logits()[:, own, positions, contents]
        size = max(1, ROOM // (16 * len(self.keys) * self.heads * d))  # queries, keys, products: at a time
        if positions.shape[1] > size:
            parts = zip(positions.split(size, 1), contents.split(size, 1), strict=True)
            return torch.cat([self.entries(*part) for part in parts], dim=-1)
        width = 2 * self.planes
        query = self.query.flatten(1, 2)[:, :, None]  # [batch, heads, 1, d]
        pairs = query[..., :width].unflatten(-1, (-1, 2))
        turned_query = turn(pairs, self.cos[positions], self.sin[positions]).flatten(-2)
        keys = self.keys[:, own // self.query.shape[2], contents]  # [batch, heads, entries, d]
        logits = (turned_query * keys[..., :width]).sum(-1) + (query[..., width:] * keys[..., width:]).sum(-1)
        return self.capped(logits).masked_fill(~self.visible[positions], -torch.inf)

    def by_plane(self) -> tuple[Float[Tensor, "heads n planes 2"], Float[Tensor, "heads n planes 2"]]:
        """Seen queries and keys of the rotating planes, of the heads of all inputs."""
        width, group = 2 * self.planes, self.query.shape[2]
        turned_query = self.turned_query[..., :width].movedim(3, 2)
        keys = self.keys[:, :, None, :, :width].expand(-1, -1, group, -1, -1)
        return turned_query.flatten(0, 2).unflatten(-1, (-1, 2)), keys.flatten(0, 2).unflatten(-1, (-1, 2))

    def remainder(self) -> Factors:
        """The dimensions that never turn, without soft-cap and sinks, as heads of their own."""
        width = 2 * self.planes
        return Factors(
            query=self.query[..., width:],
            keys=self.keys[..., width:],
            cos=self.cos[:, :0],
            sin=self.sin[:, :0],
            visible=self.visible,
            hides=self.hides,
        )

    def parts(self, bytes_each: float) -> list[Factors]:
        """Runs of inputs, as many together as stay within `ROOM`, where one takes so many bytes of work space."""
        size = max(1, int(ROOM / bytes_each))
        if size >= len(self.keys):
            return [self]
        own = {name: getattr(self, name) for name in ("cos", "sin", "visible", "hides", "softcap")}
        sinks = [None] * len(self.keys) if self.sinks is None else self.sinks.split(size)
        return [
            Factors(query=query, keys=keys, sinks=sink, **own)
            for query, keys, sink in zip(self.query.split(size), self.keys.split(size), sinks, strict=False)
        ]

    def picked_heads(self, picked: Int[Tensor, "picked"]) -> Factors:
        """Some of the heads of all inputs, each with keys of its own; without soft-cap and sinks."""
        keys = self.keys.flatten(0, 1)[picked // self.query.shape[2]]
        return Factors(
            query=self.query.flatten(0, 2)[picked][:, None, None],
            keys=keys[:, None],
            cos=self.cos,
            sin=self.sin,
            visible=self.visible,
            hides=self.hides,
        )

    def logits(self) -> Float[Tensor, "batch heads n n"]:
        """The whole counterfactual logit matrix A[p, c] of every head."""
        everything = torch.arange(self.keys.shape[2], device=self.keys.device)[None]
        return self.gather(everything, everything)[:, :, 0]
