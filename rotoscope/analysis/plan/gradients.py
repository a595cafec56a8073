"""What streaming costs, of all key heads at once, by gradients.

Let every key head write a mix of what it writes with all keys (1) and when it streams (0). Along the path on which all mixes go
from 1 to 0 together, what one head adds to the loss is the integral of minus the derivative by its own mix. The sum over the heads is what
streaming all of them costs, exactly (up to the few points at which the path is looked at): no head is judged where its
neighbours are all still there, as a single derivative at 1 would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from rotoscope.analysis.batches import batches
from rotoscope.analysis.losses import answer_logits
from rotoscope.reading import HeadReader, Subject
from rotoscope.reading.streaming import KeyHead, Streaming, mixed
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.prompts import Prompts

POINTS = 3
"""At which the path is looked at: in the middle of as many equal parts."""
GRADIENT_TOKENS = 512
"""That run through the model together."""


def path_points(count: int = POINTS) -> list[float]:
    """The middles of equal parts of a path from 1 to 0."""
    return [1 - (k + 0.5) / count for k in range(count)]


def path_gradients(
    subject: Subject,
    reader: HeadReader,
    prompts: Prompts,
    plan: Streaming,
    key_heads: Sequence[int],
    *,
    streams: Collection[KeyHead] = (),
    points: Sequence[float] | None = None,
    most_tokens: int = GRADIENT_TOKENS,
) -> list[Float[Tensor, "key_heads"]]:
    """For every layer, what each key head adds to the mean loss when all that do not stream yet begin to.

    `streams` are heads that stream already: they stay at 0, and get what their mix would change there.
    """
    at = path_points() if points is None else points
    total = [torch.zeros(count, dtype=torch.float64) for count in key_heads]
    work = batches(prompts, "task", most_tokens)
    answers = sum(len(batch) for batch in work)
    with mixes_alone(reader):
        for point in at:
            mix = {
                layer: torch.full((count,), point, device=reader.device)
                for layer, count in enumerate(key_heads)
            }
            for layer, head in streams:
                mix[layer][head] = 0.0
            for one in mix.values():
                one.requires_grad_(True)
            for batch in work:
                with mixed(reader, plan, mix):
                    logits = answer_logits(subject, batch)
                    expected = torch.tensor([prompt.answers for prompt in batch.prompts], device=logits.device)
                    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), expected.flatten())
                    (loss * (len(batch) / answers)).backward()
            for layer, one in mix.items():
                if one.grad is not None:
                    total[layer] -= one.grad.double().cpu() / len(at)
    return total


@contextmanager
def mixes_alone(reader: HeadReader) -> Iterator[None]:
    """Gradients of nothing but what a model's heads or planes are mixed by, without dropout; the model is left as it was."""
    weights = [weight for weight in reader.model.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with reader.ready(), torch.enable_grad():
            yield
    finally:
        for weight in weights:
            if (
                not weight.is_inference()
            ):  # weights that a device map brings in for one call are dropped after it
                weight.requires_grad_(True)
