"""One prompt as the model was shown it, and what every head made of it: attention before and after swaps.

Two tables. `shown_prompt` has a row per token. `attention` has a row per head, with lists in it: the attention of the query
before any swap and after the heaviest, which swaps are kept, heaviest first, and for each of them the attention after it on
the positions whose content moved. All others keep their attention up to a common factor, so that no more is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.measures.batches import Batch
from rotoscope.measures.scoring import Transform
from rotoscope.models.layer import LayerHeads, LayerReading
from rotoscope.models.reader import HeadReader
from rotoscope.runs.result import Tables
from rotoscope.scores.attention import log_normaliser
from rotoscope.scores.blocks import Blocks
from rotoscope.shapes import Bool, Float, Int, Tensor

CODES = 255
TELLING_MASS = 0.1


def bytes_of(shares: Float[np.ndarray, "..."]) -> np.ndarray:
    """Shares of attention in a byte each: steps of their square root, so that small ones keep their digits."""
    return np.rint(np.sqrt(np.clip(shares, 0, 1)) * CODES).astype(np.uint8)


def shares_of(codes: np.ndarray) -> Float[np.ndarray, "..."]:
    """Back again, to within 0.004."""
    return (codes / CODES) ** 2


def blocks_shown(prompt: pd.DataFrame) -> Blocks:
    """What is swapped in the prompt that is shown."""
    rows = prompt[prompt["block"] >= 0].groupby("block")["position"]
    return Blocks(tuple((int(a), int(b) + 1) for a, b in zip(rows.min(), rows.max(), strict=True)))


def moved_by(
    blocks: Blocks, first: int, second: int
) -> tuple[Int[np.ndarray, "moved"], Int[np.ndarray, "moved"]]:
    """The positions whose content moves when two blocks change places, and where what stands there then came from."""
    start, stop = blocks.spans[first][0], blocks.spans[second][1]
    positions, contents = np.arange(start, stop), np.array(blocks.exchange(first, second, stop)[start:])
    moved = positions != contents
    return positions[moved], contents[moved]


def after_swap(prompt: pd.DataFrame, head: Any, swap: int = 0) -> Float[np.ndarray, "n"]:
    """Attention of one head, a row of `attention`, after one of the swaps that are kept; 0 is the heaviest."""
    blocks, before = blocks_shown(prompt), np.asarray(head.attention, dtype=np.float64)
    moves = [moved_by(blocks, a, b)[0] for a, b in zip(head.first, head.second, strict=True)]
    begin = sum(map(len, moves[:swap]))
    positions, codes = moves[swap], np.asarray(head.moved)[begin : begin + len(moves[swap])]
    moved = shares_of(codes)
    rest = np.delete(before, positions).sum() + head.sink
    after = before * max(0.0, 1 - moved.sum()) / max(rest, 1e-38)
    after[positions] = moved
    return after


def telling_heads(heads: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """The most symbolic and most positional heads that look at the blocks at all, and the flattest one."""
    heads = heads.dropna(subset=["positional_score", "symbolic_score"])
    if heads.empty:
        return {}
    looking = heads[heads["swapped_mass"] >= TELLING_MASS]
    looking = heads if looking.empty else looking
    lean = looking["positional_score"] - looking["symbolic_score"]
    rows = {
        "most symbolic": lean.idxmin(),
        "most positional": lean.idxmax(),
        "flattest": heads["relative_entropy"].idxmax(),
    }
    return {name: (int(heads.loc[k, "layer"]), int(heads.loc[k, "head"])) for name, k in rows.items()}


def traces_of(prompt: pd.DataFrame, attention: pd.DataFrame, heads: dict[str, tuple[int, int]]) -> pd.DataFrame:
    """Attention by position before and after the heaviest swap: one row per (example, position)."""
    return _long(attention, heads, lambda head: _trace(prompt, head))


def vectors_of(
    prompt: pd.DataFrame, attention: pd.DataFrame, heads: dict[str, tuple[int, int]]
) -> pd.DataFrame:
    """The query and the swapped tokens' keys in the plane whose logits vary most over them, un-rotated and as they meet."""
    return _long(attention, heads, lambda head: _vectors(prompt, head))


