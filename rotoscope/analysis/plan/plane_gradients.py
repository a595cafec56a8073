"""What stopping a plane would cost, estimated for all planes at once by gradients.

Every plane of every key head has a factor alpha: its logits are alpha times those of the rotating plane and 1 - alpha times those
of the stopped one (`rotoscope.reading.stopped.mixed`). Stopping it takes alpha from 1 to 0, so that the loss rises by about
-dL/dalpha, in the mean over points of the way. One backward pass tells this for all planes; how they act together it does not tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from rotoscope.analysis.batches import batches
from rotoscope.analysis.losses import answer_logits
from rotoscope.analysis.plan.gradients import mixes_alone, path_points
from rotoscope.reading import HeadReader, Subject
from rotoscope.reading.stopped import mixed
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.prompts import Prompts

Planes = list[Float[Tensor, "_ _"]]
"""A number for every plane of every key head, layer by layer."""
GRADIENT_TOKENS = 256
"""Tokens whose gradients are held in memory together."""


def even_way(reader: HeadReader, points: int) -> Iterator[Planes]:
    """All planes alike, from rotating to stopped: the middles of so many equal steps."""
    for share in path_points(points):
        yield [
            torch.full((heads, layout.planes), share)
            for heads, layout in zip(reader.key_head_counts, reader.layouts, strict=True)
        ]


def stopping_effects(
    subject: Subject, reader: HeadReader, shown: Mapping[str, Prompts], way: Sequence[Planes]
) -> Planes:
    """-dL/dalpha of every plane, in the mean over the points of the way; the loss is the mean over sources and their prompts."""
    total: Planes = []
    for point in way:
        alphas = [share.to(subject.device).requires_grad_() for share in point]
        with mixes_alone(reader), mixed(reader, alphas):
            for prompts in shown.values():
                for batch in batches(prompts, "task", GRADIENT_TOKENS):
                    logits = answer_logits(subject, batch)
                    expected = torch.tensor([prompt.answers for prompt in batch.prompts], device=logits.device)
                    right = logits.gather(2, expected[..., None])[..., 0]
                    loss = (logits.logsumexp(-1) - right).mean(1).sum() / (len(prompts) * len(shown))
                    loss.backward()
        found = [torch.zeros_like(a) if a.grad is None else -a.grad for a in alphas]
        found = [part.detach().float().cpu() / len(way) for part in found]
        total = [a + b for a, b in zip(total, found, strict=True)] if total else found
    return total
