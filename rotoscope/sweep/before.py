"""What is known before the first item starts: which are to be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rotoscope.errors import RunError
from rotoscope.results.items import FAILED, FINISHED, Outcome, outcome_of
from rotoscope.sweep.commands import OUT
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
