"""Bare token ids as prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rotoscope.errors import TaskError
from rotoscope.maths.blocks import Blocks
from rotoscope.tasks.prompts import Prompt, Prompts


def from_tokens(
    tokens: Any, blocks: Sequence[Sequence[int]] | Blocks | None = None, answers: Sequence[int] | None = None
) -> Prompts:
    """Token ids [prompts, n], a list, an array or a tensor: scored at the last position.

    All token swaps are scored unless `blocks` are given; `answers` are the expected next tokens.
    """
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError) as problem:
        raise TaskError(
            f"tokens must be whole numbers [prompts, n], rows of one length ({problem})"
        ) from problem
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise TaskError(
            f"tokens must be whole numbers [prompts, n], found {ids.ndim} axes of {str(ids.dtype).split('.')[-1]}"
        )
    n = ids.shape[1]
    if n < 3:
        raise TaskError(f"{n} tokens: a swap needs two keys before the query")
    query = n - 1
    spans = blocks if isinstance(blocks, Blocks) or blocks is None else Blocks.of(blocks, query)
    items = tuple(
        Prompt(tuple(row), (query,), (None if answers is None else int(answers[k]),), spans)
        for k, row in enumerate(ids.tolist())
    )
    return Prompts("tokens", items, {"prompts": len(items), "tokens": n})
