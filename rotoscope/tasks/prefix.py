"""What stands before the blocks: the first tokens of a sequence draw attention whatever they say."""

from __future__ import annotations

from importlib import resources
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.tasks.prompt import encode

Prefix = Literal["chat", "start", "fact", "none"]
PREFIXES: tuple[Prefix, ...] = ("chat", "start", "fact", "none")
THROWAWAY = " Zelda likes amber."
LEAD = "likes"
"""A word before the one whose tokens are looked for."""


def chosen_prefix(tokenizer: Any, prefix: Prefix | None, *, plain: bool = False) -> Prefix:
    """The prefix asked for, by default a chat turn where the tokenizer has a template, else a throwaway fact.

    A `plain` text has no turns.
    """
    template = getattr(tokenizer, "chat_template", None)
    chosen = prefix or ("chat" if template and not plain else "fact")
    known = PREFIXES[1:] if plain else PREFIXES
    if chosen not in known:
        raise TaskError(f"unknown prefix '{chosen}'; choose one of {', '.join(known)}")
    if chosen == "chat" and not template:
        raise TaskError("this tokenizer has no chat template; choose another prefix (start, fact or none)")
    return chosen


def starts(tokenizer: Any, prefix: Prefix) -> bool:
    """Whether the start token comes first."""
    return prefix == "start" or (prefix == "fact" and tokenizer.bos_token_id is not None)


def chat(tokenizer: Any, message: str) -> str:
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


# The words that prompts are made of, and those of them that a tokenizer tells apart.


COLOURS = ("colours.txt", "more_colours.txt")
"""The common ones, and more for prompts that need many."""


def words(file: str) -> list[str]:
    """The words of a file that comes with the tasks, each once."""
    text = resources.files("rotoscope.tasks").joinpath(file).read_text(encoding="utf-8")
    return list(dict.fromkeys(text.split()))


def word_tokens(tokenizer: Any, word: str) -> tuple[int, ...]:
    """The tokens of a word in the middle of a text; at its beginning some tokenizers put a space of their own."""
    encoded = encode(tokenizer, f"{LEAD} {word}")
    return tuple(token for token, (_, end) in zip(encoded.ids, encoded.offsets, strict=True) if end > len(LEAD))


def first_token(tokenizer: Any, word: str) -> int:
    """What a model must say first to say this word, which is how its answers are judged."""
    return word_tokens(tokenizer, word)[0]


def told_apart(tokenizer: Any, needed: int, kind: str, *files: str) -> list[str]:
    """Words that no earlier one shares its first token with: those of the first file, of more only where it has too few."""
    by_token: dict[int, str] = {}
    for file in files:
        for word in words(file):
            by_token.setdefault(first_token(tokenizer, word), word)
        if needed <= len(by_token):
            return list(by_token.values())
    raise TaskError(
        f"{needed} different {kind} were asked for, and this tokenizer tells {len(by_token)} apart by their first token; "
        "ask for no more"
    )