def _long(attention: pd.DataFrame, heads: dict[str, tuple[int, int]], make: Any) -> pd.DataFrame:
    rows = {(row.layer, row.head): row for row in attention.itertuples()}
    parts = []
    for title, (layer, head) in heads.items():
        if (layer, head) in rows:
            parts.append(make(rows[layer, head]).assign(example=title, layer=layer, head=head))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _trace(prompt: pd.DataFrame, head: Any) -> pd.DataFrame:
    shown = prompt.iloc[: len(head.attention)]
    return pd.DataFrame(
        {
            "position": shown["position"].to_numpy(),
            "token": shown["token"].to_numpy(),
            "block": shown["block"].to_numpy(),
            "attention": np.asarray(head.attention),
            "attention_swapped": np.asarray(head.attention_swapped),
            "first_block": int(head.first[0]),
            "second_block": int(head.second[0]),
        }
    )


def _vectors(prompt: pd.DataFrame, head: Any) -> pd.DataFrame:
    if not head.frequency_id:
        return pd.DataFrame()
    query = int(prompt.loc[prompt["is_query"], "position"].iloc[-1])
    positions = prompt.loc[prompt["block"] >= 0, "position"].to_numpy()
    still = np.asarray(head.key_re, dtype=np.float64) + 1j * np.asarray(head.key_im, dtype=np.float64)
    # Turning the key by p - i does to the product what turning the query by i - p does.
    met = still * np.exp(1j * (positions - query) * head.angle)
    own = np.array([head.query_re + 1j * head.query_im])
    apart, together = np.concatenate((own, still)), np.concatenate((own, met))
    return pd.DataFrame(
        {
            "kind": ["query"] + ["key"] * len(positions),
            "position": [query, *positions],
            "re": apart.real,
            "im": apart.imag,
            "re_met": together.real,
            "im_met": together.imag,
            "frequency_id": head.frequency_id,
            "angle": head.angle,
        }
    )


# How the two tables are made: all heads and swaps of a layer at once, on its device; fetched when all layers have been read.


MOST_SWAPS, MOST_MOVED = 16, 8192
"""Swaps that are kept of a head, and numbers for them: fewer swaps where facts differ in length, and those between two that
change places move as well."""


def examples(
    reader: HeadReader,
    batch: Batch,
    tokenizer: Any = None,
    *,
    heads: Collection[tuple[int, int]] | None = None,
    swaps: int = MOST_SWAPS,
    also: Mapping[int, Int[Tensor, "heads two"]] = MappingProxyType({}),
    transform: Transform | None = None,
) -> Tables:
    """Tables `shown_prompt` and `attention`: the first prompt of a batch, and all heads on it, or those in `heads`.

    `also` holds, by layer, one swap for each head that is kept whatever it weighs. `transform` is what a null does to each
    layer before it is looked at.
    """
    first = Batch(batch.first, batch.prompts[:1], batch.queries[-1:], batch.inputs[:1])
    blocks = first.blocks_for(first.queries[0])
    layers = None if heads is None else {layer for layer, _ in heads}
    examined: list[LayerExamples] = []

    def visit(layer: LayerReading) -> None:
        if layers is None or layer.layer in layers:
            changed = layer if transform is None else transform(layer, first)
            examined.append(layer_examples(changed, blocks, swaps, also.get(layer.layer)))

    reader.read(first.tokens, first.queries, visit, size=None)
    rows = [row for layer in examined for row in layer.rows(blocks)]
    if heads is not None:
        chosen = set(heads)
        rows = [row for row in rows if (row["layer"], row["head"]) in chosen]
    return {"shown_prompt": shown_prompt(first, tokenizer), "attention": pd.DataFrame(rows)}


def shown_prompt(batch: Batch, tokenizer: Any) -> pd.DataFrame:
    """The first prompt of a batch, a row per token: its text, its block (-1: in none), whether it is asked about, or asks."""
    prompt, query = batch.prompts[0], batch.queries[-1]
    n = len(prompt.tokens)
    block = np.full(n, -1, dtype=np.int32)
    for k, (start, stop) in enumerate(batch.blocks_for(query).spans):
        block[start:stop] = k
    return pd.DataFrame(
        {
            "position": np.arange(n, dtype=np.int32),
            "token_id": np.array(prompt.tokens, dtype=np.int64),
            "token": [tokenizer.decode([t]) if tokenizer else f"#{t}" for t in prompt.tokens],
            "block": block,
            "is_asked": (block == prompt.asked) & (block >= 0),
            "is_query": np.arange(n) == query,
        }
    )


