"""Plain prose, for the loss of a model on ordinary text: written for this project, part of no training set."""

from __future__ import annotations

from importlib import resources
from typing import Any

from rotoscope.errors import TaskError
from rotoscope.tasks.prompts import Prompt, Prompts, encode, tokenizer_of


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
