"""The one format every analysis returns, saves and opens again."""

from pathlib import Path

from rotoscope.errors import RunError
from rotoscope.results.folder import RunFolder, read_run
from rotoscope.results.gating import Gating
from rotoscope.results.profile import Profile
from rotoscope.results.summary import Summary, summarise

__all__ = ["Gating", "Profile", "RunFolder", "Summary", "open", "read_run", "summarise"]

KINDS: dict[str, type[Profile] | type[Gating]] = {Profile.kind: Profile, Gating.kind: Gating}


def open(path: str | Path) -> Profile | Gating:
    """Open a run folder of any kind."""
    kind = read_run(Path(path)).get("kind")
    if kind not in KINDS:
        raise RunError(f"{path} holds a run of kind '{kind}', which this version of rotoscope does not know")
    return KINDS[kind].open(path)
