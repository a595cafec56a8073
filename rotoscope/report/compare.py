"""Two runs beside each other: the content of their pages, and what the comparison of their heads says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.experiments.compare import Comparison, Sample, compare, settings_that_differ
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.plan.result import Plan
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.train.dynamics_result import Dynamics
from rotoscope.report.attention import PAGE
from rotoscope.report.columns import clean, column
from rotoscope.report.payload import payload_of
from rotoscope.report.plans import plans_compared
from rotoscope.report.reported_run import ReportedRun, reported_run
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun
from rotoscope.scores.classes import CLASSES
from rotoscope.stats.aggregate import HEAD, SCORES

UNTESTED = (
    "Both are trainings: heads at their last steps stand side by side, matched by layer and number alone. The scores kept are "
    "means over prompts, so no difference is tested."
)
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
    ends: dict[float, pd.DataFrame] = field(default_factory=dict)
    """The heads at the last step of a training by tau."""
    plan: Plan | None = None
    """A plan that is finished."""


def side_of(source: str | Path | SavedRun, room: int = PAGE) -> Side:
    """A run folder, or a run in memory, with so many bytes for attention."""
    found = reported_run(source)
    payload = payload_of(found, room)
    overview, training = payload["tabs"].get("overview"), payload["tabs"].get("training")
    samples = _samples(found, overview["taus"]) if overview else {}
    ends = _ends(found) if training and training["series"] else {}
    plan = found.opened() if found.complete else None
    return Side(payload, found.run, bool(overview), samples, ends, plan if isinstance(plan, Plan) else None)


def _samples(found: ReportedRun, taus: list[float]) -> dict[float, Sample]:
    run = (SwapDepths if found.kind == "depths" else Profile)(found.run, found.tables)
    try:
        return {tau: Sample.of(run, tau) for tau in taus}
    except (
        Exception
    ):  # tables of a stranger's, or of a run that is being written; the page says what is missing
        return {}


def _ends(found: ReportedRun) -> dict[float, pd.DataFrame]:
    run = Dynamics(found.run, found.tables)
    try:
        taus = run.scores["tau"].unique()
        return {float(tau): run.at(tau=tau)[lambda rows: rows["step"] == rows["step"].max()] for tau in taus}
    except Exception:  # as above
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
    plans = _plans(first.plan, second.plan)
    if plans is not None:
        return found | {"plan": plans, "words": plans.pop("words")}
    if first.ends and second.ends:
        pairs = _shared(first.ends, second.ends)
        return found | {"at": [_at_the_end(first, second, *pair) for pair in pairs], "words": [UNTESTED]}
    if not (first.samples and second.samples):
        both = first.has_heads and second.has_heads
        why = "One of the runs has no scores per prompt" if both else "Not both runs have heads"
        return found | {"words": [f"{why}, so only their settings are compared."]}
    for one, other in _shared(first.samples, second.samples):
        found["at"].append(_at(compare(first.samples[one], second.samples[other]), one, other))
    if _fingerprint(first.run) != _fingerprint(second.run):
        found["words"].append("The models are not the same: heads are matched by layer and number alone.")
    return found


def _plans(first: Plan | None, second: Plan | None) -> dict[str, Any] | None:
    """Two plans of one kind beside each other, where both can be read."""
    if first is None or second is None:
        return None
    try:
        return plans_compared(first, second)
    except Exception:  # as above
        return None


def _shared(first: dict[float, Any], second: dict[float, Any]) -> list[tuple[float, float]]:
    """The taus of both; where there is none, the first of each."""
    taus = [(tau, tau) for tau in first if tau in second]
    return taus or [(next(iter(first)), next(iter(second)))]


def _at_the_end(first: Side, second: Side, tau: float, other_tau: float) -> dict[str, Any]:
    """Heads at the last steps of two trainings, side by side."""
    ends = {"first": first.ends[tau], "second": second.ends[other_tau]}
    wide = [
        rows.set_index(HEAD)[[*SCORES, "head_class"]]
        .rename(columns={"head_class": "class"})
        .add_prefix(f"{which}_")
        for which, rows in ends.items()
    ]
    heads = wide[0].join(wide[1], how="inner").sort_index().reset_index()
    changed, alone = (
        int((heads["first_class"] != heads["second_class"]).sum()),
        sum(map(len, wide)) - 2 * len(heads),
    )
    words = [f"{changed} of {len(heads)} heads end in another class."]
    words += [f"{alone} heads are in one of the runs only."] if alone else []
    found = _sides(heads, tau, other_tau) | {"words": words}
    for which, rows in ends.items():
        found[which]["step"] = int(rows["step"].iloc[0])
    return found


def _fingerprint(run: RunRecord) -> object:
    return run.settings.get("fingerprint") or run.name


def _at(found: Comparison, tau: float, other_tau: float) -> dict[str, Any]:
    heads = found.heads
    tested = {name: column(heads[name]) for name in ("p_value", "differs")}
    return {**_sides(heads, tau, other_tau), "words": found.words(), **tested}


def _sides(heads: pd.DataFrame, tau: float, other_tau: float) -> dict[str, Any]:
    """Both scores and the class of every head in the first and in the second run."""
    sides = {
        which: {score: column(heads[f"{which}_{score}"]) for score in SCORES}
        | {"class": [CLASSES.index(name) if isinstance(name, str) else -1 for name in heads[f"{which}_class"]]}
        | {"tau": value}
        for which, value in (("first", tau), ("second", other_tau))
    }
    return {**sides, "layer": column(heads["layer"]), "head": column(heads["head"])}
