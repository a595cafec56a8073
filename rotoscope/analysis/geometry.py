"""Which frequencies a multi-hop model uses, and what its queries and keys look like in the plane it uses most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.analysis.profiling import profile
from rotoscope.lab.checkpoints import describe_multihop, load_multihop, sequences_for
from rotoscope.reading import HeadReader, LayerHeads, Subject
from rotoscope.results.geometry import Geometry, frequency_use
from rotoscope.results.run import Run
from rotoscope.tasks.multihop import MultiHops

HELD_OUT = 3_000_000


def find_geometry(
    subject: str | Path | torch.nn.Module | Subject | tuple[Any, Any],
    *,
    inputs: int = 200,
    seed: int = 0,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Geometry:
    """Frequency use of every head at the last token, and mean query and key vectors by token in its dominant plane."""
    subject = load_multihop(subject, device)
    samples = sequences_for(subject.model.config, inputs, seed=seed, first=HELD_OUT)
    settings = describe_multihop(subject, samples, inputs=inputs, seed=seed)
    run = Run(Geometry, settings, out, overwrite=overwrite, device=subject.device.type)
    run.record.warnings += subject.caveats
    if run.finished is not None:
        return run.finished
    planes = profile(
        subject, samples, frequencies=True, null="none", examples=False, show_progress=show_progress
    ).frequencies
    config = subject.model.config
    use = frequency_use(planes, scaling=(config.n_embd // config.n_head) ** -0.5)
    run.add("tables", {"use": use, "vectors": _vectors(HeadReader(subject.model), samples, use)})
    return run.finish()


def _vectors(reader: HeadReader, samples: MultiHops, use: pd.DataFrame) -> pd.DataFrame:
    """Mean un-rotated query and key of every token, in the dominant plane of every head."""
    use = use[use["frequency_id"] > 0]
    dominant = use.loc[use.groupby(["layer", "head"])["max_logit"].idxmax()].set_index(["layer", "head"])
    tokens, parts = samples.tokens.cpu().flatten().numpy(), []

    def visit(layer: LayerHeads) -> None:
        group = layer.query.shape[2]
        for head in range(layer.query.shape[1] * group):
            plane = int(dominant.loc[(layer.layer, head), "frequency_id"]) - 1
            query, key = layer.query[:, head // group, head % group], layer.keys[:, head // group]
            for kind, vectors in (("query", query), ("key", key)):
                points = vectors[..., 2 * plane : 2 * plane + 2].flatten(0, 1).cpu().numpy()
                rows = pd.DataFrame(points, columns=["re", "im"]).assign(token_id=tokens)
                groups = rows.groupby("token_id")[["re", "im"]]
                spread = groups.std(ddof=0).pow(2).sum(axis=1).pow(0.5)
                table = groups.mean().assign(spread=spread, count=groups.size()).reset_index()
                about = {"layer": layer.layer, "head": head, "frequency_id": plane + 1, "kind": kind}
                parts.append(pd.DataFrame(about, index=table.index).join(table))

    reader.read(samples.tokens, tuple(range(samples.length)), visit)
    table = pd.concat(parts, ignore_index=True)
    table["token"] = [samples.vocabulary[k] for k in table["token_id"]]
    return table
