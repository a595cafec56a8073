"""Lines "Name: colour", the same lines in another order, then one of the names: small models can look it up."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.scores.blocks import Blocks
from rotoscope.tasks.prompt import (
    COLOURS,
    THROWAWAY,
    Prefix,
    Prompt,
    Prompts,
    chosen_prefix,
    encode,
    first_token,
    spans_of,
    starts,
    tokenizer_of,
    told_apart,
    words,
)

GAP = "\n"
"""Beside the end of a line: an empty one, between the copies and before the name that is asked for."""


def lookup(
    subject: Any,
    pairs: int = 8,
    count: int = 16,
    seed: int = 0,
    *,
    prefix: Prefix | None = None,
    beyond: int | None = None,
    after: int = 0,
) -> Prompts:
    """`count` prompts of `pairs` lines, each given twice, in two orders; asked for the colour of one name.

    Names and colours are distinct, and no two colours begin with the same token. Blocks are the lines of both copies,
    because the answer stands in both, and the same line is the same symbol; `asked` is the line of the later copy. The
    `prefix` is "start", "fact" (the default) or "none", as for `binding`.

    With `beyond`, only names are asked for whose colour can be told from far away alone: it stands neither among the last
    `beyond` tokens, the query included, nor among the first `after`. What a head with such a window would forget.
    """
    tokenizer = tokenizer_of(subject)
    chosen = chosen_prefix(tokenizer, prefix, plain=True)
    if pairs < 2 or count < 1:
        raise TaskError(f"lookup needs at least 2 pairs and 1 prompt, found {pairs} pairs, {count} prompts")
    names = words("names.txt")
    if pairs > len(names):
        raise TaskError(f"{pairs} pairs need as many names, and there are {len(names)}")
    colours = told_apart(tokenizer, pairs, "colours", *COLOURS)
    draw = random.Random(seed)
    items = []
    for _ in range(count):
        facts = list(zip(draw.sample(names, pairs), draw.sample(colours, pairs), strict=True))
        first = again = list(range(pairs))
        while again == first:
            again = draw.sample(first, pairs)
        if beyond is None:
            items.append(_lookup_prompt(tokenizer, facts, first + again, draw.randrange(pairs), chosen))
        else:
            ways = (
                _lookup_prompt(tokenizer, facts, first + again, k, chosen)
                for k in draw.sample(range(pairs), pairs)
            )
            items.append(_asked_from_afar(ways, pairs, beyond, after))
    settings: dict[str, Any] = {"pairs": pairs, "count": count, "seed": seed, "prefix": chosen}
    if beyond is not None:
        settings |= {"beyond": beyond, "after": after}
    return Prompts("lookup", tuple(items), settings, chance=1 / pairs)


def _asked_from_afar(ways: Iterable[Prompt], pairs: int, beyond: int, after: int) -> Prompt:
    """The first of several ways to ask about the same lines whose answer stands nowhere near."""
    for prompt in ways:
        [query], [answer] = prompt.queries, prompt.answers
        near = prompt.tokens[:after] + prompt.tokens[max(0, query + 1 - beyond) :]
        if answer not in near:
            return prompt
    raise TaskError(
        f"the colours of {pairs} lines all stand among the last {beyond} tokens of a prompt or the first {after}, so none can be "
        "asked for from afar: give more lines (--pairs) or a smaller window (--window)"
    )


def lines_for(subject: Any, tokens: int) -> int:
    """How many lines it takes for so many tokens, or as many as there are names and colours for."""
    tokenizer = tokenizer_of(subject)
    names = words("names.txt")
    colours = {first_token(tokenizer, colour): colour for file in COLOURS for colour in words(file)}
    most = min(len(names), len(colours))
    text = "".join(f"{name}: {colour}\n" for name, colour in zip(names, colours.values(), strict=False))
    per_fact = len(encode(tokenizer, text).ids) / most
    return min(most, math.ceil(tokens / per_fact))


def _lookup_prompt(
    tokenizer: Any, facts: list[tuple[str, str]], order: list[int], answer: int, prefix: Prefix
) -> Prompt:
    text = f"{THROWAWAY.strip()}\n{GAP}" if prefix == "fact" else ""
    pieces = []
    for place, k in enumerate(order):
        text += GAP if place == len(facts) else ""
        name, colour = facts[k]
        pieces.append((len(text), len(text) + len(f"{name}: {colour}\n")))
        text += f"{name}: {colour}\n"
    name, colour = facts[answer]
    text += f"{GAP}{name}:"
    encoded = encode(tokenizer, text, start=starts(tokenizer, prefix))
    query = len(encoded.ids) - 1
    return Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(first_token(tokenizer, colour),),
        blocks=Blocks.of(spans_of(encoded, pieces), query),
        symbols=tuple(order),
        asked=order.index(answer, len(facts)),
        text=text,
    )


# A list of common words, given twice and begun a third time: which word comes next?


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
        items.append(_recall_prompt(tokenizer, listed, draw.randrange(1, length), chosen))
    settings = {"length": length, "count": count, "seed": seed, "prefix": chosen}
    return Prompts("recall", tuple(items), settings, chance=1 / length)


def _recall_prompt(tokenizer: Any, listed: list[str], answer: int, prefix: Prefix) -> Prompt:
    text = THROWAWAY if prefix == "fact" else ""
    pieces = []
    for word in [*listed, *listed, *listed[:answer]]:
        pieces.append((len(text), len(text) + len(f" {word},")))
        text += f" {word},"
    encoded = encode(tokenizer, text, start=starts(tokenizer, prefix))
    query = len(encoded.ids) - 1
    swapped = spans_of(encoded, pieces)[:-1]
    n = len(listed)
    return Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(first_token(tokenizer, listed[answer]),),
        blocks=Blocks.of(swapped, query),
        symbols=tuple(k % n for k in range(len(swapped))),
        asked=n + answer,
        text=text,
    )


# Groups of three: "Ann put the cup in the drawer", any member asked for (after Gur-Arieh et al., arXiv 2510.06182).


MEMBERS = {"name": "names.txt", "thing": "things.txt", "place": "places.txt"}
FACT = " {name} put the {thing} in the {place}."
ASKING = {
    "name": " The {thing} in the {place} was put there by",
    "thing": " In the {place}, {name} put the",
    "place": " {name} put the {thing} in the",
}


def groups(
    subject: Any,
    pairs: int = 16,
    count: int = 16,
    seed: int = 0,
    *,
    asked: Literal["name", "thing", "place"] = "name",
    prefix: Prefix | None = None,
) -> Prompts:
    """`count` prompts of `pairs` facts about a name, a thing and a place; two of them are given, the third is `asked` for.

    No two members of a kind begin with the same token. Every fact is a block. The same seed gives the same facts and the
    same one to ask about, whichever member is asked for. The `prefix` is "start", "fact" (the default) or "none", as
    for `binding`.
    """
    tokenizer = tokenizer_of(subject)
    chosen = chosen_prefix(tokenizer, prefix, plain=True)
    if pairs < 2 or count < 1:
        raise TaskError(f"groups needs at least 2 groups and 1 prompt, found {pairs} groups, {count} prompts")
    if asked not in MEMBERS:
        raise TaskError(f"unknown member '{asked}'; choose one of {', '.join(MEMBERS)}")
    known = {kind: told_apart(tokenizer, pairs, f"{kind}s", file) for kind, file in MEMBERS.items()}
    draw = random.Random(seed)
    items = []
    for _ in range(count):
        drawn = {kind: draw.sample(words, pairs) for kind, words in known.items()}
        facts = [{kind: drawn[kind][k] for kind in MEMBERS} for k in range(pairs)]
        items.append(_group_prompt(tokenizer, facts, draw.randrange(pairs), asked, chosen))
    settings = {"pairs": pairs, "count": count, "seed": seed, "asked": asked, "prefix": chosen}
    return Prompts("groups", tuple(items), settings, chance=1 / pairs)


def _group_prompt(
    tokenizer: Any, facts: list[dict[str, str]], answer: int, what_is_asked: str, prefix: Prefix
) -> Prompt:
    text = THROWAWAY if prefix == "fact" else ""
    pieces = []
    for fact in facts:
        sentences = FACT.format(**fact)
        pieces.append((len(text), len(text) + len(sentences)))
        text += sentences
    text += ASKING[what_is_asked].format(**facts[answer])
    encoded = encode(tokenizer, text, start=starts(tokenizer, prefix))
    query = len(encoded.ids) - 1
    return Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(first_token(tokenizer, facts[answer][what_is_asked]),),
        blocks=Blocks.of(spans_of(encoded, pieces), query),
        asked=answer,
        text=text,
    )
