"""A finished profile that gets more draws of its nulls, or a null at all: its own tables are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.experiments.profile.nulls import NULL_PIECES, null_stem
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.settings import NULLS
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run

OWN_PIECES = {
    "examples": ("shown_prompt", "attention"),
    "known": ("known_heads",),
    "input": ("input_prompts",),
    "paired": ("paired_prompts",),
}
"""The subject's tables by the pieces of a run that hold them; all others belong to its scores."""
PER_PROMPT = ("input", "paired")


def open_run(
    described: dict[str, Any], out: str | Path | None, *, overwrite: bool, device: str, prompts: int
) -> Run[Profile]:
    """The run of a profile: a new one, one that goes on, or a finished one that is given more draws.

    Where a run that is finished differs in its nulls alone, it is taken as it is if it holds the draws that are asked for, and
    begun again with its tables if it lacks some.
    """
    described = json.loads(json.dumps(described, default=str))
    before = None if out is None or overwrite else _finished(Path(out))
    if before is None or _without_nulls(before.settings) != _without_nulls(described):
        return Run(Profile, described, out, overwrite=overwrite, device=device)
    drawn, asked = _draws(before.settings), _draws(described)
    if all(drawn.get(null, 0) >= count for null, count in asked.items()):
        return Run(Profile, before.settings, out, device=device)
    if any(asked.get(null, 0) < count for null, count in drawn.items()):
        return Run(Profile, described, out, device=device)
    if reason := replace(before, complete=False).cannot_go_on:
        raise RunError(f"the run in {out} cannot be given more draws: it was {reason}")
    pieces = list(_pieces(Profile.open(str(out)), prompts))
    run = Run(Profile, described, out, overwrite=True, device=device)
    for key, tables in pieces:
        run.add(key, tables)
    return run


def _finished(folder: Path) -> RunRecord | None:
    """The record of the finished profile in a folder, if there is one."""
    try:
        record = RunRecord.read(folder)
    except RunError:
        return None
    return record if record.complete and record.kind == Profile.kind else None


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but which nulls are drawn, and how often."""
    return {key: value for key, value in settings.items() if key not in ("null", "null_draws")}


def _draws(settings: Mapping[str, Any]) -> dict[str, int]:
    """How often each null is drawn."""
    return dict.fromkeys(NULLS[str(settings["null"])], int(settings["null_draws"] or 0))


def _pieces(run: Profile, prompts: int) -> Iterator[tuple[str, Tables]]:
    """The pieces that a run would have been made of, one batch holding all prompts."""
    tables, everything = run.tables, f"{0:06d}-{prompts:06d}"
    apart = {name for names in OWN_PIECES.values() for name in names}
    own = {name: table for name, table in tables.items() if not name.startswith("null_") and name not in apart}
    yield f"real-{everything}", own
    for key, names in OWN_PIECES.items():
        held = {name: tables[name] for name in names if name in tables}
        if not held:
            continue
        yield (f"{key}-{0:06d}" if key in PER_PROMPT else key), held
        for prompt in range(1, prompts) if key in PER_PROMPT else ():
            yield f"{key}-{prompt:06d}", {}
    scored = tables.get("null_prompts", pd.DataFrame(columns=["null_name", "draw", "prompt"]))
    for (null, draw), rows in scored.groupby(["null_name", "draw"], sort=True):
        if rows["prompt"].nunique() < prompts:
            continue  # a draw that failed is tried again
        of_draw = {
            name: table[(table["null_name"] == null) & (table["draw"] == draw)].reset_index(drop=True)
            for name, table in tables.items()
            if name.startswith("null_")
        }
        for suffix, names in NULL_PIECES.items():
            held = {name: of_draw[name] for name in names if len(of_draw.get(name, ()))}
            key = f"{null_stem(null, draw)}-{suffix or everything}"
            if held or (suffix == "input" and null == "random" and run.run.settings.get("input_swaps")):
                yield key, held
