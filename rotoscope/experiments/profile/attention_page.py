"""The prompt and every head's attention on it, as the page needs them: a byte a share, as many swaps as there is room for."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from rotoscope.errors import RunError
from rotoscope.experiments.page_data import PAGE, PageRun, clean
from rotoscope.experiments.profile.examples import blocks_shown, bytes_of, moved_by
from rotoscope.scores.attention import attention_weights
from rotoscope.shapes import Float, Int, Tensor
from rotoscope.stats.aggregate import HEAD

Pairs = Mapping[int, Int[Tensor, "heads two"]]
"""By layer: the two blocks that change places, for every head."""


class PermutedAttention:
    """Attention of every head after its heaviest swap of those that are run on one prompt."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        """By layer, for every head: the difference in attention between the two blocks, the blocks, and attention after the swap."""

    def note(
        self,
        pairs: Int[Tensor, "swaps two"],
        number: int,
        layer: Any,
        logits: Float[Tensor, "swaps heads n"],
    ) -> None:
        """Some more swaps of one layer."""
        first, second = layer.attention[:, pairs.to(layer.attention.device)].unbind(-1)
        gap, best = (first - second).abs().max(1)
        chosen = logits[best, torch.arange(len(best), device=best.device)].double()
        after = attention_weights(chosen, None if layer.sinks is None else layer.sinks.double()).float()
        new = gap, pairs.to(best.device)[best], after
        old = self.layers.get(number)
        if old is not None:
            lighter = gap <= old[0]
            new = (
                torch.where(lighter, old[0], gap),
                torch.where(lighter[:, None], old[1], new[1]),
                torch.where(lighter[:, None], old[2], after),
            )
        self.layers[number] = new

    def table(self) -> pd.DataFrame:
        """One row per head: the two blocks, and its attention by position."""
        rows = [
            {"layer": number, "head": head, "first": pair[0], "second": pair[1], "attention": after}
            for number, (_, pairs, shares) in sorted(self.layers.items())
            for head, (pair, after) in enumerate(zip(pairs.tolist(), shares.cpu().numpy(), strict=True))
        ]
        kinds = dict.fromkeys(("layer", "head", "first", "second"), "int16")
        return pd.DataFrame(rows, columns=[*kinds, "attention"]).astype(kinds)


def pairs_of(table: pd.DataFrame | None) -> Pairs:
    """The swaps of such a table, layer by layer; of a layer that lacks heads none."""
    if table is None:
        return {}
    layers = table.sort_values(["layer", "head"]).groupby("layer")
    return {
        int(number): torch.tensor(rows[["first", "second"]].to_numpy(dtype="int64")) for number, rows in layers
    }


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


def shown_tab(page_run: PageRun, places: pd.DataFrame, room: int = PAGE) -> dict[str, Any]:
    """The first prompt, and what every head made of it, in so many letters; or why there is nothing to show."""
    if not {"attention", "shown_prompt"} <= set(page_run.tables):
        return {"why": _why(page_run)}
    prompt = page_run.tables["shown_prompt"]
    rows = {(row.layer, row.head): row for row in page_run.tables["attention"].itertuples()}
    pairs = list(places[HEAD].itertuples(index=False, name=None))
    if not set(pairs) <= set(rows):
        raise RunError(f"it has {len(set(pairs) & set(rows))} of {len(pairs)} heads")
    heads = [rows[pair] for pair in pairs]
    n = len(heads[0].attention)
    _check(prompt, heads, n)
    tab: dict[str, Any] = {
        "token": [str(token) for token in prompt["token"]],
        "block": clean(prompt["block"]),
        "asked": sorted({int(block) for block in prompt.loc[prompt["is_asked"], "block"]}),
        "query": int(prompt.loc[prompt["is_query"], "position"].iloc[-1]),
        "n": n,
    }
    swaps = Swaps(prompt, heads)
    tab["most_kept"] = swaps.most
    attention = _text(np.stack([bytes_of(np.asarray(head.attention)) for head in heads]))
    left = room - len(attention) - len(swaps.kept(1)["swaps"])
    if left < 0:
        many = f"{n:,} tokens of {len(heads):,} heads"
        return tab | {"why": f"the attention of {many} has no room in a page; rotoscope serve shows more"}
    permuted = _permuted(page_run.tables.get("attention_prompt_permuted"), heads, n)
    if permuted and len(permuted["attention"]) <= left:
        tab["permuted"], left = permuted, left - len(permuted["attention"])
    tab |= {"attention": attention, "sink": clean([float(head.sink) for head in heads]), "sharp": swaps.sharp()}
    vectors = _vectors(heads)
    if len(vectors["keys"]) <= left:
        tab["vectors"], left = vectors, left - len(vectors["keys"])
    return tab | swaps.within(left)


def _check(prompt: pd.DataFrame, heads: list[Any], n: int) -> None:
    """A stranger's table must not reach the script."""
    block, m = prompt["block"].to_numpy(), int(prompt["block"].max()) + 1
    inside = block[block >= 0]
    if not (inside == np.sort(inside)).all() or set(inside) != set(range(m)) or not 0 < n <= len(prompt):
        raise RunError("its blocks are not numbered one after the other")
    if (prompt["position"].to_numpy() != np.arange(len(prompt))).any() or prompt["token"].isna().any():
        raise RunError("its tokens do not follow each other")
    for head in heads:
        attention = np.asarray(head.attention, dtype=float)
        swaps = np.stack((head.first, head.second))
        if len(attention) != n or not np.isfinite(attention).all() or not np.isfinite(head.sink):
            raise RunError(f"the attention of head {head.layer}:{head.head} is not a number for each token")
        if swaps.shape[1] == 0 or not ((swaps >= 0) & (swaps < m)).all() or (swaps[0] >= swaps[1]).any():
            raise RunError(f"the swaps of head {head.layer}:{head.head} are not between its blocks")


