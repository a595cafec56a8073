"""The user's own prompt, cut into blocks by sentence, by line, by a fixed length, or as told."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, Literal

from rotoscope.errors import BlockError, TaskError
from rotoscope.maths.blocks import Blocks
from rotoscope.tasks.prompts import Encoded, Prompt, Prompts, encode, spans_of, tokenizer_of

Cut = Literal["sentence", "line", "token"] | int | Sequence[tuple[int, int]]


def text(
    subject: Any,
    texts: str | Sequence[str],
    blocks: Cut = "sentence",
    *,
    answer: str | None = None,
    unit: Literal["token", "character"] = "token",
    equal_length: bool = False,
) -> Prompts:
    """One prompt per text, scored at its last token.

    `blocks`: "sentence", "line", "token", a number of tokens, or spans [start, stop) given as offsets in
    tokens (of the whole prompt, start token included) or in characters of the text (`unit`). The piece that
    holds the last token is the query's and is left out, unless spans were given: then it is an error. The
    start token, where the tokenizer has one, stays in front and outside the blocks. `answer` is what should
    come next.
    """
    tokenizer = tokenizer_of(subject)
    several = [texts] if isinstance(texts, str) else list(texts)
    items = []
    for one in several:
        if not one.strip():
            raise TaskError("an empty text has nothing to swap")
        encoded = encode(tokenizer, one, start=tokenizer.bos_token_id is not None)
        query = len(encoded.ids) - 1
        try:
            found = Blocks.of(_spans(encoded, one, blocks, unit, query), query, equal=equal_length)
        except BlockError as problem:
            raise BlockError(f"text of {query + 1} tokens cut by {blocks!r}: {problem}") from problem
        items.append(
            Prompt(
                tokens=encoded.ids,
                queries=(query,),
                answers=(encode(tokenizer, answer).ids[0] if answer else None,),
                blocks=found,
                text=one,
            )
        )
    cut = blocks if isinstance(blocks, str | int) else [list(span) for span in blocks]
    settings = {"texts": len(items), "blocks": cut, "unit": unit, "equal_length": equal_length}
    return Prompts("text", tuple(items), settings)


def _spans(encoded: Encoded, text: str, cut: Cut, unit: str, query: int) -> list[tuple[int, int]]:
    first = sum(a == b for a, b in encoded.offsets[:1])  # 1 if a start token stands in front
    if isinstance(cut, int):
        if cut < 1:
            raise TaskError(f"a block needs at least one token, found {cut}")
        return [(t, t + cut) for t in range(first, query - cut + 1, cut)]
    if cut == "token":
        return [(t, t + 1) for t in range(first, query)]
    if isinstance(cut, str):
        ends = {"sentence": r"(?<=[.!?])\s+", "line": r"\n+"}
        if cut not in ends:
            raise TaskError(
                f"unknown way to cut a text: '{cut}'; choose sentence, line, token, a number or spans"
            )
        borders = [0, *(m.end() for m in re.finditer(ends[cut], text)), len(text)]
        pieces = [(a, b) for a, b in itertools.pairwise(borders) if text[a:b].strip()]
        return [span for span in spans_of(encoded, pieces) if span[1] <= query]
    return spans_of(encoded, list(cut)) if unit == "character" else [(int(a), int(b)) for a, b in cut]
