"""Sequences in which a path of pointers is followed, and the frame in which every such task makes them.

Hop counts come in equal shares, and inside each of them every answer value and every answer position equally often, once
round the cycle of both. `balanced` takes rows from all over a cycle, so that a few of them are balanced as well.
Positions are 0-based. Row k is a function of the seed and of k alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, overload

import torch

from rotoscope.errors import TaskError
from rotoscope.lazy import writer
from rotoscope.shapes import Int, Tensor
from rotoscope.tasks.prompt import Dice, Prompt, Prompts

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

    def save(
        self, folder: str | Path, *, validation: int = 0, test: int = 0, overwrite: bool = False
    ) -> list[Path]:
        """Write the sequences as a dataset with a card: Parquet files that `datasets.load_dataset` reads.

        The last `test` sequences make the test split, `validation` before them the validation split, and the others
        train. `overwrite` replaces a dataset that is there, never anything else. Returns the files.
        """
        files: list[Path] = writer("dataset")(
            self, folder, validation=validation, test=test, overwrite=overwrite
        )
        return files

    @property
    def _chance(self) -> float | None:
        """Of one of the tokens in a sequence that point no further, picked at random; in the either task its digit is said."""
        if self.task == "either":
            digits = self.settings["digits"]
            distance = self.answer - self.answer.new_tensor(self.vocabulary.index("1"))
            return (
                float((self.tokens[:, :-1] % digits == distance[:, None]).double().mean())
                if len(self)
                else None
            )
        ends = {k for k, word in enumerate(self.vocabulary) if word[-1].isdigit() == (self.task == "letter")}
        counts = [len(ends.intersection(row)) for row in self.tokens.tolist()]
        return fmean(1 / n for n in counts) if counts else None


def letters_of(count: int) -> list[str]:
    """a..z, then aa, ab, ... as many as asked for."""
    names = [chr(ord("a") + k) for k in range(26)]
    return (names + [first + second for first in names for second in names])[:count]


@dataclass(frozen=True)
class Frame:
    """What the tasks share: which rows, how many hops each, where the answer stands, which value it has."""

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

    def write(self, tokens: Tensor, step: int, values: Tensor) -> None:
        """Write tokens [rows] at the path's position `step`, in the rows whose path points on from there."""
        places = torch.where(self.hops > step, self.path[:, step], self.last)
        kept = tokens.gather(1, places[:, None])[:, 0]
        tokens.scatter_(1, places[:, None], torch.where(self.hops > step, values, kept)[:, None])

    def samples(self, task: str, tokens: Tensor, vocabulary: tuple[str, ...], **own: int) -> MultiHops:
        """The finished sequences; `own` are the sizes that only this task has."""
        settings = self.sizes | own | self.drawn
        return MultiHops(task, tokens, self.value, self.hops, self.path, vocabulary, settings)


def frame_of(
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
) -> Frame:
    """The frame of `count` rows in which each of so many `values` is the answer equally often."""
    kinds = kinds_of(hops)
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
    positions = front + (among + among // math.lcm(values, target)) % target
    body, last = front + target, front + target + window
    rank = dice.bits(window).argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    places = torch.arange(body, last, device=device).expand(count, -1)
    between = torch.where(rank < hop_counts[:, None] - 1, places, -1).sort(1, descending=True).values
    path = torch.full((count, max(kinds) + 1), -1, device=device)
    path[:, 0] = last
    path[:, 1:-1] = between[:, : max(kinds) - 1]
    path.scatter_(1, hop_counts[:, None], positions[:, None])
    sizes = {"hops": list(kinds), "target": target, "window": window}
    drawn = {"front": front, "seed": seed, "first": first, "count": count} | (
        {"balanced": True} if balanced else {}
    )
    return Frame(rows, hop_counts, value, path, dice, body, last, sizes, drawn)


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
        full = len(own) // values * values
        own[:full] = begin + torch.arange(full)
        left = len(own) - full
        if left:
            edges = torch.arange(left + 1) * values // left
            width = edges.diff()
            value = edges[:-1] + (torch.rand(left, generator=dice) * width).long().clamp(max=width - 1)
            turns = [torch.randperm(target, generator=dice) for _ in range(0, left, target)]
            order = torch.cat(turns)[:left]
            next_cycle = begin + -(-full // cycle) * cycle
            own[full:] = next_cycle + value + turn * ((order - value) % target)
    return among * kinds + torch.arange(count) % kinds


def kinds_of(hops: int | Sequence[int]) -> tuple[int, ...]:
    """4 means one to four hops; a list means exactly those."""
    kinds = tuple(range(1, hops + 1)) if isinstance(hops, int) else tuple(int(h) for h in hops)
    if not kinds or min(kinds) < 1 or len(set(kinds)) < len(kinds):
        raise TaskError(f"hops must be a positive number or different positive numbers, found {hops}")
    return kinds


# A task that can be solved either way, by place or by symbol, as long as the letters stand in their order.
#
# (letter, digit) pairs, then one letter, whose digit is the answer. Every place of the target window has letters of its own, and
# in the order of training they stand nowhere else. So the asked letter says where its pair stands: a head can look at that
# place, or for that letter. `shuffled` puts the letters of a place elsewhere, in every row anew: only the symbol is left.


def either(
    count: int = 1000,
    *,
    hops: int | Sequence[int] = 1,
    target: int = 8,
    window: int = 0,
    alphabet: int = 16,
    digits: int = 4,
    shuffled: bool = False,
    front: int = 0,
    seed: int = 0,
    first: int = 0,
    balanced: bool = False,
    device: str | torch.device = "cpu",
) -> MultiHops:
    """Sequences of `target` pairs and the asked letter, with `alphabet` letters for each place.

    There is one hop and no pointing window. `front` puts more pairs before the sequence, of any letters but the asked one. The
    other arguments are those of `number`.
    """
    letters = target * alphabet
    if hops not in (1, [1], (1,)) or window:
        raise TaskError(f"the either task has 1 hop and a window of 0, found {hops} and {window}")
    if alphabet < 1 or digits < 1 or not 2 <= letters <= 26 * 27:
        raise TaskError(
            f"a target of {target} with {alphabet} letters a place makes {letters} letters, and there must be 2 to {26 * 27} "
            f"with at least 1 digit each, found {digits}"
        )
    frame = frame_of(count, 1, target, 0, alphabet * digits, front, seed, first, balanced, device)
    dice, positions = frame.dice, frame.path[:, 1:] - front
    places = torch.arange(target, device=device).expand(count, -1)
    groups = dice.bits(target).argsort(dim=1, stable=True) if shuffled else places
    begins = groups * alphabet + dice.below(alphabet, target)
    names_asked = groups.gather(1, positions) * alphabet + frame.value[:, None] // digits
    digit = frame.value % digits
    others = dice.below(letters - 1, front)
    before = (others + (others >= names_asked)) * digits + dice.below(digits, front)
    pairs = (begins * digits + dice.below(digits, target)).scatter(
        1, positions, names_asked * digits + digit[:, None]
    )
    tokens = torch.cat((before, pairs, letters * digits + names_asked), dim=1)
    names, digit_names = letters_of(letters), [str(k) for k in range(1, digits + 1)]
    vocabulary = (*(name + suffix for name in names for suffix in digit_names), *names, *digit_names, PAD)
    answered = replace(frame, value=letters * (digits + 1) + digit)
    return answered.samples("either", tokens, vocabulary, alphabet=alphabet, digits=digits, shuffled=shuffled)
