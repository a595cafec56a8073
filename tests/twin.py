"""Brute force: every swap is really carried out and the softmax taken again.

Nothing here uses a closed form, and nothing here is imported by the package. The `Literal` twin works on bare
queries and keys in numpy; the model twin permutes what an attention module of a real model is given and lets the
model attend with its own code.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rotoscope.models.reader import HeadReader
from rotoscope.models.sites import Call, Site, attending


@dataclass
class Literal:
    """One head, one query, keys laid out at positions 0..n-1, of which the last is the query's own."""

    query: np.ndarray  # [planes, 2]
    keys: np.ndarray  # [n, planes, 2]
    angles: np.ndarray  # [planes]
    scale: float = 1.0
    visible: np.ndarray | None = None  # [n]
    sink: float | None = None

    @property
    def n(self) -> int:
        return len(self.keys)

    def attention(self, order: Sequence[int]) -> np.ndarray:
        """Attention per position when content order[p] stands at position p."""
        query = rotate(self.query, self.angles * (self.n - 1))
        logits = np.array(
            [self.scale * (rotate(self.keys[c], self.angles * p) * query).sum() for p, c in enumerate(order)]
        )
        return softmax(logits, self.visible, self.sink)

    def swap_tokens(self) -> list[tuple[list[list[int]], list[int]]]:
        return self.swap_blocks([(p, p + 1) for p in range(self.n - 1)])

    def swap_blocks(self, blocks: Sequence[tuple[int, int]]) -> list[tuple[list[list[int]], list[int]]]:
        """All swaps: (the two slots as positions after the swap, the order of contents after it)."""
        return [exchange(self.n, first, second) for first, second in itertools.combinations(blocks, 2)]

    def scores(
        self, tau: float, blocks: Sequence[tuple[int, int]] | None = None, variant: str = "plain"
    ) -> tuple[float, float, float]:
        """Positional score, symbolic score, effective number of swaps; None where no swap is seen."""
        spans = [(p, p + 1) for p in range(self.n - 1)] if blocks is None else list(blocks)
        before = self.attention(range(self.n))
        shared = 1 / (self.n if self.visible is None else self.visible.sum())
        mass = sum(before[a:b].sum() for a, b in spans)
        gaps, positional, symbolic = [], [], []
        for (a, b), (c, d) in itertools.combinations(spans, 2):
            slots, order = exchange(self.n, (a, b), (c, d))
            old = np.array([before[a:b].mean(), before[c:d].mean()])
            if old.max() == 0:
                continue
            after = self.attention(order)
            new = np.array([after[slots[0]].mean(), after[slots[1]].mean()])
            gap = abs(old[0] - old[1])
            gaps.append(gap / mass if variant == "renormalised" else gap)
            if variant == "centred":
                old, new = focus(old, shared), focus(new, shared)
            positional.append(cosine(new, old))
            symbolic.append(cosine(new, old[::-1]))
        weight = np.exp((np.array(gaps) - max(gaps)) / tau)
        weight /= weight.sum()
        return float(weight @ positional), float(weight @ symbolic), float(1 / (weight**2).sum())


def exchange(n: int, first: tuple[int, int], second: tuple[int, int]) -> tuple[list[list[int]], list[int]]:
    """Exchange two spans of 0..n-1 whole; what stands between them shifts when lengths differ."""
    (a, b), (c, d) = first, second
    whole = list(range(n))
    order = whole[:a] + whole[c:d] + whole[b:c] + whole[a:b] + whole[d:]
    slots = [list(range(a, a + d - c)), list(range(d - (b - a), d))]
    return slots, order


def rotate(pairs: np.ndarray, angles: np.ndarray) -> np.ndarray:
    turned = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * angles)
    return np.stack((turned.real, turned.imag), axis=-1)


def softmax(logits: np.ndarray, visible: np.ndarray | None, sink: float | None) -> np.ndarray:
    shown = np.ones(len(logits), bool) if visible is None else visible
    everything = logits[shown] if sink is None else np.append(logits[shown], sink)
    weights = np.where(shown, np.exp(logits - everything.max()), 0.0)
    return weights / np.exp(everything - everything.max()).sum()


