"""What a model loses on prompts that say what comes next: loss and accuracy of each."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.measures.batches import Batch, Halving, batches
from rotoscope.models.devices import check_memory, check_tables, logit_bytes
from rotoscope.models.loading import Subject
from rotoscope.models.weight_check import check_logits
from rotoscope.shapes import Float, Tensor
from rotoscope.tasks.prompt import Prompts

MOST_TOKENS = 512
"""Tokens that run through the model together."""
LOSS_ROW = 24
"""Bytes of a row's prompt, loss and accuracy."""


@contextmanager
def answering(model: Any) -> Iterator[None]:
    """The model without dropout and gradients: what it loses is its own, also in the middle of a training. It is left as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def check_losses(subject: Subject, shown: Mapping[str, Prompts], times: int, out: str | Path | None) -> None:
    """Raise TooLargeError where the logits of one prompt, or so many losses of every prompt, cannot fit."""
    answers = max(len(prompt.queries) for prompts in shown.values() for prompt in prompts)
    subject_words = f"one prompt with {answers:,} answers"
    less = "use prompts with fewer answers or a smaller model"
    check_memory(subject_words, logit_bytes(subject.model, answers), subject.device, less)
    count = sum(map(len, shown.values()))
    subject_words = f"a table of {times:,} losses for each of {count:,} prompts"
    check_tables(
        subject_words, LOSS_ROW * times * count, out, "use fewer prompts (--prompts) or fewer conditions"
    )


def measure_losses(
    subject: Subject, shown: Mapping[str, Prompts], halving: Halving, most_tokens: int = MOST_TOKENS
) -> pd.DataFrame:
    """One row per source and prompt: mean negative log-likelihood and accuracy of its answers."""
    rows = []
    with answering(subject.model):
        for source, prompts in shown.items():
            for batch in batches(prompts, "task", most_tokens):
                parts = halving.each(batch, batch.length, partial(_losses, subject))
                for k, (loss, accuracy) in enumerate(itertools.chain(*parts)):
                    rows.append(
                        {"source": source, "prompt": batch.first + k, "loss": loss, "accuracy": accuracy}
                    )
    return pd.DataFrame(rows)


def answer_logits(subject: Subject, batch: Batch) -> Float[Tensor, "prompts queries vocabulary"]:
    """The model's logits where the prompts of a batch ask."""
    queries = list(batch.prompts[0].queries)
    options: dict[str, Any] = {}
    if "logits_to_keep" in inspect.signature(subject.model.forward).parameters:
        options["logits_to_keep"] = torch.tensor(queries, device=subject.device)
    logits = subject.model(batch.tokens.to(subject.device), use_cache=False, **options).logits.float()
    return check_logits(logits if options else logits[:, queries], subject.model)


def token_losses(
    subject: Subject, batch: Batch
) -> tuple[Float[Tensor, "prompts queries"], Float[Tensor, "prompts queries"]]:
    """Negative log-likelihood of every answer of a batch, and 1 where it is what the model would say."""
    return answer_losses(answer_logits(subject, batch), batch)


def answer_losses(
    logits: Float[Tensor, "prompts queries vocabulary"], batch: Batch
) -> tuple[Float[Tensor, "prompts queries"], Float[Tensor, "prompts queries"]]:
    """The same from the logits there."""
    expected = torch.tensor([prompt.answers for prompt in batch.prompts], device=logits.device)
    right = logits.gather(2, expected[..., None])[..., 0]
    return logits.logsumexp(-1) - right, (right == logits.amax(-1)).float()


def _losses(subject: Subject, batch: Batch) -> list[tuple[float, float]]:
    loss, accuracy = (values.mean(1).tolist() for values in token_losses(subject, batch))
    return list(zip(loss, accuracy, strict=True))
