"""The heads of a sweep as one Parquet file, with a card beside it that says what is in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.runs.files import disk_errors, write_json, write_table
from rotoscope.runs.folder import move_all
from rotoscope.runs.record import RunRecord
from rotoscope.scores.attention import KNOWN

COLUMNS = {
    "item": "The item of the sweep: the name of its run's folder.",
    "run": "The run within an item that has several.",
    "model": "The model's name.",
    "fingerprint": "A hash of the model's configuration and weights, which tells models of one name apart.",
    "task": "What the model was shown.",
    "seed": "The seed of the prompts, or of the training.",
    "tau": "The temperature of the swap weights.",
    "step": "The training step.",
    "layer": "The layer, from 0.",
    "head": "The head within its layer, from 0.",
    "head_class": "positional, symbolic, carried, uniform or mixed; empty where the head sees no swap.",
    "missing_reason": "Why the head has no score.",
    "class_share": "The share of prompts on which the head, taken alone, has its class.",
    "class_stability": "The share of resamples of the prompts in which the head keeps its class.",
    "stable": "Whether that share is high enough for the class to be relied on.",
    "little_at_stake": "Whether hardly any attention lies on what is swapped.",
    "swapped_mass": "The attention on what is swapped.",
    "entropy": "The entropy of the attention, in nats.",
    "relative_entropy": "The entropy of the attention, where 1 is spread evenly.",
    "effective_swaps": "How many swaps carry the weight.",
    "renormalised_effective_swaps": "How many swaps carry the weight of the renormalised scores.",
    "block_spread": "The standard deviation of the blocks' logits.",
    "logit_variance": "The variance of the logits, the first term of the exclusion principle.",
    "d_pos": "The distance from a positional head, a term of the exclusion principle.",
    "d_sym": "The distance from a symbolic head, a term of the exclusion principle.",
    "prompts": "The number of prompts on which the head has a score.",
    "centred_prompts": "The number of prompts on which the head has a centred score.",
    "equal_symbol_prompts": "The number of prompts on which the head has a score over swaps of equal symbols.",
    "carried_by": "place or context: what a carried head follows when every block moves with the block before it.",
    "covered_prompts": "The number of prompts whose swaps hold half of the head's weight.",
    "paired_covered_share": "The share of the swap weight that the swaps of blocks with the block before them hold.",
    "input_class": "The head's class by the scores with the prompt itself permuted.",
    "covered_share": "The share of the swap weight that the swaps of the prompt itself hold.",
} | {name: f"The score as a {name.replace('_', ' ')} head." for name in KNOWN}
"""The columns of most heads, each in a sentence; scores are described by `_meaning`."""
SCORE = re.compile(
    r"(renormalised_|centred_|equal_symbol_|input_|paired_|)(positional|symbolic)_score(_low|_high|_std|)"
)
VARIANTS = {
    "": "",
    "renormalised_": ", with attention renormalised over the blocks",
    "centred_": ", with uniform attention subtracted",
    "equal_symbol_": ", over swaps of equal symbols alone",
    "input_": ", with the prompt itself permuted",
    "paired_": ", with every block of the prompt moved together with the block before it",
}
OVER_PROMPTS = {
    "": "Mean over prompts",
    "_low": "Lower end of the 95 % interval over prompts",
    "_high": "Upper end of the 95 % interval over prompts",
    "_std": "Standard deviation over prompts",
}


def check_table_file(file: Path) -> None:
    """Refuse a file that is no Parquet file by its name, or holds something else than such a table."""
    if file.suffix != ".parquet":
        raise RunError(f"the table goes to a file that ends in .parquet, found {file}")
    if file.exists() and not _card_file(file).is_file():
        raise RunError(f"{file} exists and has no card beside it, so it is not replaced; choose another name")


def write_heads(
    file: Path, heads: pd.DataFrame, settings: Mapping[str, Any], records: Mapping[str, Sequence[RunRecord]]
) -> None:
    """Write the table and its card; `records` are those of every finished item's runs.

    Both are written beside the old ones first, which are moved aside and removed last: a step that fails leaves the old table with
    the old card, or the new one with the new.
    """
    pair = [file, _card_file(file)]
    new, old = ([path.with_name(f".{path.name}.{end}") for path in pair] for end in ("new", "replaced"))
    with disk_errors(file):
        _recover(pair, old)
        check_table_file(file)
        try:
            write_table(new[0], heads)
            write_json(new[1], card(heads, settings, records))
            there = [(path, aside) for path, aside in zip(pair, old, strict=True) if path.exists()]
            put = [*zip(new, pair, strict=True)]
            move_all([*there, *put[::-1]])  # a table never stands without a card
        finally:
            _remove(new)
        _remove(old)


def _recover(pair: Sequence[Path], old: Sequence[Path]) -> None:
    """Put a table and its card back that a killed process had moved aside, unless both new ones are in place."""
    if all(path.is_file() for path in pair):
        _remove(old)
    else:
        for path, aside in zip(pair, old, strict=True):
            if aside.is_file():
                os.replace(aside, path)


def _remove(files: Sequence[Path]) -> None:
    for file in files:
        with suppress(OSError):  # then the next call removes it
            file.unlink(missing_ok=True)


def card(
    heads: pd.DataFrame, settings: Mapping[str, Any], records: Mapping[str, Sequence[RunRecord]]
) -> dict[str, Any]:
    """What is in the table: heads, models, settings, versions and columns; the licence is left to whoever publishes it."""
    models: dict[str, dict[str, Any]] = {}
    versions: dict[str, set[str]] = {}
    for run in (run for runs in records.values() for run in runs):
        for package, version in run.versions.items():
            versions.setdefault(package, set()).add(version)
        if (subject := run.subject) is not None:
            about = {"name": subject.name, "fingerprint": subject.fingerprint, "dtype": subject.dtype}
            shape = {"architecture": subject.architecture, "layers": subject.layers}
            models.setdefault(subject.fingerprint, about | shape | {"runs": 0})["runs"] += 1
    grid = settings["grid"]
    return {
        "licence": "",
        "heads": len(heads),
        "items": len(records),
        "models": list(models.values()),
        "command": settings["command"],
        "grid": grid,
        "settings": settings["settings"],
        "versions": {package: sorted(found) for package, found in versions.items()},
        "columns": {name: _meaning(name, grid, settings["command"]) for name in heads},
    }


def _meaning(column: str, grid: Mapping[str, Any], command: str) -> str:
    if column in COLUMNS:
        return COLUMNS[column]
    if score := SCORE.fullmatch(column):
        variant, kind, over_prompts = score.groups()
        return f"{OVER_PROMPTS[over_prompts]} of the {kind} score{VARIANTS[variant]}."
    if column.removeprefix("grid_") in grid:
        return f"The setting {column.removeprefix('grid_')} of the item."
    return f"{column.replace('_', ' ').capitalize()}, as in the heads of a run of rotoscope {command}."


def _card_file(file: Path) -> Path:
    return file.with_suffix(".json")