@dataclass(frozen=True)
class LayerExamples:
    """The heads of one layer on one prompt, on the layer's device."""

    layer: int
    attention: Float[Tensor, "heads n"]
    swapped: Float[Tensor, "heads n"]
    """Attention after the heaviest swap."""
    sink: Float[Tensor, "heads"]
    """Attention on a sink that is no token."""
    pairs: Int[Tensor, "heads swaps 2"]
    moved: Float[Tensor, "heads swaps entries"]
    """Attention after each swap where content may have moved."""
    has_moved: Bool[Tensor, "heads swaps entries"] | None
    """Where it has; None for everywhere."""
    plane: Int[Tensor, "heads"] | None
    """The plane whose logits vary most over the blocks; None for a layer that does not rotate."""
    query: Float[Tensor, "heads 2"] | None
    keys: Float[Tensor, "heads positions 2"] | None
    angles: tuple[float, ...]

    def rows(self, blocks: Blocks) -> list[dict[str, Any]]:
        """A row of `attention` for every head."""
        attention, swapped, sink, pairs = (
            part.cpu().numpy() for part in (self.attention.float(), self.swapped.float(), self.sink, self.pairs)
        )
        codes = bytes_of(self.moved.cpu().numpy())
        real = None if self.has_moved is None else self.has_moved.cpu().numpy()
        planes = self._planes(len(attention))
        return [
            {
                "layer": self.layer,
                "head": head,
                "attention": attention[head],
                "attention_swapped": swapped[head],
                "sink": float(sink[head]),
                "first": pairs[head, :, 0].astype(np.int32),
                "second": pairs[head, :, 1].astype(np.int32),
                "moved": codes[head].ravel() if real is None else codes[head][real[head]],
                **planes[head],
            }
            for head in range(len(attention))
        ]

    def _planes(self, heads: int) -> list[dict[str, Any]]:
        if self.plane is None or self.query is None or self.keys is None:
            return [NO_PLANE] * heads
        query, keys = self.query.cpu().numpy(), self.keys.cpu().numpy()
        return [
            {
                "frequency_id": plane + 1,
                "angle": self.angles[plane],
                "query_re": float(query[head, 0]),
                "query_im": float(query[head, 1]),
                "key_re": keys[head, :, 0],
                "key_im": keys[head, :, 1],
            }
            for head, plane in enumerate(self.plane.tolist())
        ]


NOTHING = np.zeros(0, dtype=np.float32)
NO_PLANE: dict[str, Any] = {"frequency_id": 0, "angle": 0.0, "query_re": 0.0, "query_im": 0.0, "key_re": NOTHING,
                            "key_im": NOTHING}  # fmt: skip
"""A layer that does not rotate."""


def layer_examples(
    layer: LayerReading, blocks: Blocks, swaps: int, also: Int[Tensor, "heads two"] | None = None
) -> LayerExamples:
    """All heads of a layer on the first prompt: attention, and attention after the heaviest swaps of each."""
    heads = layer.at(0)
    real = heads.real()[0].double()
    sink = None if heads.sinks is None else heads.sinks[0].double()
    log_z = log_normaliser(real, sink)
    before = (real - log_z[:, None]).exp()
    drawn = torch.zeros_like(log_z) if sink is None else (sink - log_z).exp()
    pairs = heaviest_swaps(before, blocks, swaps)
    if also is not None and len(also) == len(pairs) and pairs.shape[1] > 1:  # in place of the lightest
        absent = ~(pairs == also.to(pairs)[:, None]).all(-1).any(1)
        pairs[absent, -1] = also.to(pairs)[absent]
    positions, contents = moved_entries(blocks, pairs)
    logits = (
        heads.entries(positions.flatten(1), contents.flatten(1))[0].double().unflatten(1, (pairs.shape[1], -1))
    )
    has_moved = None if blocks.equal_length else positions != contents
    after, factor = _attention_after(logits - log_z[:, None, None], positions, has_moved, before, drawn)
    swapped = before * factor[:, :1]
    heaviest = (
        after[:, 0]
        if has_moved is None
        else torch.where(has_moved[:, 0], after[:, 0], swapped.gather(1, positions[:, 0]))
    )
    plane, query, keys = _deciding_plane(layer, heads, blocks) if layer.layout.planes else (None, None, None)
    return LayerExamples(
        layer=layer.layer,
        attention=before,
        swapped=swapped.scatter(1, positions[:, 0], heaviest),
        sink=drawn,
        pairs=pairs,
        moved=after,
        has_moved=has_moved,
        plane=plane,
        query=query,
        keys=keys,
        angles=tuple(layer.layout.angles.tolist()),
    )


