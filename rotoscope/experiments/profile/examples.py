"""One prompt as the model was shown it, and what every head made of it: attention before and after swaps.

Two tables. `shown_prompt` has a row per token. `attention` has a row per head, with lists in it: the attention of the query
before any swap and after the heaviest, which swaps are kept, heaviest first, and for each of them the attention after it on
the positions whose content moved. All others keep their attention up to a common factor, so that no more is needed.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
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
from rotoscope.shapes import Float, Int

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
    seen = prompt.iloc[: len(head.attention)]
    return pd.DataFrame(
        {
            "position": seen["position"].to_numpy(),
            "token": seen["token"].to_numpy(),
            "block": seen["block"].to_numpy(),
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


# Every head on one prompt: its attention before and after swaps, and the vectors in the plane that decides it.
#
# What P1 draws for single heads (Fig. 1 and 3C), for all of them. How it is kept, see `experiments.profile.examples`.


MOST_SWAPS, MOST_MOVED = 512, 8192
"""Swaps that are kept of a head, and numbers for them: all swaps of 32 facts, or half of them where facts differ in length and
those between two that change places move as well."""


def examples(
    reader: HeadReader,
    batch: Batch,
    tokenizer: Any = None,
    *,
    heads: Collection[tuple[int, int]] | None = None,
    swaps: int = MOST_SWAPS,
    transform: Transform | None = None,
) -> Tables:
    """Tables `shown_prompt` and `attention`: the first prompt of a batch, and all heads on it, or those named.

    `transform` is what a null does to each layer before it is looked at.
    """
    one = Batch(batch.first, batch.prompts[:1], batch.queries[-1:], batch.inputs[:1])
    found = Shown(one.blocks_for(one.queries[0]), swaps)
    rows: list[dict[str, Any]] = []

    def visit(layer: LayerReading) -> None:
        wanted = None if heads is None else sorted(head for at, head in heads if at == layer.layer)
        if wanted is None or wanted:
            rows.extend(found.rows(layer if transform is None else transform(layer, one), wanted))

    reader.read(one.tokens, one.queries, visit, size=None)
    return {"shown_prompt": shown_prompt(one, tokenizer), "attention": pd.DataFrame(rows)}


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


class Shown:
    """What is kept of the heads of a layer on a prompt with these blocks."""

    def __init__(self, blocks: Blocks, swaps: int) -> None:
        self.blocks, self.swaps = blocks, swaps
        self.moves: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def rows(self, layer: LayerReading, heads: list[int] | None) -> list[dict[str, Any]]:
        """A row of `attention` for every head, or for those named."""
        query = layer.at(0)
        chosen = list(range(query.heads)) if heads is None else heads
        real = query.real()[0].double()
        sink = None if query.sinks is None else query.sinks[0].double()
        log_z = log_normaliser(real, sink)
        before = (real - log_z[:, None]).exp().cpu().numpy()
        drawn = np.zeros(query.heads) if sink is None else (sink - log_z).exp().cpu().numpy()
        swaps = {head: self.heaviest(before[head]) for head in chosen}
        after = self._moved(query, log_z.cpu().numpy(), before, drawn, swaps)
        vectors = self._vectors(layer, query) if layer.layout.planes else None
        rows = []
        for head in chosen:
            moved, factor = after[head]
            swapped = before[head] * factor
            swapped[self._move(*swaps[head][0])[0]] = moved[0]
            about = {
                "layer": layer.layer,
                "head": head,
                "attention": before[head].astype(np.float32),
                "attention_swapped": swapped.astype(np.float32),
                "sink": float(drawn[head]),
                "first": np.array([a for a, _ in swaps[head]], dtype=np.int32),
                "second": np.array([b for _, b in swaps[head]], dtype=np.int32),
                "moved": bytes_of(np.concatenate(moved)),
            }
            rows.append(about | (NO_PLANE if vectors is None else vectors[head]))
        return rows

    def heaviest(self, attention: Float[np.ndarray, "n"]) -> list[tuple[int, int]]:
        """The swaps with the largest difference in attention between their blocks, per token, largest first."""
        mean = np.add.reduceat(attention[self._positions], self._starts) / self.blocks.lengths
        order = np.argsort(-mean, kind="stable")
        high, low = self._candidates
        gaps = mean[order[high]] - mean[order[low]]
        best = np.argsort(-gaps, kind="stable")[: self.swaps]
        pairs = np.sort(np.stack((order[high[best]], order[low[best]]), axis=1), axis=1)
        found = [(int(a), int(b)) for a, b in pairs]
        numbers = np.cumsum([len(self._move(*pair)[0]) for pair in found])
        return found[: max(1, int((numbers <= MOST_MOVED).sum()))]

    @cached_property
    def _positions(self) -> Int[np.ndarray, "positions"]:
        return np.array(self.blocks.positions)

    @cached_property
    def _starts(self) -> Int[np.ndarray, "blocks"]:
        return np.cumsum([0, *self.blocks.lengths[:-1]])

    @cached_property
    def _candidates(self) -> tuple[Int[np.ndarray, "pairs"], Int[np.ndarray, "pairs"]]:
        """Ranks between which the heaviest swaps lie: a pair of ranks i from the top and j from the bottom has (i + 1)(j + 1)
        - 1 others that weigh no less."""
        m = len(self.blocks)
        pairs = [
            (i, m - 1 - j) for i in range(m - 1) for j in range(min(m - 1 - i, max(1, self.swaps // (i + 1))))
        ]
        high, low = np.array(pairs).T
        return high, low

    def _move(self, first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
        if (first, second) not in self.moves:
            self.moves[first, second] = moved_by(self.blocks, first, second)
        return self.moves[first, second]

    def _moved(
        self,
        query: LayerHeads,
        log_z: Float[np.ndarray, "heads"],
        before: Float[np.ndarray, "heads n"],
        drawn: Float[np.ndarray, "heads"],
        swaps: dict[int, list[tuple[int, int]]],
    ) -> dict[int, tuple[list[np.ndarray], float]]:
        """For every head and swap, the attention after it on the positions whose content moved; and by what factor the heaviest
        swap changes all the others. `drawn` is what goes to a sink that is no token."""
        moves = {head: [self._move(*pair) for pair in pairs] for head, pairs in swaps.items()}
        ends = {head: np.cumsum([len(p) for p, _ in found]) for head, found in moves.items()}
        longest = max(int(end[-1]) for end in ends.values())
        entries = np.zeros((2, query.heads, longest), dtype=np.int64)
        for head, found in moves.items():
            for k in range(2):
                entries[k, head, : ends[head][-1]] = np.concatenate([move[k] for move in found])
        positions, contents = torch.from_numpy(entries).to(query.keys.device)
        logits = query.entries(positions, contents)[0].double().cpu().numpy()
        made = {}
        for head, end in ends.items():
            starts = np.concatenate(([0], end[:-1]))
            # Summed, since one less what moved would lose its digits where nearly all of it moves.
            stays = np.ones((len(end), before.shape[1]))
            stays[np.repeat(np.arange(len(end)), np.diff(end, prepend=0)), entries[0, head, : end[-1]]] = 0
            rest = stays @ before[head] + drawn[head]
            after, factors = _normalised(logits[head, : end[-1]] - log_z[head], rest, starts)
            made[head] = np.split(after, end[:-1]), float(factors[0])
        return made

    def _vectors(self, layer: LayerReading, query: LayerHeads) -> list[dict[str, Any]]:
        """Of every head: the plane whose logits vary most over the blocks, the query and the keys in it, un-rotated."""
        positions = torch.tensor(self.blocks.positions, device=layer.keys.device)
        seen, keys = (part[:, positions] for part in query.by_plane())  # [heads, positions, planes, 2]
        plane = (seen * keys).sum(-1).std(1).argmax(-1)
        heads = torch.arange(len(plane), device=plane.device)
        still = keys[heads, :, plane].float().cpu().numpy()
        pairs = layer.query.flatten(1, 2)[0, :, 0, : 2 * layer.layout.planes].unflatten(-1, (-1, 2))
        own = pairs[heads, plane].float().cpu().numpy()
        angles = layer.layout.angles.tolist()
        return [
            {
                "frequency_id": plane[h].item() + 1,
                "angle": float(angles[plane[h]]),
                "query_re": float(own[h, 0]),
                "query_im": float(own[h, 1]),
                "key_re": still[h, :, 0],
                "key_im": still[h, :, 1],
            }
            for h in range(len(own))
        ]


NOTHING = np.zeros(0, dtype=np.float32)
NO_PLANE: dict[str, Any] = {"frequency_id": 0, "angle": 0.0, "query_re": 0.0, "query_im": 0.0, "key_re": NOTHING,
                            "key_im": NOTHING}  # fmt: skip
"""A layer that does not rotate."""


def _normalised(
    logits: Float[np.ndarray, "moved"], rest: Float[np.ndarray, "swaps"], starts: Int[np.ndarray, "swaps"]
) -> tuple[Float[np.ndarray, "moved"], Float[np.ndarray, "swaps"]]:
    """For each swap the softmax of its logits, less the old normaliser, together with what was left to all other positions;
    and what those are multiplied with."""
    sizes = np.diff([*starts, len(logits)])
    largest = np.maximum(np.maximum.reduceat(logits, starts), 0.0)
    weights = np.exp(logits - np.repeat(largest, sizes))
    whole = np.maximum(np.add.reduceat(weights, starts) + rest * np.exp(-largest), 1e-300)
    return weights / np.repeat(whole, sizes), np.exp(-largest) / whole
