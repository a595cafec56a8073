"""A few telling heads on one prompt: attention before and after a swap, and vectors in the plane that decides it.

What P1 draws for single heads (Fig. 1 and 3C): the most symbolic, the most positional and the flattest head of a
profile, or any that are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from rotoscope.analysis.batches import Batch
from rotoscope.analysis.measures import Transform
from rotoscope.maths.attention import attention_weights
from rotoscope.maths.blocks import Blocks
from rotoscope.maths.swaps import score_swaps
from rotoscope.reading import HeadReader, LayerHeads
from rotoscope.results.profile import Profile

TELLING_MASS = 0.1


def telling_heads(profile: Profile) -> dict[str, tuple[int, int]]:
    """The most symbolic and most positional heads that look at the blocks at all, and the flattest one."""
    heads = profile.at().dropna(subset=["positional_score", "symbolic_score"])
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


def examples(
    reader: HeadReader,
    batch: Batch,
    heads: Sequence[tuple[str, tuple[int, int]]],
    transform: Transform | None = None,
) -> dict[str, pd.DataFrame]:
    """Tables `traces` and `vectors` of the given heads on the first prompt of a batch.

    `transform` is what a null does to each layer before it is looked at.
    """
    one = Batch(batch.first, batch.prompts[:1], batch.queries[-1:], batch.inputs[:1])
    blocks = one.blocks_for(one.queries[0])
    traces: list[pd.DataFrame] = []
    vectors: list[pd.DataFrame] = []

    def visit(layer: LayerHeads) -> None:
        layer = layer if transform is None else transform(layer, one)
        for title, (at, head) in heads:
            if at == layer.layer:
                about = {"example": title, "layer": at, "head": head}
                traces.append(_trace(layer, head, blocks).assign(**about))
                if layer.layout.planes:
                    vectors.append(_vectors(layer, head, blocks).assign(**about))

    reader.read(one.tokens, one.queries, visit)
    found = {"traces": traces, "vectors": vectors}
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items() if parts}


def _trace(layer: LayerHeads, head: int, blocks: Blocks) -> pd.DataFrame:
    """Attention by position before and after the swap that weighs most in the head's score."""
    query = layer.at(0)
    real = query.real()
    detail = score_swaps(query, real, blocks, 1e-4, sink=query.sinks, variants=False, detail=True).detail
    assert detail is not None
    swap = int(detail.weight[0, head].argmax())
    first, second = int(detail.first[swap]), int(detail.second[swap])
    n = query.position + 1
    order = torch.tensor(blocks.exchange(first, second, layer.keys.shape[2]), device=layer.keys.device)
    moved = replace(layer, keys=layer.keys[:, :, order]).at(0)
    block = np.full(n, -1)
    for k, (start, stop) in enumerate(blocks.spans):
        block[start:stop] = k
    return pd.DataFrame(
        {
            "position": np.arange(n),
            "block": block,
            "attention": attention_weights(real, query.sinks)[0, head].float().cpu().numpy(),
            "attention_swapped": attention_weights(moved.real(), moved.sinks)[0, head].float().cpu().numpy(),
            "first_block": first,
            "second_block": second,
        }
    )


def _vectors(layer: LayerHeads, head: int, blocks: Blocks) -> pd.DataFrame:
    """The query and the swapped tokens' keys in the plane whose logits vary most over them, un-rotated and as they meet."""
    query = layer.at(0)
    seen, keys = (part[head] for part in query.by_plane())  # [n, planes, 2]
    positions = torch.tensor(blocks.positions, device=keys.device)
    plane = int((seen * keys).sum(-1)[positions].std(0).argmax())
    own = layer.query.flatten(1, 2)[0, head, 0, 2 * plane : 2 * plane + 2]
    still = keys[positions, plane]
    # Turning the key by p - i does to the product what turning the query by i - p does.
    i = query.position
    cos, sin = layer.cos[:, plane].double(), layer.sin[:, plane].double()
    c = (cos[i] * cos[positions] + sin[i] * sin[positions]).to(still.dtype)
    s = (cos[i] * sin[positions] - sin[i] * cos[positions]).to(still.dtype)
    met = torch.stack((still[:, 0] * c - still[:, 1] * s, still[:, 1] * c + still[:, 0] * s), dim=-1)
    rows = [
        ("query", i, own, own),
        *(("key", int(p), a, b) for p, a, b in zip(positions, still, met, strict=True)),
    ]
    return pd.DataFrame(
        {
            "kind": [kind for kind, *_ in rows],
            "position": [position for _, position, *_ in rows],
            "re": [float(a[0]) for *_, a, _ in rows],
            "im": [float(a[1]) for *_, a, _ in rows],
            "re_met": [float(b[0]) for *_, b in rows],
            "im_met": [float(b[1]) for *_, b in rows],
            "frequency_id": plane + 1,
            "angle": float(layer.layout.angles[plane]),
        }
    )
