"""The multi-hop tasks of P2: follow pointers from the last token until there is nothing left to follow.

**Number task.** A target window of letters, then integers; an integer t at position p points to p - t. **Letter task.** A
target window of (letter, digit) pairs, then (letter, letter) pairs; the second letter says which earlier pair comes next,
the one that begins with it. Both have exactly one path per sequence.

Here sequences are made one by one, which is enough for checking theory; positions are 0-based.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from rotoscope.errors import TaskError

__all__ = ["MultiHop", "letter_sequence", "number_sequence", "solve_letter", "solve_number"]


@dataclass(frozen=True)
class MultiHop:
    """One sequence, its answer and the positions on the path from the last token to it."""

    task: str
    tokens: tuple[str, ...]
    answer: str
    hops: int
    path: tuple[int, ...]


def letters_of(count: int) -> list[str]:
    """a..z, then aa, ab, ... as many as asked for."""
    names = [chr(ord("a") + k) for k in range(26)]
    return (names + [first + second for first in names for second in names])[:count]


def number_sequence(
    hops: int, dice: random.Random, *, target: int = 8, window: int = 8, letters: int = 120
) -> MultiHop:
    """A number sequence whose last token reaches a letter in exactly `hops` steps."""
    _check(hops, target, window)
    last = target + window
    between = sorted(dice.sample(range(target, last), hops - 1), reverse=True)
    path = (last, *between, dice.randrange(target))
    names = letters_of(letters)
    tokens = [dice.choice(names) for _ in range(target)]
    tokens += [str(dice.randint(1, p)) for p in range(target, last + 1)]
    for here, there in itertools.pairwise(path):
        tokens[here] = str(here - there)
    return MultiHop("number", tuple(tokens), tokens[path[-1]], hops, path)


def letter_sequence(
    hops: int, dice: random.Random, *, target: int = 8, window: int = 8, alphabet: int = 8, digits: int = 8
) -> MultiHop:
    """A letter sequence whose last token reaches a (letter, digit) pair in exactly `hops` steps.

    A letter that is looked for on the path begins no other pair, so there is no second match.
    """
    _check(hops, target, window)
    if alphabet < hops + 2:
        raise TaskError(
            f"{hops} hops need {hops} letters that begin one pair only and at least 2 others, found {alphabet} letters"
        )
    names = letters_of(alphabet)
    last = target + window
    between = sorted(dice.sample(range(target, last), hops - 1), reverse=True)
    path = (last, *between, dice.randrange(target))
    sought = dice.sample(names, hops)  # sought[k] is looked for by the k-th token of the path
    free = [name for name in names if name not in sought]

    def pair(first: str) -> str:
        return first + dice.choice([name for name in names if name != first])

    tokens = [dice.choice(free) + str(dice.randint(1, digits)) for _ in range(target)]
    tokens += [pair(dice.choice(free)) for _ in range(target, last + 1)]
    begins = [dice.choice(free), *sought]
    for k, here in enumerate(path[:-1]):
        tokens[here] = begins[k] + sought[k]
    tokens[path[-1]] = sought[-1] + str(dice.randint(1, digits))
    return MultiHop("letter", tuple(tokens), tokens[path[-1]], hops, path)


def solve_number(tokens: tuple[str, ...]) -> tuple[int, ...]:
    """The path from the last token to a letter."""
    path = [len(tokens) - 1]
    while tokens[path[-1]].isdigit():
        step = int(tokens[path[-1]])
        if not 1 <= step <= path[-1]:
            raise TaskError(f"the integer {step} at position {path[-1]} points before the sequence")
        path.append(path[-1] - step)
    return tuple(path)


def solve_letter(tokens: tuple[str, ...]) -> tuple[int, ...]:
    """The path from the last token to a (letter, digit) pair; every step must have exactly one match."""
    path = [len(tokens) - 1]
    while not tokens[path[-1]][1:].isdigit():
        here = path[-1]
        matches = [p for p in range(here) if tokens[p][0] == tokens[here][1]]
        if len(matches) != 1:
            raise TaskError(
                f"improper input: '{tokens[here]}' at position {here} has {len(matches)} earlier matches instead of one"
            )
        path.append(matches[0])
    return tuple(path)


def _check(hops: int, target: int, window: int) -> None:
    if hops < 1 or target < 1 or window < hops - 1:
        raise TaskError(
            f"{hops} hops need a window of at least {hops - 1} tokens and a target, found {window} and {target}"
        )