def heaviest_swaps(
    attention: Float[Tensor, "heads n"], blocks: Blocks, swaps: int
) -> Int[Tensor, "heads swaps 2"]:
    """The swaps with the largest difference in attention between their blocks, per token, largest first.

    Only pairs of ranks are compared that can be among them: a pair of rank i from the top and rank j from the bottom has
    (i + 1)(j + 1) - 1 others that weigh no less.
    """
    m, start, stop = len(blocks), blocks.spans[0][0], blocks.spans[-1][1]
    width = 2 * max(blocks.lengths) if blocks.equal_length else stop - start
    swaps = max(1, min(swaps, MOST_MOVED // width, m * (m - 1) // 2))
    places = blocks.on(attention.device)
    sums = torch.nn.functional.pad(attention.cumsum(1), (1, 0))
    mean = (sums[:, places.spans[1]] - sums[:, places.spans[0]]) / places.lengths
    order = mean.argsort(dim=1, descending=True, stable=True)
    ranks = [(i, m - 1 - j) for i in range(m - 1) for j in range(min(m - 1 - i, max(1, swaps // (i + 1))))]
    high, low = torch.tensor(ranks, device=attention.device).unbind(1)
    gaps = mean.gather(1, order[:, high]) - mean.gather(1, order[:, low])
    best = gaps.argsort(dim=1, descending=True, stable=True)[:, :swaps]
    return torch.stack((order[:, high].gather(1, best), order[:, low].gather(1, best)), -1).sort(-1).values


def moved_entries(
    blocks: Blocks, pairs: Int[Tensor, "heads swaps 2"]
) -> tuple[Int[Tensor, "heads swaps entries"], Int[Tensor, "heads swaps entries"]]:
    """Positions, and whose content stands there after each swap. Of blocks that differ in length these are all positions from
    the first block to the last, most of which keep their content."""
    spans = blocks.on(pairs.device).spans
    (a, c), (b, d) = ((edge[pairs].unbind(-1)) for edge in spans)  # [a, b) changes places with [c, d)
    a, b, c, d = (edge[..., None] for edge in (a, b, c, d))
    if blocks.equal_length:
        offset = torch.arange(blocks.lengths[0], device=pairs.device)
        return torch.cat((a + offset, c + offset), -1), torch.cat((c + offset, a + offset), -1)
    p = torch.arange(blocks.spans[0][0], blocks.spans[-1][1], device=pairs.device).expand(*pairs.shape[:2], -1)
    contents = torch.where(p < a + d - c, p - a + c, torch.where(p < d - b + a, p - d + c + b - a, p - d + b))
    return p, torch.where((p < a) | (p >= d), p, contents)


def _attention_after(
    logits: Float[Tensor, "heads swaps entries"],
    positions: Int[Tensor, "heads swaps entries"],
    has_moved: Bool[Tensor, "heads swaps entries"] | None,
    before: Float[Tensor, "heads n"],
    drawn: Float[Tensor, "heads"],
) -> tuple[Float[Tensor, "heads swaps entries"], Float[Tensor, "heads swaps"]]:
    """Attention where content moved, from its logits less the old normaliser, and by what factor a swap changes all the rest."""
    stays = torch.ones(*positions.shape[:2], before.shape[1], dtype=before.dtype, device=before.device)
    if has_moved is None:
        stays.scatter_(2, positions, 0.0)
    else:
        logits = logits.masked_fill(~has_moved, -torch.inf)
        stays.scatter_(2, positions, (~has_moved).to(before.dtype))
    # Summed, since one less what moved would lose its digits where nearly all of it moves.
    rest = (stays @ before[:, :, None])[..., 0] + drawn[:, None]
    largest = logits.amax(-1).clamp(min=0.0)
    weights = (logits - largest[..., None]).exp()
    total = (weights.sum(-1) + rest * (-largest).exp()).clamp(min=1e-300)
    return weights / total[..., None], (-largest).exp() / total


def _deciding_plane(
    layer: LayerReading, heads: LayerHeads, blocks: Blocks
) -> tuple[Int[Tensor, "heads"], Float[Tensor, "heads 2"], Float[Tensor, "heads positions 2"]]:
    """The plane whose logits vary most over the blocks, the query in it, and the keys, un-rotated."""
    positions = blocks.on(layer.keys.device).positions
    plane = heads.plane_logits[0, :, positions].std(1).argmax(-1)
    index = torch.arange(len(plane), device=plane.device)
    pairs = layer.query.flatten(1, 2)[0, :, 0, : 2 * layer.layout.planes].unflatten(-1, (-1, 2))
    keys = layer.keys[0, :, positions, : 2 * layer.layout.planes].unflatten(-1, (-1, 2))
    still = keys[index // heads.query.shape[2], :, plane]
    return plane, pairs[index, plane].float(), still.float()
