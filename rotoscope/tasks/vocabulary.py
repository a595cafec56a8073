"""The words that prompts are made of, and those of them that a tokenizer tells apart."""

from __future__ import annotations

from importlib import resources
from typing import Any

from rotoscope.errors import TaskError
from rotoscope.tasks.prompts import encode

COLOURS = ("colours.txt", "more_colours.txt")
"""The common ones, and more for prompts that need many."""


def words(file: str) -> list[str]:
    """The words of a file that comes with the tasks, each once."""
    text = resources.files("rotoscope.tasks").joinpath(file).read_text(encoding="utf-8")
    return list(dict.fromkeys(text.split()))


def first_token(tokenizer: Any, word: str) -> int:
    """What a model must say first to say this word, which is how its answers are judged."""
    return encode(tokenizer, f" {word}").ids[0]


def told_apart(tokenizer: Any, needed: int, what: str, *files: str) -> list[str]:
    """Words that no earlier one shares its first token with: those of the first file, of more only where it has too few."""
    found: dict[int, str] = {}
    for file in files:
        for word in words(file):
            found.setdefault(first_token(tokenizer, word), word)
        if needed <= len(found):
            return list(found.values())
    raise TaskError(
        f"{needed} different {what} were asked for, and this tokenizer tells {len(found)} apart by their first token; "
        "ask for no more"
    )
