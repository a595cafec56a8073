"""Two runs beside each other: the content of their pages, and what the comparison of their heads says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rotoscope.maths.purity import CLASSES
from rotoscope.report.columns import clean, column
from rotoscope.report.payload import payload_of
from rotoscope.report.salvage import Salvaged, salvage
from rotoscope.report.shown import PAGE
from rotoscope.results.aggregate import SCORES
from rotoscope.results.comparison import Comparison, Sample, compare, settings_that_differ
from rotoscope.results.depths import SwapDepths
from rotoscope.results.profile import Profile
from rotoscope.results.record import RunRecord
from rotoscope.results.saved import SavedRun

LONGEST = 120
"""Signs of a setting that are shown; the tab on how it was measured has them all."""


@dataclass(frozen=True)
class Side:
    """A run as its page needs it, and as another run needs it for a comparison."""

    payload: dict[str, Any]
    run: RunRecord
    has_heads: bool
    samples: dict[float, Sample] = field(default_factory=dict)
    """Scores per input by tau, where the run has them."""


def side_of(source: str | Path | SavedRun, room: int = PAGE) -> Side:
    """A run folder in any state, or a run in memory, with so many bytes for attention."""
    found = salvage(source)
    payload = payload_of(found, room)
    overview = payload["tabs"].get("overview")
    return Side(payload, found.run, bool(overview), _samples(found, overview["taus"]) if overview else {})


def _samples(found: Salvaged, taus: list[float]) -> dict[float, Sample]:
    run = (SwapDepths if found.kind == "depths" else Profile)(found.run, found.tables)
    try:
        return {tau: Sample.of(run, tau) for tau in taus}
    except Exception:  # damage has no end of forms; the page says what is missing
        return {}


def payloads_of(runs: Sequence[Side]) -> list[dict[str, Any]]:
    """What the page of one run, or of two, is made from: the second holds the comparison with the first."""
    payloads = [one.payload for one in runs]
    if len(runs) == 2:
        payloads[1] = payloads[1] | {"comparison": comparison(*runs)}
    return payloads


def comparison(first: Side, second: Side) -> dict[str, Any]:
    """The settings that differ, and at every tau of both the heads. Read the other way round by exchanging first and second."""
    differ = [
        (name, *(None if value is None else str(clean(value))[:LONGEST] for value in values))
        for name, *values in settings_that_differ(first.run, second.run)
    ]
    found: dict[str, Any] = {"settings": differ, "at": [], "words": []}
    if not (first.samples and second.samples):
        both = first.has_heads and second.has_heads
        why = "One of the runs has no scores per prompt" if both else "Not both runs have heads"
        return found | {"words": [f"{why}, so only their settings are compared."]}
    taus = [(tau, tau) for tau in first.samples if tau in second.samples]
    for one, other in taus or [(next(iter(first.samples)), next(iter(second.samples)))]:
        found["at"].append(_at(compare(first.samples[one], second.samples[other]), one, other))
    if _fingerprint(first.run) != _fingerprint(second.run):
        found["words"].append("The models are not the same: heads are matched by layer and number alone.")
    return found


def _fingerprint(run: RunRecord) -> object:
    return run.settings.get("fingerprint") or run.name


def _at(found: Comparison, tau: float, other_tau: float) -> dict[str, Any]:
    heads = found.heads
    sides = {
        which: {score: column(heads[f"{which}_{score}"]) for score in SCORES}
        | {"class": [CLASSES.index(name) if isinstance(name, str) else -1 for name in heads[f"{which}_class"]]}
        | {"tau": value}
        for which, value in (("first", tau), ("second", other_tau))
    }
    return {
        **sides,
        "words": found.words(),
        "layer": column(heads["layer"]),
        "head": column(heads["head"]),
        "p_value": column(heads["p_value"]),
        "differs": column(heads["differs"]),
    }
