"""Scores of random models that were drawn before, kept in the user's cache.

What a draw scores follows from the class and configuration of its model, the prompts, what is measured, the spread to which its
logits are rescaled, the seed, and the code that does it: an entry is found by all of these. Weights are not kept.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.experiments.profile.nulls import NULL_PIECES, null_stem
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.settings import NULLS, ProfileSettings
from rotoscope.measures.batches import prompts_hash
from rotoscope.models.loading import Subject
from rotoscope.models.proofs import own_code
from rotoscope.models.weight_check import cache_folder
from rotoscope.runs.record import RunRecord, versions
from rotoscope.runs.result import Tables
from rotoscope.runs.run import Run, read_piece, write_piece
from rotoscope.tasks.prompt import Prompts

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


LEAST_WORK = 10**8
"""Weights times tokens of a draw; one that takes less is made sooner than it is looked up."""
ROOM = 500_000_000
"""Bytes that all entries may take; the oldest ones go first."""
OF_THE_NULL = ("null", "null_draws", "examples", "least_mass", "prove", "batch_tokens")
"""Settings of a profile on which no score of a draw depends."""
EVERYTHING = ("",)
"""All of rotoscope's code."""
NAMES = ("_name_or_path", "name_or_path", "transformers_version")


class KeptDraws:
    """The draws of one profile's random null, each as the pieces of a run that hold it."""

    def __init__(self, place: Path | None) -> None:
        self.place = place
        """None where nothing is kept."""

    @classmethod
    def of(
        cls, subject: Subject, prompts: Prompts, settings: ProfileSettings, seed: int, scored: pd.DataFrame
    ) -> KeptDraws:
        """Those with the shape of a subject, on the prompts and settings of its profile, rescaled to its scores."""
        work = sum(weight.numel() for weight in subject.model.parameters())
        work *= sum(len(prompt.tokens) for prompt in prompts)
        kind = type(subject.model)
        if (
            work < LEAST_WORK
            or settings.measures
            or settings.known
            or not kind.__module__.startswith("transformers.")
        ):
            return cls(None)
        config = {key: value for key, value in subject.model.config.to_dict().items() if key not in NAMES}
        measured = {key: value for key, value in settings.stored().items() if key not in OF_THE_NULL}
        about = [
            *(f"{kind.__module__}.{kind.__name__}", config, str(subject.model.dtype), subject.device.type),
            *(prompts_hash(prompts), measured, float(scored["block_spread"].median()).hex(), seed),
            *(versions(), own_code(EVERYTHING)),
        ]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
        return cls(cache_folder() / "draws" / digest[:32])

    def read(self, draw: int) -> dict[str, Tables]:
        """The pieces of a draw by their keys; empty where it is not kept, or not as it was written."""
        if self.place is None:
            return {}
        pieces: dict[str, Tables] = {}
        with suppress(OSError, ValueError, TypeError):
            for key in json.loads((self.place / f"{draw}.json").read_text(encoding="utf-8")):
                tables = read_piece(self.place, key)
                if tables is None:
                    return {}
                pieces[key] = tables
            return pieces
        return {}

    def keep(self, draw: int, pieces: dict[str, Tables]) -> None:
        """Keep a draw, and make room for it; a cache that cannot be written costs time only."""
        if self.place is None:
            return
        with suppress(OSError, RunError):
            self.place.mkdir(parents=True, exist_ok=True)
            for key, tables in pieces.items():
                write_piece(self.place, key, tables)
            (self.place / f"{draw}.json").write_text(json.dumps(list(pieces)), encoding="utf-8")
            _make_room(self.place.parent.iterdir(), self.place)


def _make_room(entries: Iterable[Path], latest: Path) -> None:
    sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for entry in entries if entry.is_dir()}
    for entry in sorted(sizes, key=lambda entry: entry.stat().st_mtime):
        if sum(sizes.values()) <= ROOM:
            return
        if entry != latest:
            del sizes[entry]
            shutil.rmtree(entry, ignore_errors=True)