def focus(weights: np.ndarray, shared: float) -> np.ndarray:
    beyond = weights - shared
    return np.where(np.abs(beyond) < 1e-14, 0.0, beyond)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    if not (a.any() and b.any()):
        return 0.0
    a, b = a / np.abs(a).max(), b / np.abs(b).max()  # tiny weights must not underflow
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def model_scores(
    reader: HeadReader,
    tokens: torch.Tensor,
    blocks: Sequence[tuple[int, int]],
    tau: float,
    layers: Sequence[int] | None = None,
    at_once: int = 64,
) -> dict[int, np.ndarray]:
    """layer -> [heads, 2] scores of a real model, swap by swap through its own attention, in batches."""
    found: dict[int, np.ndarray] = {}

    def on_call(site: Site, call: Call) -> None:
        if layers is None or site.layer in layers:
            found[site.layer] = _site_scores(site, call, blocks, tau, at_once)

    with torch.no_grad(), attending(reader.model, "eager"):
        reader._run(tokens, on_call=on_call)
    return found


def model_planes(reader: HeadReader, ids: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> dict:
    """(layer, head, frequency id) -> logits [position, content] of one plane at the last position, from the model itself.

    The states a layer attends over are moved, one place further each time, and the model projects and rotates them again
    where they then stand; of its finished queries and keys, one plane at a time is multiplied. `pairs` are a head's
    rotating dimensions, fastest plane first, as the architecture lays them out; id 0 is what is left, if anything.
    """
    found: dict[tuple[int, int, int], torch.Tensor] = {}
    n = ids.shape[1]

    def on_call(site: Site, call: Call) -> None:
        tables = site.rotation(call)
        query = site.project(call, *tables).query[0, :, -1].double()  # [heads, d]
        for shift in range(n):
            order = torch.arange(n).roll(shift)  # content order[p] stands at position p
            moved = replace(call, arguments={**call.arguments, "hidden_states": call.hidden[:, order]})
            made = site.project(moved, *tables)
            keys = made.key[0].repeat_interleave(len(query) // made.key.shape[1], 0).double()  # [heads, n, d]
            rest = [d for d in range(query.shape[-1]) if d not in itertools.chain(*pairs)]
            for plane, dimensions in enumerate([rest, *pairs]):
                if not dimensions:
                    continue
                logits = made.scaling * (keys[..., dimensions] * query[:, None, dimensions]).sum(
                    -1
                )  # [heads, n]
                for head, row in enumerate(logits):
                    matrix = found.setdefault((site.layer, head, plane), torch.zeros(n, n, dtype=torch.float64))
                    matrix[torch.arange(n), order] = row

    with torch.no_grad():
        reader._run(ids, on_call=on_call)
    return found


def _site_scores(
    site: Site, call: Call, blocks: Sequence[tuple[int, int]], tau: float, at_once: int
) -> np.ndarray:
    n = call.hidden.shape[1]
    before = site.attend(call, call.hidden)[0, :, -1].double().numpy()  # [heads, n]
    swaps = list(itertools.combinations(blocks, 2))
    gaps, positional, symbolic = [], [], []
    for start in range(0, len(swaps), at_once):
        exchanged = [exchange(n, first, second) for first, second in swaps[start : start + at_once]]
        hidden = call.hidden[0, torch.tensor([order for _, order in exchanged])]  # [swaps, n, width]
        after = site.attend(call, hidden)[:, :, -1].double().numpy()  # [swaps, heads, n]
        for k, (slots, _) in enumerate(exchanged):
            (a, b), (c, d) = swaps[start + k]
            old = np.stack([before[:, a:b].mean(1), before[:, c:d].mean(1)])  # [2, heads]
            new = np.stack([after[k][:, slots[0]].mean(1), after[k][:, slots[1]].mean(1)])
            seen = old.max(0) > 0
            gaps.append(np.where(seen, np.abs(old[0] - old[1]), -np.inf))
            old, new = old / np.where(seen, old.max(0), 1), new / np.maximum(new.max(0), 1e-300)
            size = np.linalg.norm(old, axis=0) * np.linalg.norm(new, axis=0)
            positional.append(np.where(seen, (new * old).sum(0) / np.where(size > 0, size, 1), 0))
            symbolic.append(np.where(seen, (new * old[::-1]).sum(0) / np.where(size > 0, size, 1), 0))
    weight = np.array(gaps) - np.max(gaps, axis=0)
    weight = np.exp(weight / tau)
    weight /= weight.sum(0)
    return np.stack([(weight * positional).sum(0), (weight * symbolic).sum(0)], axis=1)


def all_permutations(logits: np.ndarray) -> tuple[float, float, float]:
    """Variance, D_pos and D_sym summed over every permutation of the keys."""
    size = len(logits)
    real = np.diag(logits)
    positional = symbolic = count = 0.0
    for order in itertools.permutations(range(size)):
        for j in range(size):
            positional += (logits[j, order[j]] - real[j]) ** 2
            symbolic += (logits[order[j], j] - real[j]) ** 2
        count += 1
    return float(real.var()), positional / (count * size), symbolic / (count * size)
