"""Every kind of run and every command, declared once; what a declaration names is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, overload

from rotoscope.errors import RunError
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun

RESULTS = {
    "profile": "rotoscope.experiments.profile.result:Profile",
    "depths": "rotoscope.experiments.depths.result:SwapDepths",
    "gating": "rotoscope.experiments.gate.result:Gating",
    "theory": "rotoscope.experiments.theory.result:TheoryRun",
    "canonical": "rotoscope.experiments.canonical.result:Canonical",
    "training": "rotoscope.lab.result:Training",
    "dynamics": "rotoscope.experiments.train.dynamics_result:Dynamics",
    "roles": "rotoscope.experiments.roles.result:Roles",
    "geometry": "rotoscope.experiments.roles.geometry:Geometry",
    "lengths": "rotoscope.experiments.lengths.result:Lengths",
    "onehop": "rotoscope.experiments.ask.result:OneHopRun",
    "ledger": "rotoscope.ledger.result:Ledger",
    "agreement": "rotoscope.experiments.profile.across_tasks:Agreement",
    "restrictions": "rotoscope.experiments.train.restrictions:Restrictions",
    "steering": "rotoscope.experiments.steering:Steering",
    "cache-plan": "rotoscope.experiments.plan.result:CachePlan",
    "rotation-plan": "rotoscope.experiments.plan.result:RotationPlan",
    "sweep": "rotoscope.sweeps.result:Sweep",
}
"""The class of every kind of run, by its name in `run.json`."""

R = TypeVar("R", bound=SavedRun)


def resolve(path: str) -> Any:
    """What "module:name" stands for."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def result_class(kind: str) -> type[SavedRun] | None:
    """The class of a kind of run; None for a kind that this version does not know."""
    return resolve(RESULTS[kind]) if kind in RESULTS else None


@overload
def open(path: str | Path, kind: type[R]) -> R: ...
@overload
def open(path: str | Path, kind: None = None) -> Any: ...
def open(path: str | Path, kind: type[SavedRun] | None = None) -> Any:
    """Open a run folder of any kind: what comes back is a `Profile`, `Lengths`, `Training`, ... with all its tables.

    Where a `kind` is named, a run of another is refused, and type checkers know what comes back.
    """
    if kind is not None:
        return kind.open(path)
    name = RunRecord.read(Path(path)).kind
    result = result_class(name)
    if result is None:
        raise RunError(f"{path} holds a run of kind '{name}', which this version of rotoscope does not know")
    return result.open(path)
