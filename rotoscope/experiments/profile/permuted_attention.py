"""Attention on the first prompt after a swap that was carried out in the prompt itself.

Beside the attention after the same swap at a head's own layer it shows what carried means: the head follows what is
swapped at its layer and stays where the prompt is permuted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch

from rotoscope.scores.attention import attention_weights
from rotoscope.shapes import Float, Int, Tensor

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
