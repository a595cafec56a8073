"""Binding prompts (P1): n facts "name likes colour", then a question about one name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.scores.blocks import Blocks
from rotoscope.tasks.prompt import (
    COLOURS,
    THROWAWAY,
    Prefix,
    Prompt,
    Prompts,
    chat,
    chosen_prefix,
    encode,
    first_token,
    spans_of,
    starts,
    tokenizer_of,
    told_apart,
    word_tokens,
    words,
)

INTRODUCTION = "Here are some facts."


def binding(
    subject: Any,
    pairs: int = 32,
    count: int = 16,
    seed: int = 0,
    *,
    prefix: Prefix | None = None,
    granularity: Literal["fact", "symbol", "token"] | int = "fact",
    equal_length: bool = False,
    distinct: bool = False,
    ending: Literal["likes", "answer"] = "likes",
) -> Prompts:
    """`count` prompts of `pairs` facts each, one of which is asked about; scored at the last token.

    Every fact is a block; the `prefix` stays outside the blocks, because the first tokens of a sequence draw
    attention whatever they say:

    - "chat": a system and a user turn in the model's own template, and an answer that has begun;
    - "start": the start token only;
    - "fact": the start token, where there is one, and a throwaway fact;
    - "none": nothing, so that the first fact holds the first token.

    `granularity` is what counts as one block: a "fact", each "symbol" (name or colour), each "token", or a
    number of facts. `equal_length` keeps to names and colours of one token length each. `distinct` gives every name a
    colour of its own, whose first token no other colour begins with.

    Every prompt ends in "Joel likes". The same seed gives the same facts and the same question with every prefix, so
    that two sets differ in the prefix only (of a chat, the markup of the turns belongs to it). Without a chat,
    `ending="answer"` ends the prompt in "Answer:" instead, as earlier versions did.
    """
    tokenizer = tokenizer_of(subject)
    chosen = chosen_prefix(tokenizer, prefix)
    if pairs < 2 or count < 1:
        raise TaskError(f"binding needs at least 2 pairs and 1 prompt, found {pairs} pairs, {count} prompts")
    if ending not in ("likes", "answer") or (ending == "answer" and chosen == "chat"):
        raise TaskError(
            f"a prompt ends in 'likes' or, without a chat, in 'answer'; found '{ending}' and prefix '{chosen}'"
        )
    names = words("names.txt")
    colours = told_apart(tokenizer, pairs, "colours", *COLOURS) if distinct else words(COLOURS[0])
    if equal_length:
        names, colours = _same_length(tokenizer, names), _same_length(tokenizer, colours)
    for kind, available in (("names", names), ("colours", colours)):
        if pairs > len(available) and (distinct or kind == "names"):
            raise TaskError(
                f"{pairs} pairs need as many {kind}, and there are {len(available)}"
                + (" of equal token length for this tokenizer; allow unequal lengths" if equal_length else "")
            )
    first = {colour: first_token(tokenizer, colour) for colour in colours}
    draw = random.Random(seed)
    items, chances = [], []
    for _ in range(count):
        asking = draw.sample(names, pairs)
        liked = draw.sample(colours, pairs) if distinct else [draw.choice(colours) for _ in asking]
        facts = [_Fact(name, colour) for name, colour in zip(asking, liked, strict=True)]
        answer = draw.randrange(pairs)
        items.append(_prompt(tokenizer, facts, answer, chosen, granularity, equal_length, ending))
        chances.append(1 / len({first[colour] for colour in liked}))
    settings = {
        "pairs": pairs,
        "count": count,
        "seed": seed,
        "prefix": chosen,
        "granularity": granularity,
        "equal_length": equal_length,
        "distinct": distinct,
        "ending": ending,
    }
    return Prompts("binding", tuple(items), settings, chance=fmean(chances))


@dataclass(frozen=True)
class _Fact:
    name: str
    colour: str

    @property
    def text(self) -> str:
        return f" {self.name} likes {self.colour}."


def _same_length(tokenizer: Any, candidates: list[str]) -> list[str]:
    """The words whose number of tokens is the most common one."""
    lengths = {word: len(word_tokens(tokenizer, word)) for word in candidates}
    usual = Counter(lengths.values()).most_common(1)[0][0]
    return [word for word in candidates if lengths[word] == usual]


def _prompt(
    tokenizer: Any,
    facts: Sequence[_Fact],
    answer: int,
    prefix: Prefix,
    granularity: str | int,
    equal_length: bool,
    ending: str,
) -> Prompt:
    body = "".join(fact.text for fact in facts)
    name, colour = facts[answer].name, facts[answer].colour
    question = f" What does {name} like?"
    if prefix == "chat":
        text = chat(tokenizer, INTRODUCTION + body + question) + f"{name} likes"
        begin = text.index(body)
    else:
        front = THROWAWAY if prefix == "fact" else ""
        text = front + body + question + (" Answer:" if ending == "answer" else f" {name} likes")
        begin = len(front)
    encoded = encode(tokenizer, text, start=starts(tokenizer, prefix))
    query = len(encoded.ids) - 1
    pieces, symbols, holds = _pieces(facts, begin, granularity, answer)
    spans = spans_of(encoded, pieces)
    if granularity == "token":
        spans = [(t, t + 1) for start_, stop in spans for t in range(start_, stop)]
        symbols = [encoded.ids[t] for t, _ in spans]
        holds = None
    return Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(first_token(tokenizer, colour),),
        blocks=Blocks.of(spans, query, equal=equal_length),
        symbols=tuple(symbols) if symbols is not None else None,
        asked=holds,
        text=text,
    )


def _pieces(
    facts: Sequence[_Fact], begin: int, granularity: str | int, answer: int
) -> tuple[list[tuple[int, int]], list[int] | None, int | None]:
    """Character spans of the blocks, the symbol of each where there is one, and the block that is asked for."""
    ends = []
    position = begin
    for fact in facts:
        ends.append((position, position + len(fact.text)))
        position += len(fact.text)
    ids: dict[str, int] = {}
    if granularity in ("fact", "token"):
        return ends, None, answer
    if granularity == "symbol":
        pieces, symbols = [], []
        for fact, (a, b) in zip(facts, ends, strict=True):
            pieces += [(a, a + 1 + len(fact.name)), (b - 1 - len(fact.colour), b - 1)]
            symbols += [ids.setdefault(word, len(ids)) for word in (fact.name, fact.colour)]
        return pieces, symbols, 2 * answer + 1
    if isinstance(granularity, int) and 1 <= granularity <= len(facts) // 2:
        groups = [ends[k : k + granularity] for k in range(0, len(ends), granularity)]
        full_groups = [group for group in groups if len(group) == granularity]
        holds = answer // granularity
        return [(g[0][0], g[-1][1]) for g in full_groups], None, holds if holds < len(full_groups) else None
    raise TaskError(
        f"granularity must be 'fact', 'symbol', 'token' or a number of facts up to half of {len(facts)}, "
        f"found {granularity!r}"
    )
