"""The multi-hop tasks of P2: follow pointers from the last token until there is nothing left to follow.

**Number task.** A target window of letters, then integers; an integer t at position p points to p - t. The answer is the
letter at the end of the path. **Letter task.** A target window of (letter, digit) pairs, then (letter, letter) pairs; the
second letter says which earlier pair comes next, the one that begins with it. The answer is the (letter, digit) pair at
the end. Both have exactly one path per sequence, and ask at the last token.

Hop counts come in equal shares, and inside each of them every answer value and every answer position equally often, once
round the cycle of both. `balanced` takes rows from all over a cycle, so that a few of them are balanced as well.
Positions are 0-based. Row k is a function of the seed and of k alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any, overload

import torch

from rotoscope.errors import TaskError
from rotoscope.shapes import Int, Tensor
from rotoscope.tasks.dice import Dice
from rotoscope.tasks.prompts import Prompt, Prompts

PAD = "<pad>"


@dataclass(frozen=True)
class MultiHop:
    """One sequence in words, its answer and the positions on the path from the last token to it."""

    task: str
    tokens: tuple[str, ...]
    answer: str
    hops: int
    path: tuple[int, ...]


@dataclass(frozen=True)
class MultiHops(Sequence[MultiHop]):
    """Many sequences as token ids. Index it to see one of them in words."""

    task: str
    tokens: Int[Tensor, "rows n"]
    answer: Int[Tensor, "rows"]
    hops: Int[Tensor, "rows"]
    path: Int[Tensor, "rows most_hops_and_one"]
    """Positions from the last token to the answer, then -1."""
    vocabulary: tuple[str, ...]
    """The string of every token id; the last one is padding and stands in no sequence."""
    settings: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @overload
    def __getitem__(self, index: int) -> MultiHop: ...
    @overload
    def __getitem__(self, index: slice | Tensor) -> MultiHops: ...
    def __getitem__(self, index: int | slice | Tensor) -> MultiHop | MultiHops:
        if isinstance(index, int):
            tokens = tuple(self.vocabulary[t] for t in self.tokens[index].tolist())
            hops = int(self.hops[index])
            path = tuple(self.path[index, : hops + 1].tolist())
            return MultiHop(self.task, tokens, self.vocabulary[int(self.answer[index])], hops, path)
        rows = {name: getattr(self, name)[index] for name in ("tokens", "answer", "hops", "path")}
        return replace(self, **rows)

    def __iter__(self) -> Iterator[MultiHop]:
        return (self[k] for k in range(len(self)))

    def to(self, device: str | torch.device) -> MultiHops:
        """The same sequences on another device."""
        rows = {name: getattr(self, name).to(device) for name in ("tokens", "answer", "hops", "path")}
        return replace(self, **rows)

    @property
    def length(self) -> int:
        """Tokens in a sequence."""
        return self.tokens.shape[1]

    @cached_property
    def on_path(self) -> Tensor:
        """Which positions [rows, n] stand on the path and point on: all of it but the answer."""
        marks = torch.zeros_like(self.tokens, dtype=torch.bool)
        steps = torch.arange(self.path.shape[1], device=self.path.device)
        points = steps < self.hops[:, None]
        rows = torch.arange(len(self), device=self.path.device)[:, None].expand_as(points)
        marks[rows[points], self.path[points]] = True
        return marks

    def prompts(self) -> Prompts:
        """The same sequences as prompts to profile a model on: every token a block, asked at the last one."""
        items = tuple(
            Prompt(tuple(row), (self.length - 1,), (answer,))
            for row, answer in zip(self.tokens.tolist(), self.answer.tolist(), strict=True)
        )
        return Prompts(self.task, items, dict(self.settings), self._chance)

    @property
    def _chance(self) -> float | None:
        """Of one of the tokens in a sequence that point no further, picked at random."""
        ends = {k for k, word in enumerate(self.vocabulary) if word[-1].isdigit() == (self.task == "letter")}
        there = [len(ends.intersection(row)) for row in self.tokens.tolist()]
        return fmean(1 / n for n in there) if there else None


def letters_of(count: int) -> list[str]:
    """a..z, then aa, ab, ... as many as asked for."""
    names = [chr(ord("a") + k) for k in range(26)]
    return (names + [first + second for first in names for second in names])[:count]


@dataclass(frozen=True)
class _Frame:
    """What both tasks share: which rows, how many hops each, where the answer stands, which value it has."""

    rows: Tensor
    hops: Tensor
    value: Tensor
    path: Tensor
    dice: Dice
    body: int
    """Where the pointing window begins."""
    last: int
    sizes: dict[str, Any]
    drawn: dict[str, Any]
    """Settings: what makes the task, and what tells one set of sequences from another."""

    def put(self, tokens: Tensor, step: int, made: Tensor) -> None:
        """Write tokens [rows] at the path's position `step`, in the rows whose path points on from there."""
        here = torch.where(self.hops > step, self.path[:, step], self.last)
        kept = tokens.gather(1, here[:, None])[:, 0]
        tokens.scatter_(1, here[:, None], torch.where(self.hops > step, made, kept)[:, None])

    def made(self, task: str, tokens: Tensor, vocabulary: tuple[str, ...], **own: int) -> MultiHops:
        """The finished sequences; `own` are the sizes that only this task has."""
        settings = self.sizes | own | self.drawn
        return MultiHops(task, tokens, self.value, self.hops, self.path, vocabulary, settings)


