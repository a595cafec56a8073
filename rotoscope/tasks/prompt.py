"""Random numbers that depend on a seed and a row number only.

Row 7 of a dataset is the same sequence whether rows are made one by one or a million at once, on a CPU or on a GPU:
every number is a hash of (seed, row, stream, column), and no generator is passed along.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal, overload

import torch

from rotoscope.errors import TaskError
from rotoscope.scores.blocks import Blocks
from rotoscope.shapes import Int, Tensor

# The increment and the two factors of splitmix64, as signed 64-bit integers; products wrap around.
STEP, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def _shifted(bits: Tensor, by: int) -> Tensor:
    """A logical shift to the right; torch's own keeps the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mix(bits: Tensor) -> Tensor:
    bits = bits + STEP
    bits = (bits ^ _shifted(bits, 30)) * FIRST
    bits = (bits ^ _shifted(bits, 27)) * SECOND
    return bits ^ _shifted(bits, 31)


class Dice:
    """Independent random numbers for each of the given rows; every call opens a stream of its own."""

    def __init__(self, seed: int, rows: Int[Tensor, "rows"]) -> None:
        self.rows = _mix(_mix(torch.full_like(rows, seed)) ^ rows)
        self.stream = 0

    def bits(self, columns: int) -> Int[Tensor, "rows columns"]:
        """62 random bits for each row and column."""
        self.stream += 1
        streams = _mix(self.rows + self.stream)[:, None]
        return _shifted(_mix(streams ^ torch.arange(columns, device=self.rows.device)), 2)

    def below(self, bounds: int | Tensor, columns: int) -> Int[Tensor, "rows columns"]:
        """Integers from 0 up to, but not including, the bound (which may differ by column or row)."""
        return self.bits(columns) % bounds


# What a model is shown: tokens, the blocks to swap, the positions to ask at, the expected answers.


@dataclass(frozen=True)
class Prompt:
    """One input: its tokens, where the task asks, what is expected there and what is swapped.

    Positions are token positions, counted from 0.
    """

    tokens: tuple[int, ...]
    queries: tuple[int, ...]
    """Where the task asks: positions whose next token is the answer."""
    answers: tuple[int | None, ...] = ()
    """The expected next token at each query, where there is one."""
    blocks: Blocks | None = None
    """What is swapped; None means every token before the query."""
    symbols: tuple[int, ...] | None = None
    """For each block, an id of its symbol; without it, blocks with the same tokens have the same symbol."""
    asked: int | None = None
    """The block that holds the answer, where there is one."""
    text: str = ""

    def __post_init__(self) -> None:
        if not self.queries:
            raise TaskError("a prompt needs at least one query position")
        last = len(self.tokens) - 1
        if not all(0 <= q <= last for q in self.queries):
            raise TaskError(f"query positions {self.queries} do not all lie in a prompt of {last + 1} tokens")
        if self.blocks is not None:
            Blocks.of(self.blocks.spans, max(self.queries))
            if self.asked is not None and not 0 <= self.asked < len(self.blocks):
                raise TaskError(
                    f"asked is {self.asked}, and the blocks are numbered from 0 to {len(self.blocks) - 1}"
                )

    def symbols_of(self, blocks: Blocks) -> tuple[int, ...]:
        """The symbol of each of these blocks, the first ones of the prompt."""
        if self.symbols is not None:
            return self.symbols[: len(blocks)]
        ids: dict[tuple[int, ...], int] = {}
        return tuple(ids.setdefault(self.tokens[a:b], len(ids)) for a, b in blocks.spans)


@dataclass(frozen=True)
class Prompts(Sequence[Prompt]):
    """The prompts of one task, with the settings that made them; a sequence of `Prompt`.

    A task of your own is a function that returns one. The settings are written into `run.json`.
    """

    task: str
    items: tuple[Prompt, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    chance: float | None = None
    """How often one of the answers that stand in a prompt, picked at random, is right; None where nobody can say."""

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> Prompts: ...
    def __getitem__(self, index: int | slice) -> Prompt | Prompts:
        if isinstance(index, slice):
            return replace(self, items=self.items[index])
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.items)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{key}={value!r}" for key, value in self.settings.items() if key != "count")
        return f"Prompts({self.task}: {len(self)} prompts{', ' + sizes if sizes else ''})"

    @property
    def size(self) -> str:
        """How many there are, and how long, in words."""
        return f"{len(self):,} prompt{'s' * (len(self) > 1)} of up to {self.longest:,} tokens"

    @property
    def longest(self) -> int:
        """Tokens in the longest prompt."""
        return max(len(prompt.tokens) for prompt in self.items)


@dataclass(frozen=True)
class Encoded:
    """Token ids with the characters each of them covers."""

    ids: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


