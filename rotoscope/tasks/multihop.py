"""The multi-hop tasks of P2: follow pointers from the last token until there is nothing left to follow.

**Number task.** A target window of letters, then integers; an integer t at position p points to p - t. The answer is the
letter at the end of the path. **Letter task.** A target window of (letter, digit) pairs, then (letter, letter) pairs; the
second letter says which earlier pair comes next, the one that begins with it. The answer is the (letter, digit) pair at
the end. Both have exactly one path per sequence, and ask at the last token.

How hops, answers and their places are spread over the rows is said in `multihop_frames`. A third task of the same form,
which either kind of head can solve, has a file of its own (`either_way`).
"""

from __future__ import annotations

import functools
import numbers
import re
from collections.abc import Callable, Sequence
from typing import ParamSpec

import torch

from rotoscope.errors import TaskError
from rotoscope.shapes import Int, Tensor
from rotoscope.tasks.multihop_frames import PAD as PAD
from rotoscope.tasks.multihop_frames import MultiHop as MultiHop
from rotoscope.tasks.multihop_frames import MultiHops as MultiHops
from rotoscope.tasks.multihop_frames import either, frame_of, kinds_of, letters_of

P = ParamSpec("P")


def without_subject(task: Callable[P, MultiHops]) -> Callable[P, MultiHops]:
    """The same task, which says what to write where it is called with a subject, as the tasks of language models are."""

    @functools.wraps(task)
    def make(*args: P.args, **kwargs: P.kwargs) -> MultiHops:
        if args and not isinstance(args[0], numbers.Integral):
            name = task.__name__
            raise TaskError(
                f"rs.tasks.{name} needs no model, only a count: rs.tasks.{name}(count=16); for a language model there is "
                f'rs.tasks.questions(subject, task="{name}")'
            )
        return task(*args, **kwargs)

    return make


@without_subject
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
    frame = frame_of(count, hops, target, window, letters, front, seed, first, balanced, device)
    dice, reach = frame.dice, target + window
    tokens = torch.empty(count, frame.last + 1, dtype=torch.long, device=device)
    tokens[:, : frame.body] = dice.below(letters, frame.body)
    tokens.scatter_(1, frame.path.gather(1, frame.hops[:, None]), frame.value[:, None])
    farthest = torch.arange(frame.body, frame.last + 1, device=device).clamp(max=reach)
    tokens[:, frame.body :] = letters + dice.below(farthest, window + 1)
    for step in range(frame.path.shape[1] - 1):
        frame.write(tokens, step, letters - 1 + frame.path[:, step] - frame.path[:, step + 1])
    vocabulary = (*letters_of(letters), *(str(t) for t in range(1, reach + 1)), PAD)
    return frame.samples("number", tokens, vocabulary, letters=letters)


@without_subject
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
    most = max(kinds_of(hops))
    if not most + 1 <= alphabet <= 26:
        raise TaskError(
            f"{most} hops need {most} letters that begin one pair only and at least one other (at most 26 in all), "
            f"found {alphabet} letters"
        )
    if digits < 1:
        raise TaskError(f"digits must be at least 1, found {digits}")
    frame = frame_of(count, hops, target, window, alphabet * digits, front, seed, first, balanced, device)
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
        frame.write(tokens, step, pairs + left * alphabet + sought)
        left = sought
    names = letters_of(alphabet)
    vocabulary = (
        *(a + str(d) for a in names for d in range(1, digits + 1)),
        *(a + b for a in names for b in names),
        PAD,
    )
    return frame.samples("letter", tokens, vocabulary, alphabet=alphabet, digits=digits)


MULTIHOP: dict[str, Callable[..., MultiHops]] = {"number": number, "letter": letter, "either": either}


WORDS = {
    "number": (re.compile(r"[a-z]{1,2}|[0-9]{1,9}"), "letters such as a or dp and integers such as 3"),
    "letter": (re.compile(r"[a-z]([0-9]{1,9}|[a-z])"), "pairs such as a1 or ab"),
    "either": (re.compile(r"[a-z]{1,2}([0-9]{1,9})?"), "pairs such as a1 or dp3 and letters such as dp"),
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
        last = path[-1]
        matches = [p for p in range(last) if tokens[p][0] == tokens[last][1]]
        if len(matches) != 1:
            raise TaskError(
                f"improper input: '{tokens[last]}' at position {last} has {len(matches)} earlier matches instead of one"
            )
        path.append(matches[0])
    return tuple(path)


def solve_either(tokens: Sequence[str]) -> tuple[int, ...]:
    """The path from the last token, a letter, to the one pair that begins with it."""
    _check_words("either", tokens)
    query = tokens[-1]
    matches = [p for p, token in enumerate(tokens[:-1]) if token.rstrip("0123456789") == query]
    if len(matches) != 1:
        raise TaskError(
            f"improper input: '{query}' at the end has {len(matches)} earlier matches instead of one"
        )
    return len(tokens) - 1, matches[0]


SOLVERS = {"number": solve_number, "letter": solve_letter, "either": solve_either}


def solve(task: str, tokens: Sequence[str]) -> MultiHop:
    """A sequence of one's own, with its path and answer."""
    path = SOLVERS[task](tokens)
    target = tokens[path[-1]]
    answer = target.lstrip("abcdefghijklmnopqrstuvwxyz") if task == "either" else target
    return MultiHop(task, tuple(tokens), answer, len(path) - 1, path)


def pointed_at(samples: MultiHops) -> Int[Tensor, "rows n"]:
    """Where every token points: t back, or to the one earlier pair that begins with its second (or only) letter.

    A token that ends paths points to itself; -1 where an off-path token points nowhere, or to several pairs.
    """
    tokens, places = samples.tokens, torch.arange(samples.length, device=samples.tokens.device)
    if samples.task == "number":
        letters = samples.settings["letters"]
        step = (tokens - letters + 1).clamp(min=0)  # a letter points to itself
        return torch.where(step <= places, places - step, -1)
    alphabet, digits = samples.settings["alphabet"], samples.settings["digits"]
    if samples.task == "either":
        alphabet *= samples.settings["target"]  # so many for each place
    ends = tokens < alphabet * digits
    begins = torch.where(ends, tokens // digits, (tokens - alphabet * digits) // alphabet)
    sought = (tokens - alphabet * digits) % alphabet
    match = (begins[:, None, :] == sought[:, :, None]) & (places[None, :] < places[:, None])
    pointed = torch.where(match.sum(-1) == 1, match.long().argmax(-1), -1)
    return torch.where(ends, places, pointed)
