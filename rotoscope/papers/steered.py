"""Ours: what comes of trainings that favour a kind of heads."""

from __future__ import annotations

from functools import partial

from rotoscope.papers.claim import beside_untrained, claims
from rotoscope.papers.verdicts import Found
from rotoscope.papers.workshop import Steered, Workshop


def helps(which: Steered, favour: str, workshop: Workshop) -> Found:
    """Whether favouring a kind is better than favouring none on all inputs beyond training, or on some."""
    rows = workshop.steered(which).comparisons()
    shortest = rows.groupby("task")["length"].transform("min")
    beyond = (rows["length"] > shortest) | (rows["order"] == "shuffled")
    rows = rows[beyond & (rows["favour"] == favour) & (rows["against"] == "none")]
    better, worse = rows["found"] == "better", int((rows["found"] == "worse").sum())
    value = (
        f"better on {int(better.sum())}, worse on {worse} of {len(rows)} kinds of inputs (favouring {favour} "
        f"{rows['accuracy'].mean():.2f} right on average, none {rows['against_accuracy'].mean():.2f})"
    )
    return Found(value, bool(len(rows) and better.all()), bool(better.any()) and not worse)


CLAIMS = claims(
    {
        "ours-steered-either": beside_untrained(partial(helps, "either", "symbolic")),
        "ours-steered-symbolic": beside_untrained(partial(helps, "multihop", "symbolic")),
        "ours-steered-positional": beside_untrained(partial(helps, "multihop", "positional")),
    },
    learned=True,
)
