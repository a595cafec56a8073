"""What a language model is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rotoscope.settings.base import Settings
from rotoscope.settings.bounds import SEED, count

OWN = ("number", "letter")
DRAWN = ("binding", "repeats", *OWN)


@dataclass(frozen=True, kw_only=True)
class PromptSettings(Settings):
    """A task and its sizes; a size that means nothing for the task is refused."""

    title: ClassVar = "What the model is shown"
    meant_for: ClassVar = {
        "pairs": ("binding",),
        "prompts": DRAWN,
        "prefix": ("binding", "repeats"),
        "granularity": ("binding",),
        "equal_length": ("binding", "text"),
        "length": ("repeats",),
        "text": ("text",),
        "blocks": ("text",),
        "answer": ("text",),
        "vary": ("binding",),
    }
    bounds: ClassVar = {
        "pairs": count(100_000, "a swap needs two facts, and no model has the positions for more", least=2),
        "prompts": count(1_000_000, "scores are averaged over prompts, and every one of them is kept"),
        "length": count(
            1_000_000, "a swap needs tokens to swap, and no model has the positions for more", least=4
        ),
        "seed": SEED,
    }

    task: Literal["binding", "repeats", "text", "number", "letter"] | None = None
    """binding: facts and a question. repeats: random tokens, repeated. text: your own prompt (--text). number, letter: the
    model's own multi-hop task. By default the model's own task where it was trained on one, else binding (gate: repeats)."""
    pairs: int = 32
    """binding: facts in a prompt."""
    prompts: int = 16
    """How many prompts to average over."""
    prefix: Literal["chat", "start", "fact", "none"] | None = None
    """What stands before the blocks: chat, start (token), fact (a throwaway one) or none. By default chat where the
    tokenizer has a template, else fact."""
    granularity: str = "fact"
    """binding: what is swapped whole: fact, symbol, token, or a number of facts."""
    equal_length: bool = False
    """Demand blocks of one length; centred scores need them."""
    length: int = 32
    """repeats: tokens before they repeat."""
    text: Path | None = None
    """text: a file with the prompt; the last token is the query."""
    blocks: str = "sentence"
    """text: sentence, line, token, a number of tokens, or spans such as 1:5,5:9 (token positions)."""
    answer: str | None = None
    """text: what should come next, for the model's own accuracy."""
    seed: int = 0
    """Seed of the prompts, of the null's draws, and of the random heads that a gate is compared with."""
