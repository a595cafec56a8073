"""Scores of random models that were drawn before, kept in the user's cache.

What a draw scores follows from the class and configuration of its model, the prompts, what is measured, the spread to which its
logits are rescaled, the seed, and the code that does it: an entry is found by all of these. Weights are not kept.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.measures.batches import prompts_hash
from rotoscope.models.loading import Subject
from rotoscope.models.proofs import own_code
from rotoscope.models.weight_check import cache_folder
from rotoscope.runs.record import versions
from rotoscope.runs.result import Tables
from rotoscope.runs.run import read_piece, write_piece
from rotoscope.tasks.prompt import Prompts

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
