"""What a language model is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rotoscope.settings import SEED, Settings, count

OWN = ("number", "letter")
Task = Literal["binding", "groups", "lookup", "recall", "repeats", "text", "number", "letter"]
DRAWN = ("binding", "groups", "lookup", "recall", "repeats", *OWN)


@dataclass(frozen=True, kw_only=True)
class PromptSettings(Settings):
    """A task and its sizes; a size that means nothing for the task is refused."""

    title: ClassVar = "What the model is shown"
    python_only: ClassVar = ("asked", "distinct", "ending")
    meant_for: ClassVar = {
        "pairs": ("binding", "groups", "lookup"),
        "prompts": DRAWN,
        "prefix": DRAWN,
        "granularity": ("binding",),
        "distinct": ("binding",),
        "ending": ("binding",),
        "asked": ("groups",),
        "length": ("recall", "repeats", *OWN),
        "text": ("text",),
        "blocks": ("repeats", "text"),
        "answer": ("text",),
    }
    bounds: ClassVar = {
        "pairs": count(100_000, "a swap needs two facts, and no model has the positions for more", least=2),
        "prompts": count(1_000_000, "scores are averaged over prompts, and every one of them is kept"),
        "length": count(
            1_000_000, "a swap needs tokens to swap, and no model has the positions for more", least=4
        ),
        "seed": SEED,
    }

    task: Task | None = None
    """binding: facts and a question. groups: facts of three members, two given. lookup: lines "name: colour", twice, and a
    name. recall: a list of words, twice, and begun again. repeats: random tokens, repeated. text: your own prompt (--text).
    number, letter: the model's own multi-hop task; a language model is asked one-hop questions. By default the model's
    own task, else binding (gate: repeats)."""
    pairs: int | None = None
    """binding, groups: facts in a prompt (32, 16). lookup: lines before they come again (8)."""
    prompts: int = 16
    """How many prompts to average over."""
    prefix: Literal["chat", "start", "fact", "none"] | None = None
    """What stands before the blocks: chat, start (token), fact (a throwaway one) or none. By default chat where the task has
    turns (binding, number, letter) and the tokenizer a template."""
    granularity: str = "fact"
    """binding: what is swapped whole: fact, symbol, token, or a number of facts."""
    distinct: bool = False
    """binding: every name likes a colour of its own, whose first token no other begins with."""
    ending: Literal["likes", "answer"] = "likes"
    """binding without a chat: prompts end in "Joel likes", or in "Answer:" as in earlier versions."""
    asked: Literal["name", "thing", "place"] = "name"
    """groups: which member is asked for, the others given."""
    length: int | None = None
    """repeats: tokens before they repeat (32). recall: words in the list (12). number, letter: items in the sequence of a
    language model's question (16)."""
    text: Path | None = None
    """text: a file with the prompt; the last token is the query."""
    blocks: str | None = None
    """text: sentence (the default), line, token, a number of tokens, or spans such as 1:5,5:9 (token positions). repeats:
    tokens of all copies (the default), or of the first."""
    answer: str | None = None
    """text: what should come next, for the model's own accuracy."""
    seed: int = 0
    """Seed of the prompts, of the null's draws, and of the random heads that a gate is compared with."""
