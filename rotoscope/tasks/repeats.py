"""Random tokens, repeated: the second copy can be predicted by whoever finds the first. Small models can."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.scores.blocks import Blocks
from rotoscope.tasks.prompt import THROWAWAY, Prompt, Prompts, chosen_prefix, encode, tokenizer_of


def repeats(
    subject: Any,
    length: int = 32,
    count: int = 16,
    seed: int = 0,
    *,
    copies: int = 2,
    block_length: int = 1,
    prefix: Literal["start", "fact", "none"] | None = None,
    blocks: Literal["all", "first"] = "all",
) -> Prompts:
    """`count` sequences of `length` distinct random tokens, each written `copies` times but for the last token.

    `subject` is a model with its tokenizer or, without one, the token ids to draw from, such as `range(1, 8192)`.

    The task asks at every position of the last copy. Blocks are runs of `block_length` tokens of `all` copies, as far
    as the last query, so that also a head that looks at the token before it has something at stake; or of the `first`
    copy alone. The `prefix` stays outside them: "start" (the default where the tokenizer has a start token), "fact" (a
    throwaway fact behind it, so that the first of the random tokens draws no attention for being first) or "none".
    """
    tokenizer = None if _are_ids(subject) else tokenizer_of(subject)
    if tokenizer is None:
        ordinary, front, chosen = _ids_without_prefix(subject, prefix)
    else:
        special = set(tokenizer.all_special_ids)
        ordinary = [token for token in range(len(tokenizer)) if token not in special]
        front, chosen = _prefix(tokenizer, prefix)
    if not 4 <= length <= len(ordinary):
        raise TaskError(f"length must lie between 4 and {len(ordinary)} (the vocabulary), found {length}")
    if copies < 2 or count < 1:
        raise TaskError(f"repeats needs at least 2 copies and 1 prompt, found {copies} and {count}")
    if blocks not in ("all", "first"):
        raise TaskError(f"blocks are tokens of all copies or of the first, found '{blocks}'")
    if not 1 <= block_length <= length // 2:
        raise TaskError(f"block_length must lie between 1 and half of length, found {block_length}")
    latest = copies - 2 if blocks == "all" else 0  # the last whole copy is the latest to hold the answer
    answer_block = latest * (length // block_length) + (length - 1) // block_length
    draw = random.Random(seed)
    items = []
    for _ in range(count):
        once = tuple(draw.sample(ordinary, length))
        tokens = front + (once * copies)[:-1]
        first = len(front) + (copies - 1) * length
        queries = tuple(range(first, len(tokens)))
        begins = [
            len(front) + copy * length + offset
            for copy in range(copies if blocks == "all" else 1)
            for offset in range(0, length - block_length + 1, block_length)
            if len(front) + copy * length + offset + block_length <= queries[-1]
        ]
        items.append(
            Prompt(
                tokens=tokens,
                queries=queries,
                answers=tuple(once[q - first + 1] for q in queries),
                blocks=Blocks.of([(b, b + block_length) for b in begins], queries[-1]),
                symbols=tuple(tokens[b] for b in begins) if block_length == 1 else None,
                asked=answer_block if length % block_length == 0 else None,
                text=tokenizer.decode(tokens) if tokenizer is not None else "",
            )
        )
    settings = {
        "length": length,
        "count": count,
        "seed": seed,
        "copies": copies,
        "block_length": block_length,
        "prefix": chosen,
        "blocks": blocks,
    }
    return Prompts("repeats", tuple(items), settings, chance=1 / length)


def _are_ids(subject: Any) -> bool:
    return isinstance(subject, (range, list, tuple)) and all(isinstance(token, int) for token in subject)


def _ids_without_prefix(ids: Sequence[int], prefix: str | None) -> tuple[list[int], tuple[int, ...], str]:
    """The ids to draw from, each once, with nothing before them."""
    if prefix not in (None, "none"):
        raise TaskError(f"a prefix '{prefix}' needs a tokenizer; token ids have none")
    return sorted(set(ids)), (), "none"


def _prefix(tokenizer: Any, prefix: Literal["start", "fact", "none"] | None) -> tuple[tuple[int, ...], str]:
    """The tokens before the random ones, and what they are called."""
    start = tokenizer.bos_token_id
    chosen = chosen_prefix(tokenizer, prefix or ("start" if start is not None else "none"), plain=True)
    if chosen == "start" and start is None:
        raise TaskError("this tokenizer has no start token; choose prefix 'none'")
    fact = encode(tokenizer, THROWAWAY, start=start is not None).ids if chosen == "fact" else ()
    return (start,) if chosen == "start" else fact, chosen
