"""One-hop questions for language models (P2): look back by number, or look up by letter.

**Number.** A sequence of letters and an integer t: the answer is the letter t places back, 1 being the last one.
**Letter.** A sequence of tokens such as `k3`, and a letter that begins one of them: the answer is that whole token.

Each is asked as a text with instructions and three worked examples, to be answered at once and in one word. Question k
is a function of task, length, seed and k alone.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean
from typing import Any, Literal

from rotoscope.errors import TaskError
from rotoscope.scores.blocks import Blocks
from rotoscope.tasks.prompt import (
    Prompt,
    Prompts,
    chat,
    encode,
    first_token,
    spans_of,
    tokenizer_of,
    word_tokens,
)

Status = Literal["answered", "not single", "malformed", "too long"]
ONE_HOP = ("number", "letter")
LENGTHS = (12, 16, 24, 32, 48, 64, 80, 100, 150, 200, 300)
DIGITS = "123456789"
EXAMPLE_LENGTH, EXAMPLE_PLACES = 8, (6, 3, 1)
PLACEHOLDERS = ("{sequence}", "{query}")
QUOTES = " \t\r\n\"'`“”‘’"
INSTRUCTIONS = {
    "number": (
        "Below is a sequence of letters, followed by a whole number t. Count back from the end of the sequence: the last "
        "letter is number 1, the letter before it is number 2, and so on. Reply with letter number t. Write that one "
        "letter and nothing else."
    ),
    "letter": (
        "Below is a sequence of items, each a letter with a digit after it, followed by a single letter. Exactly one item "
        "begins with that letter. Reply with this item, letter and digit. Write that one item and nothing else."
    ),
}
ASKING = {"number": "Number", "letter": "Letter"}


@dataclass(frozen=True)
class Question:
    """One question. `text` is the whole prompt; a chat model gets it as the user's turn."""

    task: str
    length: int
    number: int
    sequence: tuple[str, ...]
    query: str
    answer: str
    text: str

    @property
    def candidates(self) -> tuple[str, ...]:
        """Everything in the sequence that could be the answer, each once."""
        return tuple(sorted(set(self.sequence)))

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.text}]


def one_hop(
    task: str, length: int, count: int = 20, seed: int = 0, template: str | None = None
) -> tuple[Question, ...]:
    """`count` questions about sequences of `length`; every place in the sequence is asked for equally likely.

    A `template` of one's own is a text with the placeholders {sequence} and {query}; it replaces the instructions and
    the worked examples.
    """
    if task not in ONE_HOP:
        raise TaskError(f"unknown one-hop task '{task}'; choose {' or '.join(ONE_HOP)}")
    if length < 1 or count < 1:
        raise TaskError(f"a length and a number of questions are at least 1, found {length} and {count}")
    frame = default_template(task) if template is None else template
    missing = [name for name in PLACEHOLDERS if name not in frame]
    if missing:
        raise TaskError(
            f"the template has no {' and no '.join(missing)}; write {' and '.join(PLACEHOLDERS)} where the sequence and "
            "what is asked about it shall stand"
        )
    questions = []
    for number in range(count):
        sequence, query, answer = _drawn(task, length, f"{task} {length} {seed} {number}")
        questions.append(
            Question(task, length, number, sequence, query, answer, _filled(frame, sequence, query))
        )
    return tuple(questions)


@cache
def default_template(task: str) -> str:
    """The instructions, three worked examples and the place of the question."""
    parts = [INSTRUCTIONS[task]]
    for place in EXAMPLE_PLACES:
        sequence, query, answer = _drawn(task, EXAMPLE_LENGTH, f"worked example {task} {place}", place)
        parts.append(f"{_filled(_ask(task), sequence, query)} {answer}")
    return "\n\n".join([*parts, _ask(task)])


def _ask(task: str) -> str:
    return f"Sequence: {{sequence}}\n{ASKING[task]}: {{query}}\nAnswer:"


def _filled(frame: str, sequence: tuple[str, ...], query: str) -> str:
    return frame.replace("{sequence}", " ".join(sequence)).replace("{query}", query)


