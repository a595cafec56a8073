"""A list of common words, given twice and begun a third time: which word comes next?"""

from __future__ import annotations

import random
from typing import Any

from rotoscope.errors import TaskError
from rotoscope.maths.blocks import Blocks
from rotoscope.tasks.prefixes import THROWAWAY, Prefix, chosen_prefix, starts
from rotoscope.tasks.prompts import Prompt, Prompts, encode, spans_of, tokenizer_of
from rotoscope.tasks.vocabulary import first_token, told_apart


def recall(
    subject: Any, length: int = 12, count: int = 16, seed: int = 0, *, prefix: Prefix | None = None
) -> Prompts:
    """`count` prompts of a list of `length` words, given twice and then begun; scored at the last comma.

    The words are distinct, and no two begin with the same token. Blocks are the words of both copies, with their commas,
    and of the third as far as it goes, all but the last, whose comma is the query; `asked` is the word of the second
    copy. The `prefix` is "start", "fact" (the default) or "none", as for `binding`.
    """
    tokenizer = tokenizer_of(subject)
    chosen = chosen_prefix(tokenizer, prefix, plain=True)
    if length < 2 or count < 1:
        raise TaskError(f"recall needs at least 2 words and 1 prompt, found {length} words, {count} prompts")
    known = told_apart(tokenizer, length, "words", "common_words.txt")
    draw = random.Random(seed)
    items = []
    for _ in range(count):
        listed = draw.sample(known, length)
        items.append(_prompt(tokenizer, listed, draw.randrange(1, length), chosen))
    settings = {"length": length, "count": count, "seed": seed, "prefix": chosen}
    return Prompts("recall", tuple(items), settings, chance=1 / length)


def _prompt(tokenizer: Any, listed: list[str], begun: int, prefix: Prefix) -> Prompt:
    text = THROWAWAY if prefix == "fact" else ""
    pieces = []
    for word in [*listed, *listed, *listed[:begun]]:
        pieces.append((len(text), len(text) + len(f" {word},")))
        text += f" {word},"
    encoded = encode(tokenizer, text, start=starts(tokenizer, prefix))
    query = len(encoded.ids) - 1
    swapped = spans_of(encoded, pieces)[:-1]
    n = len(listed)
    return Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(first_token(tokenizer, listed[begun]),),
        blocks=Blocks.of(swapped, query),
        symbols=tuple(k % n for k in range(len(swapped))),
        asked=n + begun,
        text=text,
    )