def _permuted(table: pd.DataFrame | None, heads: list[Any], n: int) -> dict[str, Any] | None:
    """Attention of every head after a swap carried out in the prompt, and which of its swaps that is; -1: one that is not here."""
    if table is None:
        return None
    rows = {(row.layer, row.head): row for row in table.itertuples(index=False)}
    swap, codes = [], []
    for head in heads:
        row = rows.get((head.layer, head.head))
        attention = np.zeros(n) if row is None else np.asarray(row.attention, dtype=float)
        if len(attention) != n or not np.isfinite(attention).all():
            raise RunError(f"the attention of head {head.layer}:{head.head} is not a number for each token")
        kept = list(zip(head.first, head.second, strict=True))
        pair = None if row is None else (row.first, row.second)
        swap.append(kept.index(pair) if pair in kept else -1)
        codes.append(bytes_of(attention))
    return {"swap": swap, "attention": _text(np.stack(codes))}


def noun_of(page_run: PageRun) -> str:
    """What is swapped, in a word."""
    sizes = page_run.run.settings.get("task_settings")
    finer = sizes.get("granularity") if isinstance(sizes, dict) else None
    if finer in ("symbol", "token"):
        return str(finer)
    prompt = page_run.tables.get("shown_prompt", pd.DataFrame({"block": []}))
    single = prompt.loc[prompt["block"] >= 0, "block"].is_unique
    return NOUNS.get(str(page_run.run.settings.get("task")), "token" if single else "block")


def _why(page_run: PageRun) -> str:
    if not page_run.complete:
        return "attention is kept when the run is finished"
    if page_run.run.settings.get("examples") is False:
        return "the run was made with --no-examples: no attention was kept"
    return "the run has no attention of every head"


TRIED, LEAST = 8, 0.01


