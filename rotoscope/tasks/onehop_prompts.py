"""One-hop questions (P2) as prompts to profile a language model on: the items of the sequence are what is swapped."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.maths.blocks import Blocks
from rotoscope.tasks.onehop import Question, one_hop
from rotoscope.tasks.prefixes import chat
from rotoscope.tasks.prompts import Prompt, Prompts, encode, spans_of, tokenizer_of

Prefix = Literal["chat", "start", "none"]


def questions(
    subject: Any,
    task: Literal["number", "letter"],
    length: int = 16,
    count: int = 16,
    seed: int = 0,
    *,
    prefix: Prefix | None = None,
) -> Prompts:
    """The questions of `one_hop` about sequences of `length` items, each item a block; scored at the last token.

    Instructions and worked examples stay outside the blocks. With the `prefix` "chat" (where the tokenizer has a
    template) they are a user's turn, and the answer has begun with "Answer:"; "start" and "none" are the bare text. An
    item such as k3 begins with the letter that is asked for: where that is a token of its own the prompt goes on to it,
    and the digit is the answer.
    """
    tokenizer = tokenizer_of(subject)
    if length < 2:
        raise TaskError(f"a swap needs a sequence of two items at least, found {length}")
    template, start = getattr(tokenizer, "chat_template", None), tokenizer.bos_token_id
    chosen = prefix or ("chat" if template else "start" if start is not None else "none")
    if chosen not in ("chat", "start", "none"):
        raise TaskError(f"unknown prefix '{chosen}'; choose chat, start or none")
    if chosen == "chat" and not template:
        raise TaskError("this tokenizer has no chat template; choose another prefix (start or none)")
    made = [_prompt(tokenizer, question, chosen) for question in one_hop(task, length, count, seed)]
    settings = {"length": length, "count": count, "seed": seed, "prefix": chosen}
    return Prompts(task, tuple(item for item, _ in made), settings, chance=fmean(chance for _, chance in made))


def _prompt(tokenizer: Any, question: Question, prefix: Prefix) -> tuple[Prompt, float]:
    """A question, and the chance of one of the answers in it."""
    asking, answering = question.text.rsplit("\n", 1)
    text = question.text if prefix != "chat" else chat(tokenizer, asking) + answering
    begun, answer = _answer(tokenizer, question.answer)
    sequence = " ".join(question.sequence)
    pieces, at = [], text.rindex(f"Sequence: {sequence}\n") + len("Sequence:")
    for item in question.sequence:
        pieces.append((at, at + 1 + len(item)))
        at += 1 + len(item)
    encoded = encode(tokenizer, text + begun, start=prefix == "start")
    query = len(encoded.ids) - 1
    prompt = Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(answer,),
        blocks=Blocks.of(spans_of(encoded, pieces), query),
        asked=_place(question),
        text=text + begun,
    )
    return prompt, 1 / len({_answer(tokenizer, item)[1] for item in question.candidates})


def _place(question: Question) -> int:
    """Where the answer stands: so many places back, or at the one item that begins with the letter."""
    if question.task == "number":
        return question.length - int(question.query)
    return question.sequence.index(question.answer)


def _answer(tokenizer: Any, item: str) -> tuple[str, int]:
    """What of an item the prompt gives away, and the token that is then to come: the one that tells items apart."""
    ids = encode(tokenizer, f" {item}").ids
    split = len(item) == 2 and len(ids) > 1 and ids[0] == encode(tokenizer, f" {item[0]}").ids[0]
    return (f" {item[0]}", ids[1]) if split else ("", ids[0])
