"""One run as the page needs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.experiments.profile.caveats import Step, head_steps, next_steps, with_missing_caveats
from rotoscope.experiments.profile.result import Profile
from rotoscope.report.attention import PAGE
from rotoscope.report.columns import clean
from rotoscope.report.heads import heads_tab
from rotoscope.report.reported_run import ReportedRun, reported_run
from rotoscope.report.tabs import TABS, tables_tab
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun

TITLES = {
    "profile": "Heads of {name}",
    "depths": "Heads of {name} by depth of the swap",
    "gating": "Gating of {name}",
    "theory": "Statements of both papers, checked",
    "ledger": "The ledger of both papers",
    "canonical": "One-head models at single frequencies",
    "training": "Training on the {task} task",
    "dynamics": "Heads over training, {task} task",
    "roles": "What the layers do, {task} task",
    "geometry": "Frequencies and planes, {task} task",
    "lengths": "How far models generalise",
    "onehop": "One-hop questions to {name}",
    "agreement": "Heads of {name} on several tasks",
    "restrictions": "Models whose heads have some frequencies only",
    "sweep": "The sweep {name}",
    "steering": "Models that were trained to have heads of a kind",
    "cache-plan": "Key heads of {name} that keep everything",
    "rotation-plan": "Planes of {name} that rotate",
}


def run_payload(source: str | Path | SavedRun, room: int = PAGE) -> dict[str, Any]:
    """The content of one run, ready for JSON, with so many bytes for attention.

    Takes a run folder, also of a run that is being written, or a run in memory. `problems` says what cannot be shown.
    """
    return payload_of(reported_run(source), room)


def payload_of(found: ReportedRun, room: int = PAGE) -> dict[str, Any]:
    """The content of the page of a run."""
    run = found.run
    tabs: dict[str, Any] = {}
    if found.kind in ("profile", "depths"):
        tabs["overview"] = heads_tab(found, room)
    for name, make in TABS.get(found.kind, {}).items():
        tabs[name] = found.attempt(f"the tab '{name}'", partial(make, found))
    tabs["tables"] = tables_tab(found)
    return {
        "name": found.name,
        "kind": found.kind,
        "title": _title(found),
        "complete": found.complete,
        "settings": clean(run.settings, 12),
        "versions": clean(run.versions),
        "warnings": _warnings(found, tabs),
        "timings": clean(run.timings, 2),
        "written": clean(run.written or None),
        "head_next": _steps(found, lambda: head_steps(run)) if "overview" in tabs else [],
        "next": _next(found),
        "subject": _subject(run),
        "proof": _proof(run),
        "tabs": {name: tab for name, tab in tabs.items() if tab},
        "problems": list(dict.fromkeys(found.problems)),
        "running": found.running,
    }


def _next(found: ReportedRun) -> list[dict[str, Any]]:
    """What to run next, where the run is whole and its heads are known."""
    profile = found.opened()
    known = isinstance(profile, Profile) and found.complete and "prompts" in found.tables
    return _steps(found, lambda: next_steps(profile)) if known else []  # type: ignore[arg-type]


def _steps(found: ReportedRun, make: Callable[[], list[Step]]) -> list[dict[str, Any]]:
    return [step._asdict() for step in found.attempt("what to run next", make) or []]


def _subject(run: RunRecord) -> dict[str, Any]:
    """What is short enough to read."""
    about = {} if run.subject is None else dataclasses.asdict(run.subject)
    found: dict[str, Any] = clean({k: v for k, v in about.items() if v and not isinstance(v, (list, dict))})
    return found


def _proof(run: RunRecord) -> dict[str, Any]:
    """The self-check in words; nothing where there was none."""
    if run.proof is None or not run.proof.layers:
        return {}
    found = {
        "layers rebuilt after a permutation": run.proof.layers,
        "largest difference of an attention weight": run.proof.largest_difference,
        "queries and keys were read": run.proof.way,
    }
    return {name: value for name, value in clean(found, 2).items() if value is not None}


def _title(found: ReportedRun) -> str:
    task = found.run.settings.get("task") or "unknown"
    name = found.run.name if found.run.name != found.kind else found.name
    return TITLES.get(found.kind, "A run").format(name=name, task=task)


def _warnings(found: ReportedRun, tabs: dict[str, Any]) -> list[str]:
    """The run's own warnings, and for a profile what its heads warn of."""
    overview = tabs.get("overview")
    if not overview:
        return [str(warning) for warning in found.run.warnings]
    heads = pd.DataFrame({"stable": overview["at"][0].get("stable", [])})
    return with_missing_caveats(found.run.warnings, overview["null"], heads)
