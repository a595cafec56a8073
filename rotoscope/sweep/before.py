"""What is known before the first item starts: which are to be run, and whether each fits somewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rotoscope.errors import RunError, TooLargeError
from rotoscope.results.items import FAILED, FINISHED, Outcome, outcome_of
from rotoscope.sweep.commands import OUT
from rotoscope.sweep.estimates import Expected
from rotoscope.sweep.inputs import input_hashes
from rotoscope.sweep.items import Item


def waiting(items: Sequence[Item], place: Callable[[str], Path], *, retry: bool) -> list[Item]:
    """The items that are to be run: what is finished never is, what failed only when asked for."""
    outcomes = {item.name: outcome_of(place(item.name)) for item in items}
    changed = _changed([item for item in items if outcomes[item.name].state == FINISHED], outcomes)
    done = (FINISHED,) if retry else (FINISHED, FAILED)
    return [item for item in items if item.name in changed or outcomes[item.name].state not in done]


def _changed(items: Sequence[Item], outcomes: Mapping[str, Outcome]) -> set[str]:
    """Finished items whose model, text or other input is no longer what they were made of: refused, unless they are to be
    overwritten."""
    changed: dict[str, str] = {}
    hashed: dict[str, str] = {}
    for item in items:
        now, before = input_hashes(item.line(Path(OUT)), hashed), outcomes[item.name].inputs
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if names:
            changed[item.name] = " and ".join(names)
    refused = [item for item in items if item.name in changed and not item.given.get("overwrite")]
    if refused:
        first, more = refused[0], f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise RunError(
            f"the item {first.name}{more} was made of something else than is there now: {changed[first.name]} has changed. To have it "
            "made again, put overwrite = true into [settings]; to keep it, choose another --out"
        )
    return set(changed)


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
