"""One prompt as the model was shown it, and what every head made of it: attention before and after swaps.

Two tables. `shown_prompt` has a row per token. `attention` has a row per head, with lists in it: the attention of the query
before any swap and after the heaviest, which swaps are kept, heaviest first, and for each of them the attention after it on
the positions whose content moved. All others keep their attention up to a common factor, so that no more is needed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from rotoscope.maths.blocks import Blocks
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
