"""Stretches of a long text, for what a model loses over many tokens: your own text, or the manual that comes with Python."""

from __future__ import annotations

import random
from typing import Any

from rotoscope.errors import TaskError
from rotoscope.tasks.prompts import Prompt, Prompts, encode, tokenizer_of

MANUAL = "Python's own manual"


def long_text(
    subject: Any,
    length: int = 256,
    count: int = 4,
    seed: int = 0,
    *,
    asked: int | None = None,
    text: str | None = None,
) -> Prompts:
    """`count` stretches of `length` tokens that do not overlap, each asked for the next token at its last `asked` positions.

    By default all positions are asked. The text is yours, or the chapters of the language reference that every Python brings
    along (`pydoc_data.topics`; another version of Python has other words). The start token, where the tokenizer has one, stands
    in front.
    """
    tokenizer = tokenizer_of(subject)
    if length < 4 or count < 1:
        raise TaskError(
            f"stretches have at least 4 tokens, and there is at least one, found {count} of {length}"
        )
    asked = length - 1 if asked is None else asked
    if not 1 <= asked < length:
        raise TaskError(f"of {length} tokens the last 1 to {length - 1} can be asked for, found {asked}")
    source = manual() if text is None else text
    front = (tokenizer.bos_token_id,) if tokenizer.bos_token_id is not None else ()
    own = length - len(front)
    ids = encode(tokenizer, source).ids
    places = list(range(0, len(ids) - own + 1, own))
    if len(places) < count:
        raise TaskError(
            f"the text has {len(ids):,} tokens, and {count} stretches of {length:,} were asked for; take fewer or shorter "
            "ones, or a longer text"
        )
    queries = tuple(range(length - 1 - asked, length - 1))
    items = []
    for place in random.Random(seed).sample(places, count):
        tokens = front + ids[place : place + own]
        items.append(
            Prompt(tokens, queries, tuple(tokens[q + 1] for q in queries), text=tokenizer.decode(tokens))
        )
    settings = {
        "length": length,
        "count": count,
        "seed": seed,
        "asked": asked,
        "text": MANUAL if text is None else "own",
    }
    return Prompts("long_text", tuple(items), settings)


def manual() -> str:
    """The chapters of the language reference, in the order of their names."""
    from pydoc_data.topics import topics

    return "\n\n".join(str(topics[name]) for name in sorted(topics))