def _frame(
    count: int,
    hops: int | Sequence[int],
    target: int,
    window: int,
    values: int,
    front: int,
    seed: int,
    first: int,
    balanced: bool,
    device: str | torch.device,
) -> _Frame:
    kinds = _kinds(hops)
    if count < 1 or front < 0 or first < 0:
        raise TaskError(f"count must be at least 1 and front at least 0, found {count} and {front}")
    if target < 1 or window < max(kinds) - 1:
        raise TaskError(
            f"{max(kinds)} hops need a window of at least {max(kinds) - 1} tokens and a target, "
            f"found {window} and {target}"
        )
    rows = torch.arange(first, first + count, device=device)
    if balanced:
        rows = _balanced_rows(count, len(kinds), values, target, seed, first).to(device)
    dice = Dice(seed, rows)
    among = rows // len(kinds)  # the row's number inside its hop class
    hop_counts = torch.tensor(kinds, device=device)[rows % len(kinds)]
    # Values take turns, positions take turns, and one is shifted against the other once both have gone round.
    value = among % values
    where = front + (among + among // math.lcm(values, target)) % target
    body, last = front + target, front + target + window
    rank = dice.bits(window).argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    places = torch.arange(body, last, device=device).expand(count, -1)
    between = torch.where(rank < hop_counts[:, None] - 1, places, -1).sort(1, descending=True).values
    path = torch.full((count, max(kinds) + 1), -1, device=device)
    path[:, 0] = last
    path[:, 1:-1] = between[:, : max(kinds) - 1]
    path.scatter_(1, hop_counts[:, None], where[:, None])
    sizes = {"hops": list(kinds), "target": target, "window": window}
    drawn = {"front": front, "seed": seed, "first": first, "count": count} | (
        {"balanced": True} if balanced else {}
    )
    return _Frame(rows, hop_counts, value, path, dice, body, last, sizes, drawn)


def _balanced_rows(count: int, kinds: int, values: int, target: int, seed: int, first: int) -> Tensor:
    """Rows after `first` in which answers and their positions are spread as evenly as so few can be.

    In every hop class: as often as all values fit they take turns from the beginning of a cycle on. The rest come from the
    next cycle, one from each of equally wide ranges of values, and their positions take turns in a random order.
    """
    dice = torch.Generator().manual_seed(seed)
    turn = math.lcm(values, target)
    cycle = turn * target  # rows of a class after which values and positions have met equally often
    begin = -(-first // (kinds * cycle)) * cycle
    among = torch.empty(count, dtype=torch.long)
    for kind in range(kinds):
        own = among[kind::kinds]
        whole = len(own) // values * values
        own[:whole] = begin + torch.arange(whole)
        left = len(own) - whole
        if left:
            edges = torch.arange(left + 1) * values // left
            width = edges.diff()
            value = edges[:-1] + (torch.rand(left, generator=dice) * width).long().clamp(max=width - 1)
            turns = [torch.randperm(target, generator=dice) for _ in range(0, left, target)]
            where = torch.cat(turns)[:left]
            next_cycle = begin + -(-whole // cycle) * cycle
            own[whole:] = next_cycle + value + turn * ((where - value) % target)
    return among * kinds + torch.arange(count) % kinds


def _kinds(hops: int | Sequence[int]) -> tuple[int, ...]:
    """4 means one to four hops; a list means exactly those."""
    kinds = tuple(range(1, hops + 1)) if isinstance(hops, int) else tuple(int(h) for h in hops)
    if not kinds or min(kinds) < 1 or len(set(kinds)) < len(kinds):
        raise TaskError(f"hops must be a positive number or different positive numbers, found {hops}")
    return kinds


def number(
    count: int = 1000,
    *,
    hops: int | Sequence[int] = 4,
    target: int = 8,
    window: int = 8,
    letters: int = 120,
    front: int = 0,
    seed: int = 0,
    first: int = 0,
    balanced: bool = False,
    device: str | torch.device = "cpu",
) -> MultiHops:
    """Number sequences: `target` letters, `window` integers, and an integer at the end that begins the path.

    `hops` of 4 means one to four, in equal shares; a list means exactly those. `front` puts more letters before the
    sequence, which no path reaches. `first` is the row to begin with; `balanced` takes `count` rows from all over a cycle
    of answers and their positions instead of those that follow one another.
    """
    if not 1 <= letters <= 26 * 27:
        raise TaskError(f"letters must lie between 1 and {26 * 27}, found {letters}")
    frame = _frame(count, hops, target, window, letters, front, seed, first, balanced, device)
    dice, reach = frame.dice, target + window
    tokens = torch.empty(count, frame.last + 1, dtype=torch.long, device=device)
    tokens[:, : frame.body] = dice.below(letters, frame.body)
    tokens.scatter_(1, frame.path.gather(1, frame.hops[:, None]), frame.value[:, None])
    farthest = torch.arange(frame.body, frame.last + 1, device=device).clamp(max=reach)
    tokens[:, frame.body :] = letters + dice.below(farthest, window + 1)
    for step in range(frame.path.shape[1] - 1):
        frame.put(tokens, step, letters - 1 + frame.path[:, step] - frame.path[:, step + 1])
    vocabulary = (*letters_of(letters), *(str(t) for t in range(1, reach + 1)), PAD)
    return frame.made("number", tokens, vocabulary, letters=letters)


def letter(
    count: int = 1000,
    *,
    hops: int | Sequence[int] = 4,
    target: int = 8,
    window: int = 8,
    alphabet: int = 8,
    digits: int = 8,
    front: int = 0,
    seed: int = 0,
    first: int = 0,
    balanced: bool = False,
    device: str | torch.device = "cpu",
) -> MultiHops:
    """Letter sequences: `target` (letter, digit) pairs, `window` (letter, letter) pairs, and one more at the end.

    A letter that the path looks for begins no other pair, so there is never a second match. The other arguments are
    those of `number`.
    """
    most = max(_kinds(hops))
    if not most + 1 <= alphabet <= 26:
        raise TaskError(
            f"{most} hops need {most} letters that begin one pair only and at least one other (at most 26 in all), "
            f"found {alphabet} letters"
        )
    if digits < 1:
        raise TaskError(f"digits must be at least 1, found {digits}")
    frame = _frame(count, hops, target, window, alphabet * digits, front, seed, first, balanced, device)
    dice, pairs = frame.dice, alphabet * digits
    # A random order of the letters that begins with the answer's: the h first are looked for (the last one first), the
    # rest is free to begin the pairs off the path.
    order = dice.bits(alphabet)
    order.scatter_(1, (frame.value // digits)[:, None], -1)
    order = order.argsort(dim=1, stable=True)
    free = frame.hops[:, None] + dice.below((alphabet - frame.hops)[:, None], frame.last + 1)
    begins = order.gather(1, free)
    tokens = begins * digits + dice.below(digits, frame.last + 1)
    pointing = pairs + begins * alphabet + dice.below(alphabet, frame.last + 1)
    tokens[:, frame.body :] = pointing[:, frame.body :]
    tokens.scatter_(1, frame.path.gather(1, frame.hops[:, None]), frame.value[:, None])
    left = begins[:, -1]
    for step in range(frame.path.shape[1] - 1):
        sought = order.gather(1, (frame.hops - 1 - step).clamp(min=0)[:, None])[:, 0]
        frame.put(tokens, step, pairs + left * alphabet + sought)
        left = sought
    names = letters_of(alphabet)
    vocabulary = (
        *(a + str(d) for a in names for d in range(1, digits + 1)),
        *(a + b for a in names for b in names),
        PAD,
    )
    return frame.made("letter", tokens, vocabulary, alphabet=alphabet, digits=digits)


MULTIHOP: dict[str, Callable[..., MultiHops]] = {"number": number, "letter": letter}


WORDS = {
    "number": (re.compile(r"[a-z]{1,2}|[0-9]{1,9}"), "letters such as a or dp and integers such as 3"),
    "letter": (re.compile(r"[a-z]([0-9]{1,9}|[a-z])"), "pairs such as a1 or ab"),
}
"""What a token of each task looks like, and how that is said."""


def _check_words(task: str, tokens: Sequence[str]) -> None:
    """Refuse what is no sequence of a task."""
    pattern, words = WORDS[task]
    if not tokens:
        raise TaskError(f"the sequence of the {task} task is empty; give {words}, separated by spaces")
    for position, token in enumerate(tokens):
        if not pattern.fullmatch(token):
            raise TaskError(f"'{token}' at position {position} is no token of the {task} task: it has {words}")


def solve_number(tokens: Sequence[str]) -> tuple[int, ...]:
    """The path from the last token to a letter."""
    _check_words("number", tokens)
    path = [len(tokens) - 1]
    while tokens[path[-1]].isdecimal():
        step = int(tokens[path[-1]])
        if not 1 <= step <= path[-1]:
            raise TaskError(f"the integer {step} at position {path[-1]} points before the sequence")
        path.append(path[-1] - step)
    return tuple(path)


def solve_letter(tokens: Sequence[str]) -> tuple[int, ...]:
    """The path from the last token to a (letter, digit) pair; every step must have exactly one match."""
    _check_words("letter", tokens)
    path = [len(tokens) - 1]
    while not tokens[path[-1]][1:].isdecimal():
        here = path[-1]
        matches = [p for p in range(here) if tokens[p][0] == tokens[here][1]]
        if len(matches) != 1:
            raise TaskError(
                f"improper input: '{tokens[here]}' at position {here} has {len(matches)} earlier matches instead of one"
            )
        path.append(matches[0])
    return tuple(path)


SOLVERS = {"number": solve_number, "letter": solve_letter}


def solve(task: str, tokens: Sequence[str]) -> MultiHop:
    """A sequence of one's own, with its path and answer."""
    path = SOLVERS[task](tokens)
    return MultiHop(task, tuple(tokens), tokens[path[-1]], len(path) - 1, path)


def pointed_at(samples: MultiHops) -> Int[Tensor, "rows n"]:
    """Where every token points: t back, or to the one earlier pair that begins with its second letter.

    A token that ends paths points to itself; -1 where an off-path token points nowhere, or to several pairs.
    """
    tokens, places = samples.tokens, torch.arange(samples.length, device=samples.tokens.device)
    if samples.task == "number":
        letters = samples.settings["letters"]
        step = (tokens - letters + 1).clamp(min=0)  # a letter points to itself
        return torch.where(step <= places, places - step, -1)
    alphabet, digits = samples.settings["alphabet"], samples.settings["digits"]
    ends = tokens < alphabet * digits
    begins = torch.where(ends, tokens // digits, (tokens - alphabet * digits) // alphabet)
    sought = (tokens - alphabet * digits) % alphabet
    match = (begins[:, None, :] == sought[:, :, None]) & (places[None, :] < places[:, None])
    pointed = torch.where(match.sum(-1) == 1, match.long().argmax(-1), -1)
    return torch.where(ends, places, pointed)