def tokenizer_of(subject: Any) -> Any:
    """Tasks take a subject, a pair (model, tokenizer) or a bare tokenizer."""
    if isinstance(subject, tuple | list) and len(subject) == 2:
        subject = subject[1]
    tokenizer = getattr(subject, "tokenizer", subject)
    if not hasattr(tokenizer, "get_vocab"):
        name = getattr(subject, "name", None) or f"a {type(subject).__name__}"
        raise TaskError(
            f"{name} has no tokenizer, and this task is made of words; load the model with "
            "one, (model, tokenizer), or give token ids: rotoscope.tasks.from_tokens"
        )
    return tokenizer


MOST_OWN_WORDS = 1000
"""A vocabulary of fewer words is that of a multi-hop task; language models have tens of thousands."""


def tokenised(tokenizer: Any, text: str, **options: Any) -> Any:
    """What a tokenizer makes of a text; one that has no tokens for it is an error in words."""
    try:
        return tokenizer(text, **options)
    except Exception as problem:  # tokenizers knows no other
        words = text if len(text) < 40 else f"{text[:40]} ..."
        vocabulary = tokenizer.get_vocab()
        task = next((task for task, word in (("number", "16"), ("letter", "aa")) if word in vocabulary), None)
        if task is not None and len(vocabulary) < MOST_OWN_WORDS:
            raise TaskError(
                f"this model knows only the {len(vocabulary)} words of the {task} task, and not {words!r}: show it "
                f"rs.tasks.{task}(count=16), or rs.tasks.repeats(subject)"
            ) from problem
        raise TaskError(f"the model's tokenizer has no tokens for {words!r} ({problem})") from problem


def encode(tokenizer: Any, text: str, *, start: bool = False) -> Encoded:
    """Tokenize with character offsets; `start` puts the tokenizer's start token in front."""
    if not getattr(tokenizer, "is_fast", False):
        raise TaskError(
            f"{type(tokenizer).__name__} gives no character offsets, which cutting a text into blocks needs; "
            "load the model's fast tokenizer"
        )
    encoding = tokenised(tokenizer, text, add_special_tokens=False, return_offsets_mapping=True)
    ids = tuple(encoding["input_ids"])
    offsets = tuple((int(a), int(b)) for a, b in encoding["offset_mapping"])
    if not start:
        return Encoded(ids, offsets)
    if tokenizer.bos_token_id is None:
        raise TaskError("this tokenizer has no start token; choose another prefix (chat, fact or none)")
    return Encoded((tokenizer.bos_token_id, *ids), ((0, 0), *offsets))


def spans_of(encoded: Encoded, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Token spans of pieces of text given by characters; a token belongs to where its last character lies."""
    last = sorted((b, t) for t, (a, b) in enumerate(encoded.offsets) if b > a)
    ends, tokens = [b for b, _ in last], [t for _, t in last]
    spans = []
    for begin, end in pieces:
        inside = tokens[bisect_right(ends, begin) : bisect_right(ends, end)]
        if not inside:
            raise TaskError(f"no token ends between characters {begin} and {end}")
        spans.append((min(inside), max(inside) + 1))
    return spans


# Bare token ids as prompts.


def from_tokens(
    tokens: Any, blocks: Sequence[Sequence[int]] | Blocks | None = None, answers: Sequence[int] | None = None
) -> Prompts:
    """Token ids [prompts, n], a list, an array, a tensor or what a tokenizer returns: scored at the last position.

    All token swaps are scored unless `blocks` are given; `answers` are the expected next tokens.
    """
    if isinstance(tokens, Mapping):
        tokens = _unpadded(tokens)
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise TaskError(
            f"tokens must be whole numbers [prompts, n], rows of one length ({problem})"
        ) from problem
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise TaskError(
            f"tokens must be whole numbers [prompts, n], found {ids.ndim} axes of {str(ids.dtype).split('.')[-1]}"
        )
    n = ids.shape[1]
    if n < 3:
        raise TaskError(f"{n} tokens: a swap needs two keys before the query")
    query = n - 1
    spans = blocks if isinstance(blocks, Blocks) or blocks is None else Blocks.of(blocks, query)
    items = tuple(
        Prompt(tuple(row), (query,), (None if answers is None else int(answers[k]),), spans)
        for k, row in enumerate(ids.tolist())
    )
    return Prompts("tokens", items, {"prompts": len(items), "tokens": n})


def _unpadded(encoding: Mapping[str, Any]) -> Any:
    """The ids in what a tokenizer returns; rows that were padded to one length are refused."""
    if "input_ids" not in encoding:
        raise TaskError(
            f"a dictionary of tokens has 'input_ids', found {', '.join(map(repr, encoding)) or 'none'}"
        )
    mask = encoding.get("attention_mask", [])
    rows = [mask] if len(mask) and not hasattr(mask[0], "__len__") else mask
    if not all(all(row) for row in rows):
        raise TaskError(
            "the rows of tokens are padded to one length: give the texts themselves, with the tokenizer"
        )
    return encoding["input_ids"]


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
