"""What is known before the first item starts: which are to be run, and whether each fits somewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rotoscope.errors import TooLargeError
from rotoscope.results.items import FAILED, FINISHED, outcome_of
from rotoscope.sweep.estimates import Expected
from rotoscope.sweep.items import Item


def waiting(items: Sequence[Item], place: Callable[[str], Path], *, retry: bool) -> list[Item]:
    """The items that are to be run: what is finished never is, what failed only when asked for."""
    states = {item.name: outcome_of(place(item.name)).state for item in items}
    done = (FINISHED,) if retry else (FINISHED, FAILED)
    return [item for item in items if states[item.name] not in done]


@dataclass(frozen=True)
class Memory:
    """Gigabytes that are free; None where nobody knows."""

    cpu: float | None
    card: float | None = None
    """On the GPU with the most; None where there is none, too."""

    def of(self, item: Item) -> float | None:
        """For an item; what is spread over devices, the CPU and disk finds room somewhere."""
        if item.given.get("device_map"):
            return None
        return self.cpu if item.on_cpu or self.card is None else self.card


def memory_here() -> Memory:
    """On this machine."""
    import torch

    from rotoscope.reading.devices import free_memory

    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = [free for k in range(cards) if (free := free_memory(torch.device("cuda", k))) is not None]
    free = free_memory(torch.device("cpu"))
    return Memory(None if free is None else free / 1e9, max(known) / 1e9 if known else None)


def refuse_too_large(items: Sequence[Item], takes: Mapping[str, Expected], memory: Memory, where: str) -> None:
    """Refuse an item that no device holds, before anything starts, unless it was asked for all the same."""
    for item in items:
        needed, gigabytes = takes[item.name].gigabytes, memory.of(item)
        if gigabytes is None or needed is None or needed <= gigabytes or item.given.get("force"):
            continue
        raise TooLargeError(
            f"the item {item.name} would take about {needed:,.1f} GB of memory, and no device of {where} has more than "
            f"{gigabytes:,.1f} GB free: leave it out, make it smaller, or say that you mean it (force = true in [settings])"
        )
