"""What a model is shown at every length: text whose last tokens are asked, and random tokens whose two copies fill the length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from rotoscope.analysis.batches import Batch, Halving, batches
from rotoscope.analysis.losses import answering, token_losses
from rotoscope.reading import Subject
from rotoscope.tasks import Prompts, long_text, repeats
from rotoscope.tasks.prompts import Prompt

BLOCKS = 32
"""Blocks of each copy that are swapped; their number is the same at every length, so that scores can be compared."""
REPEATS_ASKED = 512
"""Positions of the second copy that are asked, at most."""
PLACES = 8
"""Parts of the longest input at whose ends the loss is looked at as well, for curves."""
PLACE_ASKED = 64
"""Tokens before each of those ends whose loss is averaged."""


def repeats_of(subject: Any, n: int, count: int, seed: int) -> Prompts:
    """Random tokens whose two copies fill n tokens, asked at positions spread over the second copy."""
    made = repeats(subject, n // 2, count, seed, block_length=max(1, n // 2 // BLOCKS))
    every = len(made[0].queries)
    step = -(-every // REPEATS_ASKED)
    asked = range((every - 1) % step, every, step)  # the last is among them
    items = tuple(
        replace(
            prompt,
            queries=tuple(prompt.queries[k] for k in asked),
            answers=tuple(prompt.answers[k] for k in asked),
        )
        for prompt in made
    )
    return replace(made, items=items)


def text_of(
    subject: Any, lengths: tuple[int, ...], asked: int, count: int, seed: int, text: str | None
) -> Prompts:
    """Stretches of the longest length, asked before the end of every length and of every part of the whole."""
    longest = lengths[-1]
    made = long_text(subject, longest, count, seed, text=text)
    queries = sorted(
        {q for end, many in text_ends(lengths, asked).items() for q in range(end - 1 - many, end - 1)}
    )
    items = tuple(
        replace(prompt, queries=tuple(queries), answers=tuple(prompt.tokens[q + 1] for q in queries))
        for prompt in made
    )
    return replace(made, items=items, settings=made.settings | {"asked": asked, "lengths": list(lengths)})


def text_ends(lengths: tuple[int, ...], asked: int) -> dict[int, int]:
    """Where the loss on text is looked at: positions, each with the number of tokens before it that are averaged."""
    longest = lengths[-1]
    places = {longest * k // PLACES: PLACE_ASKED for k in range(1, PLACES + 1)}
    wanted = places | dict.fromkeys(lengths, asked)
    return {end: min(many, end - 1) for end, many in sorted(wanted.items()) if end > 1}


def cut(prompts: Prompts, n: int) -> Prompts:
    """The first n tokens of every prompt, and what is asked there."""

    def shorter(prompt: Prompt) -> Prompt:
        kept = [k for k, q in enumerate(prompt.queries) if q < n - 1]
        return replace(
            prompt,
            tokens=prompt.tokens[:n],
            queries=tuple(prompt.queries[k] for k in kept),
            answers=tuple(prompt.answers[k] for k in kept),
        )

    return replace(prompts, items=tuple(shorter(prompt) for prompt in prompts))


def text_losses(subject: Subject, prompts: Prompts, ends: dict[int, int], halving: Halving) -> pd.DataFrame:
    """One row per prompt and place: mean loss and accuracy of the tokens before it."""
    rows: list[dict[str, float]] = []

    def measure(batch: Batch) -> None:
        found = torch.stack(token_losses(subject, batch)).cpu()
        queries = torch.tensor(batch.prompts[0].queries)
        for end, many in ends.items():
            here = (queries >= end - 1 - many) & (queries < end - 1)
            means = found[:, :, here].double().mean(-1)
            for k in range(len(batch)):
                loss, accuracy = means[:, k].tolist()
                rows.append({"prompt": batch.first + k, "position": end, "loss": loss, "accuracy": accuracy})

    with answering(subject.model):
        for batch in batches(prompts, "task", 1):
            halving.each(batch, batch.length, measure)
    return pd.DataFrame(rows)
