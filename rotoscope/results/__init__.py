"""The one format every analysis returns, saves and opens again."""

from pathlib import Path
from typing import Any

from rotoscope.errors import RunError
from rotoscope.results.canonical import Canonical
from rotoscope.results.dynamics import Dynamics
from rotoscope.results.folder import RunFolder, read_run
from rotoscope.results.gating import Gating
from rotoscope.results.geometry import Geometry
from rotoscope.results.ledger import Ledger
from rotoscope.results.lengths import Lengths
from rotoscope.results.onehop import OneHopRun
from rotoscope.results.profile import Profile
from rotoscope.results.roles import Roles
from rotoscope.results.saved import SavedRun
from rotoscope.results.summary import Summary, summarise
from rotoscope.results.theory import TheoryRun
from rotoscope.results.training import Training

__all__ = [
    "Canonical",
    "Dynamics",
    "Gating",
    "Geometry",
    "Ledger",
    "Lengths",
    "OneHopRun",
    "Profile",
    "Roles",
    "RunFolder",
    "Summary",
    "TheoryRun",
    "Training",
    "open",
    "read_run",
    "summarise",
]

KINDS: dict[str, type[SavedRun]] = {
    kind.kind: kind
    for kind in (
        Profile,
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
    )
}


def open(path: str | Path) -> Any:
    """Open a run folder of any kind: what comes back is a `Profile`, `Lengths`, `Training`, ... with all its tables."""
    kind = read_run(Path(path)).get("kind")
    if kind not in KINDS:
        raise RunError(f"{path} holds a run of kind '{kind}', which this version of rotoscope does not know")
    return KINDS[kind].open(path)
