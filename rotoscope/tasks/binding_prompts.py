"""Binding prompts (P1): n facts "name likes colour", then a question about one name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.maths.blocks import Blocks
from rotoscope.tasks.prompts import Prompt, Prompts, encode, spans_of, tokenizer_of

Prefix = Literal["chat", "start", "fact", "none"]
PREFIXES: tuple[Prefix, ...] = ("chat", "start", "fact", "none")
THROWAWAY = " Zelda likes amber."
INTRODUCTION = "Here are some facts."


def default_prefix(tokenizer: Any) -> Prefix:
    """What stands before the facts: a chat turn where the tokenizer has a template, else a throwaway fact."""
    return "chat" if getattr(tokenizer, "chat_template", None) else "fact"


def binding(
    subject: Any,
    pairs: int = 32,
    count: int = 16,
    seed: int = 0,
    *,
    prefix: Prefix | None = None,
    granularity: Literal["fact", "symbol", "token"] | int = "fact",
    equal_length: bool = False,
) -> Prompts:
    """`count` prompts of `pairs` facts each, one of which is asked about; scored at the last token.

    Every fact is a block; the `prefix` stays outside the blocks, because the first tokens of a sequence draw
    attention whatever they say:

    - "chat": a system and a user turn in the model's own template, and an answer that has begun;
    - "start": the start token only;
    - "fact": the start token, where there is one, and a throwaway fact;
    - "none": nothing, so that the first fact holds the first token.

    `granularity` is what counts as one block: a "fact", each "symbol" (name or colour), each "token", or a
    number of facts. `equal_length` keeps to names and colours of one token length each.
    """
    tokenizer = tokenizer_of(subject)
    chosen = prefix or default_prefix(tokenizer)
    if chosen not in PREFIXES:
        raise TaskError(f"unknown prefix '{chosen}'; choose one of {', '.join(PREFIXES)}")
    if chosen == "chat" and not getattr(tokenizer, "chat_template", None):
        raise TaskError("this tokenizer has no chat template; choose another prefix (start, fact or none)")
    if pairs < 2 or count < 1:
        raise TaskError(f"binding needs at least 2 pairs and 1 prompt, found {pairs} pairs, {count} prompts")
    names, colours = _words("names.txt"), _words("colours.txt")
    if equal_length:
        names, colours = _same_length(tokenizer, names), _same_length(tokenizer, colours)
    if pairs > len(names):
        raise TaskError(
            f"{pairs} pairs need as many names, and there are {len(names)}"
            + (" of equal token length for this tokenizer; allow unequal lengths" if equal_length else "")
        )
    draw = random.Random(seed)
    items = []
    for _ in range(count):
        facts = [_Fact(name, draw.choice(colours)) for name in draw.sample(names, pairs)]
        items.append(_prompt(tokenizer, facts, draw.randrange(pairs), chosen, granularity, equal_length))
    settings = {
        "pairs": pairs,
        "count": count,
        "seed": seed,
        "prefix": chosen,
        "granularity": granularity,
        "equal_length": equal_length,
    }
    return Prompts("binding", tuple(items), settings)


@dataclass(frozen=True)
class _Fact:
    name: str
    colour: str

    @property
    def text(self) -> str:
        return f" {self.name} likes {self.colour}."


def _words(file: str) -> list[str]:
    text = resources.files("rotoscope.tasks").joinpath(file).read_text(encoding="utf-8")
    return list(dict.fromkeys(text.split()))


def _same_length(tokenizer: Any, words: list[str]) -> list[str]:
    """The words whose number of tokens is the most common one."""
    lengths = {word: len(encode(tokenizer, f" {word}").ids) for word in words}
    usual = Counter(lengths.values()).most_common(1)[0][0]
    return [word for word in words if lengths[word] == usual]


def _prompt(
    tokenizer: Any,
    facts: Sequence[_Fact],
    asked: int,
    prefix: Prefix,
    granularity: str | int,
    equal_length: bool,
) -> Prompt:
    body = "".join(fact.text for fact in facts)
    name, colour = facts[asked].name, facts[asked].colour
    question = f" What does {name} like?"
    if prefix == "chat":
        text = _chat(tokenizer, INTRODUCTION + body + question) + f"{name} likes"
        begin = text.index(body)
    else:
        front = THROWAWAY if prefix == "fact" else ""
        text = front + body + question + " Answer:"
        begin = len(front)
    start = prefix == "start" or (prefix == "fact" and tokenizer.bos_token_id is not None)
    encoded = encode(tokenizer, text, start=start)
    query = len(encoded.ids) - 1
    pieces, symbols, holds = _pieces(facts, begin, granularity, asked)
    spans = spans_of(encoded, pieces)
    if granularity == "token":
        spans = [(t, t + 1) for start_, stop in spans for t in range(start_, stop)]
        symbols = [encoded.ids[t] for t, _ in spans]
        holds = None
    answer = encode(tokenizer, f" {colour}").ids[0]
    return Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(answer,),
        blocks=Blocks.of(spans, query, equal=equal_length),
        symbols=tuple(symbols) if symbols is not None else None,
        asked=holds,
        text=text,
    )


def _chat(tokenizer: Any, message: str) -> str:
    """The user's turn in the model's own template, up to where the answer begins."""
    user = {"role": "user", "content": message}
    system = {"role": "system", "content": "You are a helpful assistant."}
    for turns in ([system, user], [user]):  # some templates refuse a system turn
        try:
            rendered: str = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as problem:
            reason = problem
            continue
        if message in rendered:
            return rendered
        reason = TaskError("the template does not keep the message as it is")
    raise TaskError(f"the tokenizer's chat template cannot be used ({reason}); choose another prefix")


def _pieces(
    facts: Sequence[_Fact], begin: int, granularity: str | int, asked: int
) -> tuple[list[tuple[int, int]], list[int] | None, int | None]:
    """Character spans of the blocks, the symbol of each where there is one, and the block that is asked for."""
    ends = []
    position = begin
    for fact in facts:
        ends.append((position, position + len(fact.text)))
        position += len(fact.text)
    ids: dict[str, int] = {}
    if granularity in ("fact", "token"):
        return ends, None, asked
    if granularity == "symbol":
        pieces, symbols = [], []
        for fact, (a, b) in zip(facts, ends, strict=True):
            pieces += [(a, a + 1 + len(fact.name)), (b - 1 - len(fact.colour), b - 1)]
            symbols += [ids.setdefault(word, len(ids)) for word in (fact.name, fact.colour)]
        return pieces, symbols, 2 * asked + 1
    if isinstance(granularity, int) and 1 <= granularity <= len(facts) // 2:
        groups = [ends[k : k + granularity] for k in range(0, len(ends), granularity)]
        whole = [group for group in groups if len(group) == granularity]
        holds = asked // granularity
        return [(g[0][0], g[-1][1]) for g in whole], None, holds if holds < len(whole) else None
    raise TaskError(
        f"granularity must be 'fact', 'symbol', 'token' or a number of facts up to half of {len(facts)}, "
        f"found {granularity!r}"
    )
