"""Ours: which frequencies the multi-hop tasks need, from models trained without the others."""

from __future__ import annotations

from functools import partial

from rotoscope.papers.claim import Look, beside_untrained, claims
from rotoscope.papers.verdicts import Found
from rotoscope.papers.workshop import RESTRICTED, Size, Workshop
from rotoscope.results.restrictions import FAILS


def not_learned(task: str, which: int, size: Size, workshop: Workshop) -> Found:
    """Whether a task fails with some frequencies alone, at every number of hops or at some."""
    restriction, rows = RESTRICTED[size][which], workshop.restricted(size).by_hops()
    rows = rows[(rows["task"] == task) & (rows["restriction"] == restriction)]
    fails = rows["outcome"] == FAILS

    def listed(column: str) -> str:
        return ", ".join(f"{value:.2f}" for value in rows[column])

    value = (
        f"ids {restriction} alone: {listed('accuracy')} right, in the best seed {listed('max')}; unrestricted "
        f"{listed('unrestricted')} (by hops)"
    )
    return Found(value, bool(fails.all()), bool(fails.any()))


LOOKS: dict[str, Look] = {
    "ours-number-fast-mini": partial(not_learned, "number", 0, "mini"),
    "ours-letter-slow-mini": partial(not_learned, "letter", 1, "mini"),
    "ours-number-fast": partial(not_learned, "number", 0, "paper"),
    "ours-letter-slow": partial(not_learned, "letter", 1, "paper"),
}
CLAIMS = claims({name: beside_untrained(look) for name, look in LOOKS.items()}, learned=True)
