"""Where does my model lie? A profile among the models of an atlas, as the page shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.report.columns import column, table
from rotoscope.results.atlas import Atlas
from rotoscope.results.atlas_place import Placement
from rotoscope.results.profile import Profile


def place_tab(atlas: Atlas, run: str | Path | Profile) -> dict[str, Any]:
    """The tab of a finished profile at each of its temperatures; what is no profile is refused."""
    profile = run if isinstance(run, Profile) else Profile.open(run)
    return {"name": str(atlas.about["name"]), "at": [_at(atlas.place(profile, tau)) for tau in profile.taus]}


def with_place(payload: dict[str, Any], atlas: Atlas, run: str | Path | Profile) -> dict[str, Any]:
    """The content of a run's page with that tab; where the run cannot be placed, the page says why."""
    try:
        tab = place_tab(atlas, run)
    except RotoscopeError as problem:
        return payload | {"problems": [*payload["problems"], f"the run is not placed in the atlas: {problem}"]}
    return payload | {"tabs": payload["tabs"] | {"place": tab}}


def _at(found: Placement) -> dict[str, Any]:
    others = found.others
    return {
        "tau": found.tau,
        "model": found.model,
        "words": found.words,
        "models": found.models,
        "table": table(
            found.table, f"{found.model} among {found.models} other models" if found.models else found.model
        ),
        "others": {
            name: column(others[name])
            for name in ("model", "statistic", "value", "null_value")
            if name in others
        },
    }
