"""A statement of a paper, and the evidence for or against it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from rotoscope.errors import RotoscopeError


@dataclass(frozen=True)
class Evidence:
    """What came out of a check."""

    printed: bool
    """Whether the statement as printed survived."""
    checked: str
    """What was checked: inputs, lengths, angles."""
    figure: str
    """The number that decides."""
    corrected: bool | None = None
    """Whether the corrected statement survived, where there is one."""
    counterexample: str | None = None
    """The input on which the printed statement fails."""


@dataclass(frozen=True)
class Statement:
    """A claim, in our own words, with the function that puts it to the test."""

    name: str
    source: str
    """Paper and place."""
    claim: str
    check: Callable[[], Evidence]
    correction: str | None = None
    """What should stand there instead."""
    mended: bool = False
    """Whether the correction only adds a condition to the claim, rather than replacing it."""

    @property
    def says(self) -> Literal["printed", "summary", "ours"]:
        """Who says it: P2 in print, P1 as a summary has it (its full text was not available), or we, after a paper."""
        front = self.source.split()[0]
        return "ours" if front == "ours," else "summary" if front.startswith("P1") else "printed"

    def verdict(self, evidence: Evidence) -> str:
        """From the evidence alone: a mended claim that survives "holds as corrected", a replaced one is false."""
        if evidence.printed:
            return "holds"
        return "holds as corrected" if self.mended and evidence.corrected else "false as printed"


# Inputs for the constructions: one-hot embeddings, random valid sequences, reference functions.


def one_hot(ids: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(ids, width).double()


def decode(output: torch.Tensor) -> torch.Tensor:
    """The token a state stands for: its largest entry."""
    return output.argmax(-1)


def pairs_input(
    entities: torch.Tensor, attributes: torch.Tensor, queries: torch.Tensor, n_entities: int, n_attributes: int
) -> torch.Tensor:
    """Pairs [inputs, keys], each the sum of two one-hot rows, then the question, a row of its own."""
    width = 2 * n_entities + n_attributes
    pairs = one_hot(entities, width) + one_hot(attributes + n_entities, width)
    return torch.cat((pairs, one_hot(queries + n_entities + n_attributes, width)[:, None]), dim=1)


def refuses(make: Callable[[], object]) -> bool:
    """Whether something is refused as impossible."""
    try:
        make()
    except RotoscopeError:
        return True
    return False


def random_number_input(n: int, count: int, letters: int, dice: torch.Generator) -> torch.Tensor:
    """Token ids [count, n]: letters 0..letters-1, then integers 1.. as letters-1+t; none points before the start."""
    ids = torch.randint(0, letters, (count, n), generator=dice)
    reach = torch.arange(n)  # position p can point 1..p back
    steps = 1 + (torch.rand(count, n, generator=dice) * reach).long().clamp(max=n)
    integer = (torch.rand(count, n, generator=dice) < 0.5) & (reach > 0)
    return torch.where(integer, letters - 1 + steps.clamp(max=reach.clamp(min=1)), ids)


def index_function(ids: torch.Tensor, letters: int) -> torch.Tensor:
    """Index: at an integer t, copy the token t back if it is a letter; everything else stays."""
    rows = ids.tolist()
    copies = [list(row) for row in rows]
    for row, copied in zip(rows, copies, strict=True):
        for p, token in enumerate(row):
            step = token - letters + 1
            if step >= 1 and row[p - step] < letters:
                copied[p] = row[p - step]
    return torch.tensor(copies)


def proper_letter_input(n: int, alphabet: int, digits: int, dice: random.Random) -> list[int]:
    """Ids of a proper sequence: every (letter, letter) pair has exactly one earlier match, and not itself."""
    tokens: list[tuple[int, int, bool]] = []  # first letter, second letter or digit, is a pair with a digit
    beginning_with = [0] * alphabet  # how many pairs begin with each letter
    for _ in range(n):
        single = [letter for letter in range(alphabet) if beginning_with[letter] == 1]
        if single and dice.random() < 0.6:
            sought = dice.choice(single)
            others = [letter for letter in range(alphabet) if letter != sought]
            tokens.append((dice.choice(others), sought, False))
        else:
            tokens.append((dice.randrange(alphabet), dice.randrange(digits), True))
        beginning_with[tokens[-1][0]] += 1
    return [
        first * digits + second if digit else alphabet * digits + first * alphabet + second
        for first, second, digit in tokens
    ]


def retrieval_function(ids: list[int], alphabet: int, digits: int) -> list[int]:
    """Retrieval: at a (letter, letter) pair, copy the earlier pair that begins with the second letter."""
    border = alphabet * digits
    begins: dict[int, int] = {}  # the first token that begins with each letter
    copied = []
    for token in ids:
        copied.append(token if token < border else begins[(token - border) % alphabet])
        begins.setdefault(token // digits if token < border else (token - border) // alphabet, token)
    return copied