class Swaps:
    """Which swaps of a head are here, heaviest first, and its attention after each on the positions whose content moved."""

    def __init__(self, prompt: pd.DataFrame, heads: list[Any]) -> None:
        self.heads = heads
        self.blocks = blocks_shown(prompt)
        sizes: dict[tuple[int, int], int] = {}

        def size(pair: tuple[int, int]) -> int:
            if pair not in sizes:
                sizes[pair] = len(moved_by(self.blocks, *pair)[0])
            return sizes[pair]

        self.ends = [np.cumsum([size(pair) for pair in zip(h.first, h.second, strict=True)]) for h in heads]
        self.most = max(len(end) for end in self.ends)
        if any(len(head.moved) != end[-1] for head, end in zip(heads, self.ends, strict=True)):
            raise RunError("it has not one number for each token that a swap moves")

    def sharp(self) -> dict[int, str]:
        """Heads with nearly all attention on what their heaviest swap moves, and elsewhere after it: a byte cannot tell what the
        others had before, so what they have then is written out."""
        written_out = {}
        for row, head in enumerate(self.heads):
            moved = moved_by(self.blocks, int(head.first[0]), int(head.second[0]))[0]
            before, after = (
                np.delete(share, moved).sum() for share in (head.attention, head.attention_swapped)
            )
            if before < LEAST < after:
                written_out[row] = _text(bytes_of(np.asarray(head.attention_swapped)))
        return written_out

    def within(self, room: int) -> dict[str, Any]:
        """As many of each head as there is room for, one at least; how small they become is tried on a few."""
        swaps = self.kept(min(self.most, TRIED))
        while len(swaps["swaps"]) > room and swaps["kept"] > 1:
            swaps = self.kept(max(1, swaps["kept"] // 2))
        if swaps["kept"] == TRIED:  # lighter swaps become smaller: more may fit than the few say
            fits = TRIED * room // len(swaps["swaps"])
            for more in (fits + fits // 6, fits):
                larger = self.kept(min(self.most, max(TRIED, more)))
                if len(larger["swaps"]) <= room:
                    return larger
        return swaps

    def kept(self, most: int) -> dict[str, Any]:
        """The heaviest of each head: the blocks' numbers, then attention where content moved, head by head."""
        pairs = np.full((len(self.heads), most, 2), 65535, dtype="<u2")
        moved, starts, used = [], [], 0
        for row, (head, end) in enumerate(zip(self.heads, self.ends, strict=True)):
            number = min(most, len(end))
            pairs[row, :number] = np.stack((head.first[:number], head.second[:number]), axis=1)
            codes = np.asarray(head.moved, dtype=np.uint8)[: end[number - 1]]
            moved.append(codes)
            starts.append(used)
            used += len(codes)
        m = len(self.blocks)
        packed = np.concatenate((np.frombuffer(pairs.tobytes(), dtype=np.uint8), *moved))
        return {"swaps": _text(packed), "kept": most, "all_swaps": m * (m - 1) // 2, "starts": starts}


def _vectors(heads: list[Any]) -> dict[str, Any]:
    """Keys in the plane that decides, in steps of the longest; of the query the direction."""
    width = max(len(head.key_re) for head in heads)
    none = np.zeros(width)  # of a layer that does not rotate
    keys = np.stack(
        [
            np.stack([part if len(part) else none for part in (head.key_re, head.key_im)], axis=1)
            for head in heads
        ]
    )
    longest = np.maximum(np.linalg.norm(keys, axis=2).max(1, initial=0.0), 1e-12)
    steps = np.rint(127 * keys / longest[:, None, None]).astype(np.int8)
    return {
        "frequency_id": [int(head.frequency_id) for head in heads],
        "angle": clean([float(head.angle) for head in heads], 6),
        "query": clean([float(np.arctan2(head.query_im, head.query_re)) for head in heads]),
        "longest": clean(longest),
        "keys": _text(steps),
    }


def _text(values: np.ndarray) -> str:
    """Bytes as text, made small; the page unpacks them when it opens."""
    small = zlib.compress(np.ascontiguousarray(values).tobytes(), level=6)
    return base64.b64encode(small).decode("ascii")
