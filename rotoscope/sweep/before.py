"""What is known before the first item starts: which are to be run, and whether each fits somewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rotoscope.errors import TooLargeError
from rotoscope.results.items import FAILED, FINISHED, outcome_of
from rotoscope.sweep.estimates import Expected
from rotoscope.sweep.items import Item


def waiting(items: Sequence[Item], folder: Path, *, retry: bool) -> list[Item]:
    """The items that are to be run: what is finished never is, what failed only when asked for."""
    states = {item.name: outcome_of(folder / item.name).state for item in items}
    done = (FINISHED,) if retry else (FINISHED, FAILED)
    return [item for item in items if states[item.name] not in done]


def memory_here(items: Sequence[Item]) -> float | None:
    """Gigabytes that are free on the device with the most; None where nobody knows."""
    import torch

    from rotoscope.reading.devices import free_memory

    on_cpu = all(item.given.get("device") == "cpu" for item in items)
    cards = 0 if on_cpu or not torch.cuda.is_available() else torch.cuda.device_count()
    devices = [torch.device("cuda", k) for k in range(cards)] or [torch.device("cpu")]
    known = [free for device in devices if (free := free_memory(device)) is not None]
    return max(known) / 1e9 if known else None


def refuse_too_large(
    items: Sequence[Item], takes: Mapping[str, Expected], gigabytes: float | None, where: str
) -> None:
    """Refuse an item that no device holds, before anything starts, unless it was asked for all the same."""
    for item in items:
        needed = takes[item.name].gigabytes
        if gigabytes is None or needed is None or needed <= gigabytes or item.given.get("force"):
            continue
        raise TooLargeError(
            f"the item {item.name} would take about {needed:,.1f} GB of memory, and no device of {where} has more than "
            f"{gigabytes:,.1f} GB free: leave it out, make it smaller, or say that you mean it (force = true in [settings])"
        )
