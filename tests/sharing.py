"""What one of several processes does that share a model: `python -m tests.sharing FOLDER OUT`, started with torchrun's variables."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import rotoscope as rs
from rotoscope.analysis import profiling
from rotoscope.errors import RotoscopeError
from rotoscope.reading import HeadReader, LayerHeads
from tests.models import tokens

HOW: dict[str, Any] = {
    "tau": [1e-4, 1e-2],
    "null": "gaussian",
    "null_draws": 2,
    "frequencies": True,
    "batch_tokens": 28,
}


def shown(subject: rs.Subject) -> rs.tasks.Prompts:
    """Prompts with answers, so that what the model says is compared, too."""
    return rs.tasks.repeats(subject, length=6, count=3)


def refusals(subject: rs.Subject) -> list[str]:
    """What is said about that which cannot be put together."""
    said = []
    for what in (
        lambda: rs.profile(subject, tokens=tokens(1, 12)),
        lambda: rs.profile(subject, tokens=tokens(1, 12), null="none", known=True),
        lambda: HeadReader(subject.model),
        lambda: rs.load(subject, dtype="float64", tensor_parallel=True),
    ):
        with suppress(RotoscopeError):
            try:
                what()
            except RotoscopeError as problem:
                said.append(str(problem))
                raise
    return said


def attention(reader: HeadReader) -> dict[str, Any]:
    """Where the last query looks, in the mean over all heads of a layer, and what each head has on the first positions."""
    means, heads = {}, {}

    def visit(layer: LayerHeads) -> None:
        weights = layer.attention()[:, :, 0]
        means[layer.layer] = reader.share.mean_over_heads(layer.layer, weights.mean(1)).tolist()
        heads[layer.layer] = reader.share.all_heads(layer.layer, weights[..., :5].sum(-1)).tolist()

    reader.read(tokens(2, 12), (11,), visit)
    return {"means": list(means.values()), "of_heads": list(heads.values())}


CALLED: list[int] = []


def stopped(subject: rs.Subject, prompts: rs.tasks.Prompts, out: str) -> dict[str, int]:
    """A run that ends in its second batch; batches are counted from then on."""
    score = profiling.score_batch

    def scored(*args: Any) -> Any:
        CALLED[-1] += 1
        if len(CALLED) == 1 and CALLED[0] == 2:
            raise KeyboardInterrupt
        return score(*args)

    profiling.score_batch = scored
    CALLED.append(0)
    with suppress(KeyboardInterrupt):
        rs.profile(subject, prompts, out=out, show_progress=False, **HOW)
    CALLED.append(0)
    return {"stopped": CALLED[0]}


def main(folder: str, out: str) -> None:
    torch.set_num_threads(1)
    subject = rs.load(folder, tensor_parallel=True, name="mine", dtype="float64")
    heads = int(subject.model.config.num_attention_heads)
    prompts = shown(subject)
    rank = distributed.get_rank()
    batches = stopped(subject, prompts, out)
    found = rs.profile(subject, prompts, out=out, show_progress=False, **HOW)
    batches["after"] = CALLED.pop()
    again = rs.profile(subject, prompts, out=out, show_progress=False, **HOW)  # finished before
    some = rs.profile(
        subject, prompts, null="none", frequencies=[(1, 0), (1, heads - 1)], show_progress=False, examples=False
    )
    reader = HeadReader(subject.model, shared=True)
    Path(f"{out}-{rank}.json").write_text(
        json.dumps(
            {
                "fingerprint": subject.fingerprint,
                "weights": subject.weights_fingerprint,
                "heads": found.heads["positional_score"].tolist(),
                "again": again.heads["positional_score"].tolist(),
                "some": sorted({(int(a), int(b)) for a, b in some.frequencies[["layer", "head"]].to_numpy()}),
                "here": reader.head_counts,
                "starts": reader.share.starts,
                "proof": reader.proof,
                "refused": refusals(subject),
                "batches": batches,
                "attention": attention(reader),
            }
        )
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:])
