"""The prompt and every head's attention on it, as the page needs them: a byte a share, as many swaps as there is room for."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.report.columns import clean
from rotoscope.report.salvage import Salvaged
from rotoscope.results.shown import ONE_HEAD, blocks_shown, codes_of, moved_by

PAGE, SERVED = 2_500_000, 24_000_000
"""Bytes for attention in a page that is sent around, and in one that a server on the same machine gives."""
NOUNS = {
    "binding": "fact",
    "groups": "fact",
    "lookup": "line",
    "recall": "word",
    "text": "piece",
    "number": "pair",
    "letter": "pair",
}
"""What is swapped, by task; elsewhere single tokens."""


def shown_tab(found: Salvaged, places: pd.DataFrame, room: int = PAGE) -> dict[str, Any]:
    """The first prompt, and what every head made of it; or why there is nothing to show."""
    if not {"attention", "shown_prompt"} <= set(found.tables):
        return {"why": _why(found)}
    prompt = found.tables["shown_prompt"]
    rows = {(row.layer, row.head): row for row in found.tables["attention"].itertuples()}
    heads = [rows[pair] for pair in places[ONE_HEAD].itertuples(index=False, name=None)]
    n = len(heads[0].attention)
    tab: dict[str, Any] = {
        "token": [str(token) for token in prompt["token"]],
        "block": clean(prompt["block"]),
        "asked": sorted({int(block) for block in prompt.loc[prompt["is_asked"], "block"]}),
        "query": int(prompt.loc[prompt["is_query"], "position"].iloc[-1]),
        "n": n,
    }
    size = n * len(heads)
    if size > room:
        many = f"{n:,} tokens of {len(heads):,} heads"
        return tab | {"why": f"the attention of {many} has no room in a page; rotoscope serve shows more"}
    tab["attention"] = _text(np.stack([codes_of(np.asarray(head.attention)) for head in heads]))
    vectors = _vectors(heads)
    if size + vectors["bytes"] <= room:
        tab["vectors"], size = vectors, size + vectors["bytes"]
    return tab | _swaps(prompt, heads, room - size)


def noun_of(found: Salvaged) -> str:
    """What is swapped, in a word."""
    sizes = found.run.settings.get("task_settings")
    finer = sizes.get("granularity") if isinstance(sizes, dict) else None
    return (
        str(finer) if finer in ("symbol", "token") else NOUNS.get(str(found.run.settings.get("task")), "token")
    )


def _why(found: Salvaged) -> str:
    if not found.complete:
        return "attention is kept when the run is finished"
    if found.run.settings.get("examples") is False:
        return "the run was made with --no-examples: no attention was kept"
    return (
        f"the run was made by rotoscope {found.run.versions.get('rotoscope', 'of another version')}, which kept no attention of "
        "every head: make it again to see it"
    )


def _swaps(prompt: pd.DataFrame, heads: list[Any], room: int) -> dict[str, Any]:
    """Which swaps of a head are here, heaviest first, and its attention after each on the positions whose content moved."""
    blocks = blocks_shown(prompt)
    sizes: dict[tuple[int, int], int] = {}

    def size(pair: tuple[int, int]) -> int:
        if pair not in sizes:
            sizes[pair] = len(moved_by(blocks, *pair)[0])
        return sizes[pair]

    ends = [np.cumsum([size(pair) for pair in zip(h.first, h.second, strict=True)]) for h in heads]
    most = max(len(end) for end in ends)
    # Four bytes name the two blocks of a swap.
    cost = np.cumsum([sum(4 + _step(end, k) for end in ends) for k in range(most)])
    kept = max(1, int((cost <= room).sum()))
    pairs = np.full((len(heads), kept, 2), 65535, dtype="<u2")
    moved, starts, used = [], [], 0
    for row, (head, end) in enumerate(zip(heads, ends, strict=True)):
        some = min(kept, len(end))
        pairs[row, :some] = np.stack((head.first[:some], head.second[:some]), axis=1)
        codes = np.asarray(head.moved, dtype=np.uint8)[: end[some - 1]]
        moved.append(codes)
        starts.append(used)
        used += len(codes)
    m = len(blocks)
    return {
        "pairs": _text(pairs),
        "kept": kept,
        "swaps": m * (m - 1) // 2,
        "moved": _text(np.concatenate(moved)),
        "starts": starts,
    }


def _step(ends: np.ndarray, k: int) -> int:
    return 0 if k >= len(ends) else int(ends[k] - (ends[k - 1] if k else 0))


def _vectors(heads: list[Any]) -> dict[str, Any]:
    """Keys in the plane that decides, in steps of the longest; of the query the direction."""
    keys = np.stack(
        [np.stack((_padded(head.key_re, heads), _padded(head.key_im, heads)), axis=1) for head in heads]
    )
    longest = np.maximum(np.linalg.norm(keys, axis=2).max(1, initial=0.0), 1e-12)
    steps = np.rint(127 * keys / longest[:, None, None]).astype(np.int8)
    return {
        "frequency_id": [int(head.frequency_id) for head in heads],
        "angle": clean([float(head.angle) for head in heads], 6),
        "query": clean([float(np.arctan2(head.query_im, head.query_re)) for head in heads]),
        "longest": clean(longest),
        "keys": _text(steps),
        "bytes": steps.size,
    }


def _padded(values: Any, heads: list[Any]) -> np.ndarray:
    """A layer that does not rotate has no plane; its heads have zeros."""
    width = max(len(head.key_re) for head in heads)
    return np.asarray(values, dtype=float) if len(values) else np.zeros(width)


def _text(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
