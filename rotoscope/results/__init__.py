"""The one format every analysis returns, saves and opens again."""

from pathlib import Path

from rotoscope.errors import RunError
from rotoscope.results.folder import RunFolder, read_run
from rotoscope.results.profile import Profile
from rotoscope.results.summary import Summary, summarise

__all__ = ["Profile", "RunFolder", "Summary", "open", "read_run", "summarise"]

KINDS = {Profile.kind: Profile}


def open(path: str | Path) -> Profile:
    """Open a run folder of any kind."""
    kind = read_run(Path(path)).get("kind")
    if kind not in KINDS:
        raise RunError(f"{path} holds a run of kind '{kind}', which this version of rotoscope does not know")
    return KINDS[kind].open(path)
