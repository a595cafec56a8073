"""Heads and frequencies as they are written: 18:6,20:4 and 1-8,12 or "angle 0.01-0.5"."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rotoscope.errors import RotoscopeError

if TYPE_CHECKING:
    from rotoscope.experiments.profile.result import Profile
    from rotoscope.models.reader import HeadReader

Head = tuple[int, int]
HEAD = re.compile(r"\s*(?:L(\d+)H(\d+)|(\d+)[:.](\d+))\s*", re.IGNORECASE)
MOVED_PROMPT = "input_positional_score"
"""A column of profiles that swapped the prompts themselves, which tells carried heads from symbolic ones."""
TRIES = 20
"""How often another draw is tried where one has been drawn before."""


def head_pairs(heads: Any) -> list[Head]:
    """(layer, head) pairs from "18:6,20:4", "L18H6", "18.6", or a list of such words or of pairs."""
    words = heads.split(",") if isinstance(heads, str) else heads
    try:
        return [_head_pair(word) for word in words]
    except (TypeError, ValueError) as problem:
        name = words[0] if isinstance(words, list) and len(words) == 1 else heads
        raise RotoscopeError(f"'{name}': heads are written layer:head, as in 18:6,20:4") from problem


def _head_pair(word: Any) -> Head:
    if isinstance(word, str):
        match = HEAD.fullmatch(word)
        if match is None:
            raise ValueError(word)
        word = [part for part in match.groups() if part is not None]
    layer, head = word
    return int(layer), int(head)


def parse_heads(heads: str | Sequence[Any], reader: HeadReader, classes: Profile | None) -> tuple[Head, ...]:
    """Heads of a model from "all", a class, "18:6,20:4" or a list; `classes` is a profile of the model."""
    from rotoscope.scores.classes import CLASSES

    if heads == "all":
        return tuple((layer, head) for layer, count in enumerate(reader.head_counts) for head in range(count))
    if isinstance(heads, str) and heads in CLASSES:
        return _heads_of_class(heads, classes)
    pairs = head_pairs(heads)
    for layer, head in pairs:
        if not (0 <= layer < reader.layers and 0 <= head < reader.head_counts[layer]):
            raise RotoscopeError(f"there is no head {layer}:{head} (layers and heads count from 0)")
    return tuple(pairs)


def _heads_of_class(head_class: str, classes: Profile | None) -> tuple[Head, ...]:
    if classes is None:
        raise RotoscopeError(f"choosing heads by class ('{head_class}') needs a profile of this model")
    rows = classes.at()
    if head_class == "carried" and MOVED_PROMPT not in rows:
        raise RotoscopeError(
            "which heads are carried is known where prompts themselves were swapped (k = 0): give a profile made with "
            "--input-swaps 64 (--classes RUN)"
        )
    members = rows[rows["head_class"] == head_class]
    if members.empty:
        present = sorted(set(rows["head_class"].dropna()))
        raise RotoscopeError(
            f"no head of class '{head_class}'; the classes of this model are {', '.join(present)}"
        )
    return tuple(zip(members["layer"].tolist(), members["head"].tolist(), strict=True))


def parse_planes(planes: str | Sequence[int], reader: HeadReader) -> tuple[int, ...]:
    """Frequency ids from "all", "none", "1-8,12", "angle 0.01-0.5", or a list of ids."""
    layout = max(reader.layouts, key=lambda layout: layout.planes)
    count, angles = layout.planes, layout.angles.abs()
    if not isinstance(planes, str):
        ids = {int(plane) for plane in planes}
    elif planes in ("all", "none"):
        ids = set(range(count + 1)) if planes == "all" else set()
    elif planes.startswith("angle"):
        low, high = _angle_range(planes)
        ids = {k + 1 for k, angle in enumerate(angles.tolist()) if low <= angle <= high}
    else:
        ids = _plane_ranges(planes, count)
    if any(not 0 <= k <= count for k in ids):
        raise RotoscopeError(
            f"frequency ids go from 1 (fastest) to {count}, 0 is what does not rotate; found {planes}"
        )
    if not ids and isinstance(planes, str) and planes != "none":
        raise RotoscopeError(
            f"'{planes}' holds no frequency of this model, whose angles go from {angles.min():.2g} to {angles.max():.2g}"
        )
    return tuple(sorted(ids))


def _angle_range(planes: str) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in planes.removeprefix("angle").strip().split("-"))
    except ValueError as problem:
        raise RotoscopeError(f"'{planes}': an angle range is written 'angle 0.01-0.5'") from problem
    return low, high


def _plane_ranges(planes: str, count: int) -> set[int]:
    """The ids of "1-8,12". Of a range that ends beyond the last plane its end is among them, to be refused."""
    ids: set[int] = set()
    for part in planes.split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(end.strip().isdecimal() for end in ends):
            raise RotoscopeError(f"'{planes}': frequency ids are written 1-8,12")
        first, last = int(ends[0]), int(ends[-1])
        if first > last:
            raise RotoscopeError(
                f"'{part.strip()}' holds no frequency: write the smaller id first, {last}-{first}"
            )
        ids |= {*range(first, min(last, count) + 1), last}
    return ids


def control_sets(
    heads: Sequence[Head],
    head_counts: Sequence[int],
    count: int,
    dice: random.Random,
    avoided: Collection[Head] = (),
) -> Iterator[frozenset[Head]]:
    """Different sets of equally many heads of the same layers, none of them the set itself.

    Heads that are not `avoided` are taken first; only where a layer has too few, avoided ones fill up. Where layers are taken
    whole there is no other set, and where heads are few there are fewer sets than `count`.
    """
    earlier = {frozenset(heads)}
    for _ in range(TRIES * count):
        drawn: set[Head] = set()
        for layer in sorted({layer for layer, _ in heads}):
            number = sum(at == layer for at, _ in heads)
            everyone = [(layer, head) for head in range(head_counts[layer])]
            others = [head for head in everyone if head not in avoided]
            rest = [head for head in everyone if head in avoided]
            dice.shuffle(others)
            dice.shuffle(rest)
            drawn |= set((others + rest)[:number])
        if frozenset(drawn) not in earlier:
            earlier.add(frozenset(drawn))
            yield frozenset(drawn)
        if len(earlier) > count:
            return
