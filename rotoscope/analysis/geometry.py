"""Which frequencies a multi-hop model uses, and what its queries and keys look like in the plane it uses most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.analysis.profiling import profile
from rotoscope.lab.checkpoints import sequences_for
from rotoscope.lab.gptj import GPTJ, LayerState
from rotoscope.reading import Subject, load
from rotoscope.results.geometry import Geometry, frequency_use
from rotoscope.results.run import Run
from rotoscope.tasks.multihop import MultiHops

__all__ = ["geometry"]

HELD_OUT = 3_000_000


def geometry(
    subject: str | Path | Subject | tuple[Any, Any],
    *,
    inputs: int = 200,
    seed: int = 0,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Geometry:
    """Frequency use of every head at the last token, and mean query and key vectors by token in its dominant plane."""
    who = load(subject, device=device)
    samples = sequences_for(who.model.config, inputs, seed=seed, first=HELD_OUT)
    settings = {
        "model": who.name,
        "fingerprint": who.fingerprint,
        "task": samples.task,
        "inputs": inputs,
        "seed": seed,
    }
    run = Run(Geometry, settings, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    model = GPTJ.from_transformers(who.model)
    planes = profile(
        who, samples, frequencies=True, null="none", examples=False, show_progress=show_progress
    ).frequencies
    use = frequency_use(planes, scaling=model.shape.head_width**-0.5)
    run.add("tables", {"use": use, "vectors": _vectors(model, samples, use)})
    return run.finish()


@torch.no_grad()
def _vectors(model: GPTJ, samples: MultiHops, use: pd.DataFrame) -> pd.DataFrame:
    """Mean un-rotated query and key of every token, in the dominant plane of every head."""
    dominant = use.loc[use.groupby(["layer", "head"])["max_logit"].idxmax()].set_index(["layer", "head"])
    tokens = samples.tokens.to(model.device)
    parts = []

    def visit(state: LayerState) -> None:
        for head in range(state.query.shape[1]):
            plane = int(dominant.loc[(state.layer, head), "frequency_id"]) - 1
            for kind, vectors in (("query", state.query), ("key", state.key)):
                points = torch.view_as_real(vectors[:, head, :, plane]).cpu()
                rows = pd.DataFrame(
                    {
                        "token_id": tokens.cpu().flatten().numpy(),
                        "re": points[..., 0].flatten().numpy(),
                        "im": points[..., 1].flatten().numpy(),
                    }
                )
                groups = rows.groupby("token_id")
                mean = groups[["re", "im"]].mean()
                spread = groups[["re", "im"]].std(ddof=0).pow(2).sum(axis=1).pow(0.5)
                table = mean.assign(spread=spread, count=groups.size()).reset_index()
                table.insert(0, "kind", kind)
                table.insert(0, "frequency_id", plane + 1)
                table.insert(0, "head", head)
                table.insert(0, "layer", state.layer)
                parts.append(table)

    model.logits(tokens, visit=visit)
    table = pd.concat(parts, ignore_index=True)
    table["token"] = [samples.vocabulary[k] for k in table["token_id"]]
    return table
