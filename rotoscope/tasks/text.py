"""The user's own prompt, cut into blocks by sentence, by line, by a fixed length, or as told."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal

from rotoscope.errors import BlockError, TaskError
from rotoscope.scores.blocks import Blocks
from rotoscope.tasks.prompt import Encoded, Prompt, Prompts, encode, spans_of, tokenizer_of

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
    several = list(texts) if isinstance(texts, list | tuple) else [texts]
    items = []
    for passage in several:
        if not isinstance(passage, str):
            raise TaskError(f"a text is expected, found {passage!r}")
        if not passage.strip():
            raise TaskError("an empty text has nothing to swap")
        encoded = encode(tokenizer, passage, start=tokenizer.bos_token_id is not None)
        query = len(encoded.ids) - 1
        try:
            spans = Blocks.of(_spans(encoded, passage, blocks, unit, query), query, equal=equal_length)
        except BlockError as problem:
            if blocks == "token":
                raise BlockError(
                    f"a text of {query + 1} tokens: a swap needs two before the last one; give a longer text"
                ) from problem
            raise BlockError(f"text of {query + 1} tokens cut by {blocks!r}: {problem}") from problem
        items.append(
            Prompt(
                tokens=encoded.ids,
                queries=(query,),
                answers=(encode(tokenizer, answer).ids[0] if answer else None,),
                blocks=spans,
                text=passage,
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
        first = first if query - first > 1 else 0  # a text of two tokens is swapped with the start token
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


def is_chat(value: Any) -> bool:
    """Whether these are turns of a chat, {"role": ..., "content": ...}, or several such chats."""
    turns = value[0] if isinstance(value, list | tuple) and value else value
    turns = turns[0] if isinstance(turns, list | tuple) and turns else turns
    return isinstance(turns, Mapping) and "role" in turns


def chats(subject: Any, turns: Any) -> Prompts:
    """A chat or several in the tokenizer's template: all tokens but the first are swapped, up to where the answer begins."""
    tokenizer, several = tokenizer_of(subject), [turns] if isinstance(turns[0], Mapping) else turns
    if getattr(tokenizer, "chat_template", None) is None:
        raise TaskError("this tokenizer has no chat template; give the text itself instead of a chat")
    items = []
    for chat in several:
        try:
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except Exception as problem:  # a template may raise anything
            raise TaskError(f"the tokenizer's template refuses this chat ({problem})") from problem
        ids = encode(tokenizer, text).ids
        query = len(ids) - 1
        blocks = Blocks.of([(t, t + 1) for t in range(1, query)], query)
        items.append(Prompt(ids, (query,), (None,), blocks, text=text))
    return Prompts("text", tuple(items), {"texts": len(items), "blocks": "token", "prefix": "chat"})


# Stretches of a long text, for what a model loses over many tokens: your own text, or the manual that comes with Python.


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


# Plain prose, for the loss of a model on ordinary text: written for this project, part of no training set.


def passages(subject: Any, count: int = 8, *, most_tokens: int = 128) -> Prompts:
    """Prompts that ask at every position for the next token of the text."""
    tokenizer = tokenizer_of(subject)
    text = resources.files("rotoscope.tasks").joinpath("passages.txt").read_text(encoding="utf-8")
    pieces = [piece.strip() for piece in text.split("\n\n") if piece.strip()]
    if not 1 <= count <= len(pieces):
        raise TaskError(f"there are {len(pieces)} passages, {count} were asked for")
    items = []
    for piece in pieces[:count]:
        ids = encode(tokenizer, piece, start=tokenizer.bos_token_id is not None).ids[:most_tokens]
        queries = tuple(range(len(ids) - 1))
        items.append(Prompt(ids, queries, tuple(ids[q + 1] for q in queries), text=piece))
    return Prompts("passages", tuple(items), {"count": count, "most_tokens": most_tokens})
