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
from rotoscope.shapes import Tensor

__all__ = ["CANONICAL", "CanonicalSamples", "canonical", "index", "induction", "retrieval", "solve_canonical"]

CANONICAL = ("index", "retrieval", "induction")


@dataclass(frozen=True)
class CanonicalSamples:
    """Samples of one task. For Index, `entities` are the symbols themselves and stand for the attributes too."""

    task: str
    entities: Tensor
    """[samples, keys]: symbol (Index) or entity of every key."""
    attributes: Tensor
    """[samples, keys]: what is read out at every key."""
    asked: Tensor
    """[samples]: the named position 0..N-1 (Index) or the asked entity."""
    position: Tensor
    """[samples]: where the answer stands, 0..N-1."""
    answer: Tensor
    """[samples]"""

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
    device: torch.device | str = "cpu",
) -> CanonicalSamples:
    """`count` samples. `repeats` is how often the asked entity stands before its last occurrence (induction)."""
    check_sizes(task, keys, symbols, entities, repeats)
    dice = torch.Generator().manual_seed(seed)

    def rows(high: int) -> Tensor:
        return torch.randint(0, high, (count, keys), generator=dice)

    def order(size: int) -> Tensor:
        return torch.rand(count, size, generator=dice).argsort(1)

    attributes = rows(symbols)
    if task == "index":
        position = torch.randint(0, keys, (count,), generator=dice)
        names, asked = attributes, position
    elif task == "retrieval":
        position = torch.randint(0, keys, (count,), generator=dice)
        names = order(entities)[:, :keys]
        asked = names.gather(1, position[:, None])[:, 0]
    else:
        position = torch.randint(repeats, keys, (count,), generator=dice)
        shuffled = order(entities)
        asked = shuffled[:, 0]
        # The other entities, as many as needed; they may repeat if there are fewer of them than keys.
        others = shuffled[:, 1:]
        names = others[:, torch.arange(keys) % (entities - 1)]
        earlier = torch.rand(count, keys, generator=dice).masked_fill(
            torch.arange(keys) >= position[:, None], 2.0
        )
        names = names.scatter(1, earlier.argsort(1)[:, :repeats], asked[:, None].expand(-1, repeats))
        names = names.scatter(1, position[:, None], asked[:, None])
    answer = attributes.gather(1, position[:, None])[:, 0]
    made = (names, attributes, asked, position, answer)
    return CanonicalSamples(task, *(tensor.to(device) for tensor in made))


def check_sizes(task: str, keys: int, symbols: int, entities: int, repeats: int) -> None:
    """Refuse what cannot be drawn."""
    if task not in CANONICAL:
        raise TaskError(f"unknown canonical task '{task}'; choose one of {', '.join(CANONICAL)}")
    if keys < 2 or symbols < 2:
        raise TaskError(f"at least 2 keys and 2 symbols are needed, found {keys} and {symbols}")
    if task == "retrieval" and entities < keys:
        raise TaskError(f"{keys} pairs with distinct entities need as many entities, found {entities}")
    if task == "induction" and (entities < 2 or not 1 <= repeats < keys):
        raise TaskError(
            f"induction needs 2 entities and 1 to {keys - 1} repetitions, found {entities} and {repeats}"
        )


def solve_canonical(samples: CanonicalSamples) -> Tensor:
    """The answers, found by looking: what the generator is checked against."""
    found = []
    for k in range(len(samples)):
        if samples.task == "index":
            where = int(samples.asked[k])
        else:
            places = (samples.entities[k] == samples.asked[k]).nonzero()[:, 0]
            where = int(places[-1])
        found.append(samples.attributes[k, where])
    return torch.stack(found)


def index(count: int, seed: int = 0, **sizes: Any) -> CanonicalSamples:
    """Index: symbols, then a query naming a position."""
    return canonical("index", count, seed, **sizes)


def retrieval(count: int, seed: int = 0, **sizes: Any) -> CanonicalSamples:
    """Retrieval: pairs with distinct entities, then an entity."""
    return canonical("retrieval", count, seed, **sizes)


def induction(count: int, seed: int = 0, **sizes: Any) -> CanonicalSamples:
    """Partial induction: the asked entity occurs several times, the last occurrence counts."""
    return canonical("induction", count, seed, **sizes)