def _drawn(task: str, length: int, seed: str, place: int | None = None) -> tuple[tuple[str, ...], str, str]:
    """Sequence, query and answer; the answer stands anywhere unless its place is given."""
    dice = random.Random(seed)
    place = dice.randrange(length) if place is None else place
    if task == "number":
        letters = tuple(dice.choices(string.ascii_lowercase, k=length))
        return letters, str(length - place), letters[place]
    letter = dice.choice(string.ascii_lowercase)
    others = string.ascii_lowercase.replace(letter, "")
    items = tuple((letter if k == place else dice.choice(others)) + dice.choice(DIGITS) for k in range(length))
    return items, letter, items[place]


def read_answer(text: str | None) -> tuple[str, Status]:
    """What was answered, without spaces, quotes and a final full stop, in lower case; more words than one are no answer."""
    answer = (text or "").strip(QUOTES).rstrip(".").strip(QUOTES).lower()
    if not answer:
        return "", "malformed"
    return answer, "answered" if len(answer.split()) == 1 else "not single"


@dataclass(frozen=True)
class OneHopPlan:
    """Which questions are asked: tasks × lengths × runs × questions. Run k is made with seed + k."""

    tasks: tuple[str, ...] = ONE_HOP
    lengths: tuple[int, ...] = LENGTHS
    runs: int = 5
    questions: int = 20
    seed: int = 0
    template: str | None = None

    def __post_init__(self) -> None:
        if not self.tasks or not self.lengths or self.runs < 1 or self.questions < 1:
            raise TaskError("a plan needs at least one task, one length, one run and one question")
        if len(set(self.tasks)) < len(self.tasks) or len(set(self.lengths)) < len(self.lengths):
            raise TaskError("every task and every length can be asked for once only")
        if self.template is not None and len(self.tasks) > 1:
            raise TaskError("a template belongs to one task; ask for the number or for the letter task alone")
        for task in self.tasks:
            for length in self.lengths:
                one_hop(task, length, 1, self.seed, self.template)

    @property
    def settings(self) -> dict[str, Any]:
        """The plan as it stands in `run.json`."""
        return {key: list(x) if isinstance(x, tuple) else x for key, x in asdict(self).items()}

    def __len__(self) -> int:
        return len(self.tasks) * len(self.lengths) * self.runs * self.questions

    def __iter__(self) -> Iterator[tuple[int, Question]]:
        """Every (run, question), tasks and lengths in the order given."""
        for task in self.tasks:
            for length in self.lengths:
                for run in range(self.runs):
                    for question in one_hop(task, length, self.questions, self.seed + run, self.template):
                        yield run, question


# One-hop questions (P2) as prompts to profile a language model on: the items of the sequence are what is swapped.


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
    prompts = [_prompt(tokenizer, question, chosen) for question in one_hop(task, length, count, seed)]
    settings = {"length": length, "count": count, "seed": seed, "prefix": chosen}
    return Prompts(
        task, tuple(item for item, _ in prompts), settings, chance=fmean(chance for _, chance in prompts)
    )


def _prompt(tokenizer: Any, question: Question, prefix: Prefix) -> tuple[Prompt, float]:
    """A question, and the chance of one of the answers in it."""
    asking, answering = question.text.rsplit("\n", 1)
    text = question.text if prefix != "chat" else chat(tokenizer, asking) + answering
    answer_start, answer = _answer(tokenizer, question.answer)
    sequence = " ".join(question.sequence)
    pieces, at = [], text.rindex(f"Sequence: {sequence}\n") + len("Sequence:")
    for item in question.sequence:
        pieces.append((at, at + 1 + len(item)))
        at += 1 + len(item)
    encoded = encode(tokenizer, text + answer_start, start=prefix == "start")
    query = len(encoded.ids) - 1
    prompt = Prompt(
        tokens=encoded.ids,
        queries=(query,),
        answers=(answer,),
        blocks=Blocks.of(spans_of(encoded, pieces), query),
        asked=_place(question),
        text=text + answer_start,
    )
    return prompt, 1 / len({_answer(tokenizer, item)[1] for item in question.candidates})


def _place(question: Question) -> int:
    """Where the answer stands: so many places back, or at the one item that begins with the letter."""
    if question.task == "number":
        return question.length - int(question.query)
    return question.sequence.index(question.answer)


def _answer(tokenizer: Any, item: str) -> tuple[str, int]:
    """What of an item the prompt gives away, and the token that is then to come: the one that tells items apart."""
    ids = word_tokens(tokenizer, item)
    split = len(item) == 2 and len(ids) > 1 and ids[0] == first_token(tokenizer, item[0])
    return (f" {item[0]}", ids[1]) if split else ("", ids[0])
