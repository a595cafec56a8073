"""The one format every analysis returns, saves and opens again."""

from pathlib import Path
from typing import Any, TypeVar, overload

from rotoscope.errors import RunError
from rotoscope.results.agreement import Agreement as Agreement
from rotoscope.results.cache_plan import CachePlan as CachePlan
from rotoscope.results.canonical import Canonical as Canonical
from rotoscope.results.depths import SwapDepths as SwapDepths
from rotoscope.results.dynamics import Dynamics as Dynamics
from rotoscope.results.gating import Gating as Gating
from rotoscope.results.geometry import Geometry as Geometry
from rotoscope.results.ledger import Ledger as Ledger
from rotoscope.results.lengths import Lengths as Lengths
from rotoscope.results.onehop import OneHopRun as OneHopRun
from rotoscope.results.profile import Profile as Profile
from rotoscope.results.record import RunRecord as RunRecord
from rotoscope.results.restrictions import Restrictions as Restrictions
from rotoscope.results.roles import Roles as Roles
from rotoscope.results.rotation_plan import RotationPlan as RotationPlan
from rotoscope.results.run import Run as Run
from rotoscope.results.saved import SavedRun
from rotoscope.results.steering import Steering as Steering
from rotoscope.results.summary import Summary as Summary
from rotoscope.results.summary import summarise as summarise
from rotoscope.results.sweep import Sweep as Sweep
from rotoscope.results.theory import TheoryRun as TheoryRun
from rotoscope.results.training import Training as Training
from rotoscope.results.verdict import Figure as Figure
from rotoscope.results.verdict import Verdict as Verdict
from rotoscope.results.verdict import verdicts as verdicts

KINDS: dict[str, type[SavedRun]] = {
    kind.kind: kind
    for kind in (
        Profile,
        SwapDepths,
        Gating,
        TheoryRun,
        Canonical,
        Training,
        Dynamics,
        Roles,
        Geometry,
        Lengths,
        OneHopRun,
        Ledger,
        Agreement,
        Restrictions,
        Steering,
        CachePlan,
        RotationPlan,
        Sweep,
    )
}


R = TypeVar("R", bound=SavedRun)


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
    if name not in KINDS:
        raise RunError(f"{path} holds a run of kind '{name}', which this version of rotoscope does not know")
    return KINDS[name].open(path)
