"""Random tokens, repeated: the second copy can be predicted by whoever finds the first. Small models can."""

from __future__ import annotations

import random
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.maths.blocks import Blocks
from rotoscope.tasks.prompts import Prompt, Prompts, tokenizer_of


def repeats(
    subject: Any,
    length: int = 32,
    count: int = 16,
    seed: int = 0,
    *,
    copies: int = 2,
    block_length: int = 1,
    prefix: Literal["start", "none"] | None = None,
) -> Prompts:
    """`count` sequences of `length` distinct random tokens, each written `copies` times but for the last token.

    The task asks at every position of the last copy. Blocks are runs of `block_length` tokens of the first
    copy; a start token, where there is one, stays outside them.
    """
    tokenizer = tokenizer_of(subject)
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in range(len(tokenizer)) if token not in special]
    if not 4 <= length <= len(ordinary):
        raise TaskError(f"length must lie between 4 and {len(ordinary)} (the vocabulary), found {length}")
    if copies < 2 or count < 1:
        raise TaskError(f"repeats needs at least 2 copies and 1 prompt, found {copies} and {count}")
    if not 1 <= block_length <= length // 2:
        raise TaskError(f"block_length must lie between 1 and half of length, found {block_length}")
    start = tokenizer.bos_token_id
    chosen = prefix or ("start" if start is not None else "none")
    if chosen == "start" and start is None:
        raise TaskError("this tokenizer has no start token; choose prefix 'none'")
    front = (start,) if chosen == "start" else ()
    draw = random.Random(seed)
    items = []
    for _ in range(count):
        once = tuple(draw.sample(ordinary, length))
        tokens = front + (once * copies)[:-1]
        first = len(front) + (copies - 1) * length
        queries = tuple(range(first, len(tokens)))
        begins = range(len(front), len(front) + length - block_length + 1, block_length)
        items.append(
            Prompt(
                tokens=tokens,
                queries=queries,
                answers=tuple(once[q - first + 1] for q in queries),
                blocks=Blocks.of([(b, b + block_length) for b in begins], queries[-1]),
                symbols=tuple(tokens[b] for b in begins) if block_length == 1 else None,
                asked=(length - 1) // block_length if length % block_length == 0 else None,
                text=tokenizer.decode(tokens),
            )
        )
    settings = {
        "length": length,
        "count": count,
        "seed": seed,
        "copies": copies,
        "block_length": block_length,
        "prefix": chosen,
    }
    return Prompts("repeats", tuple(items), settings)
