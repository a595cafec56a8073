"""P1's canonical tasks: Index, Retrieval and partial induction, for heads of one or two angles.

N keys stand at positions 1..N, the question at N + 1, the answer at position j. **Index**: symbols, then a query naming a
position; the answer is the symbol there. **Retrieval**: (entity, attribute) pairs with distinct entities, then an entity;
the answer is its attribute. **Partial induction**: the asked entity occurs several times; the answer is the attribute of its
last occurrence.

Every sample is drawn from a seed and a number of its own, so data do not depend on how they are batched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rotoscope.errors import TaskError
from rotoscope.shapes import Int, Tensor
from rotoscope.tasks.prompt import Dice

CANONICAL = ("index", "retrieval", "induction")


@dataclass(frozen=True)
class CanonicalSamples:
    """Samples of one task. For Index, `entities` are the symbols themselves and stand for the attributes too."""

    task: str
    entities: Int[Tensor, "samples keys"]
    """Symbol (Index) or entity of every key."""
    attributes: Int[Tensor, "samples keys"]
    """What is read out at every key."""
    asked: Int[Tensor, "samples"]
    """The named position 0..N-1 (Index) or the asked entity."""
    position: Int[Tensor, "samples"]
    """Where the answer stands, 0..N-1."""
    answer: Int[Tensor, "samples"]

    def __len__(self) -> int:
        return len(self.answer)


def canonical(
    task: str,
    count: int,
    seed: int = 0,
    *,
    keys: int = 32,
    symbols: int = 32,
    entities: int = 32,
    repeats: int = 3,
    first: int = 0,
    device: torch.device | str = "cpu",
) -> CanonicalSamples:
    """`count` samples, from number `first` on. `repeats` is how often the asked entity stands before its last
    occurrence (induction)."""
    check_sizes(task, keys, symbols, entities, repeats)
    dice = Dice(seed, torch.arange(first, first + count, device=device))
    places = torch.arange(keys, device=device)
    attributes = dice.below(symbols, keys)
    if task == "induction":
        position = repeats + dice.below(keys - repeats, 1)
        shuffled = dice.bits(entities).argsort(1)
        question = shuffled[:, :1]
        # The other entities, as many as needed; they may repeat if there are fewer of them than keys.
        names = shuffled[:, 1 + places % (entities - 1)]
        earlier = dice.bits(keys).masked_fill(places >= position, torch.iinfo(torch.int64).max)
        names = names.scatter(1, earlier.argsort(1)[:, :repeats], question.expand(-1, repeats))
        names = names.scatter(1, position, question)
    else:
        position = dice.below(keys, 1)
        names = attributes if task == "index" else dice.bits(entities).argsort(1)[:, :keys]
        question = position if task == "index" else names.gather(1, position)
    answer = attributes.gather(1, position)
    return CanonicalSamples(task, names, attributes, question[:, 0], position[:, 0], answer[:, 0])


def check_sizes(task: str, keys: int, symbols: int, entities: int, repeats: int) -> None:
    """Refuse what cannot be drawn."""
    if task not in CANONICAL:
        raise TaskError(f"unknown canonical task '{task}'; choose one of {', '.join(CANONICAL)}")
    if keys < 2 or symbols < 2:
        raise TaskError(f"at least 2 keys and 2 symbols are needed, found {keys} and {symbols}")
    if task == "retrieval" and entities < keys:
        raise TaskError(
            f"{keys} pairs with distinct entities need as many entities, found {entities}; in Python, entities can be set"
        )
    if task == "induction" and (entities < 2 or not 1 <= repeats < keys):
        raise TaskError(
            f"induction needs 2 entities and 1 to {keys - 1} repetitions, found {entities} and {repeats}"
        )


def index(count: int, seed: int = 0, **sizes: Any) -> CanonicalSamples:
    """Index: symbols, then a query naming a position."""
    return canonical("index", count, seed, **sizes)


def retrieval(count: int, seed: int = 0, **sizes: Any) -> CanonicalSamples:
    """Retrieval: pairs with distinct entities, then an entity."""
    return canonical("retrieval", count, seed, **sizes)


def induction(count: int, seed: int = 0, **sizes: Any) -> CanonicalSamples:
    """Partial induction: the asked entity occurs several times, the last occurrence counts."""
    return canonical("induction", count, seed, **sizes)
