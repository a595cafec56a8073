"""Opening a run folder whatever has become of it: what can be read, and sentences about what cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.results import KINDS
from rotoscope.results.folder import PIECES, RUN, SCHEMA, read_table
from rotoscope.results.saved import SavedRun

__all__ = ["Salvaged", "salvage"]

PROFILE_PIECE = re.compile(r"(?P<model>[a-z]+)(-(?P<draw>\d+))?-(?P<first>\d{6})-(?P<name>\w+)")
TRAINING_PIECE = re.compile(r"(?P<name>[a-z]+)-(?P<first>\d{8})")


@dataclass
class Salvaged:
    """What is left of a run."""

    name: str
    run: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return str(self.run.get("kind", "unknown"))

    @property
    def complete(self) -> bool:
        return bool(self.run.get("complete", False))

    def attempt(self, what: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, or nothing and a sentence why. Damage has no end of forms, so every error counts."""
        try:
            return make()
        except Exception as problem:
            said = str(problem).strip().splitlines()
            self.problems.append(
                f"{what} cannot be shown ({type(problem).__name__}: {said[0] if said else ''})"
            )
            return None

    def opened(self) -> SavedRun | None:
        """The run as its own class, where this version knows it."""
        kind = KINDS.get(self.kind)
        return None if kind is None else kind(self.run, self.tables)


def salvage(source: str | Path | SavedRun) -> Salvaged:
    """Read a run folder, or take a run that is in memory."""
    if isinstance(source, SavedRun):
        run = {"complete": True, **source.run, "kind": source.kind}
        return Salvaged(_name(run, source.kind), run, dict(source.tables))
    folder = Path(source)
    found = Salvaged(folder.resolve().name or str(folder))
    if not folder.is_dir():
        found.problems.append(f"no such run folder: {folder}")
        return found
    _describe(found, folder)
    _read_tables(found, folder)
    if not found.complete:
        _read_pieces(found, folder)
    return found


def _name(run: dict[str, Any], kind: str) -> str:
    subject = run.get("subject")
    if isinstance(subject, dict) and "name" in subject:
        return str(subject["name"])
    settings = run.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    return str(settings.get("model") or settings.get("task") or kind)


def _describe(found: Salvaged, folder: Path) -> None:
    """Take `run.json` as far as it can be believed."""
    file = folder / RUN
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found.problems.append(f"{folder.name} has no {RUN}, so nothing says what was run")
        return
    except (OSError, ValueError, RecursionError) as damage:
        found.problems.append(f"{RUN} is damaged ({damage}), so nothing says what was run")
        return
    if not isinstance(run, dict):
        found.problems.append(f"{RUN} is damaged (it holds no description), so nothing says what was run")
        return
    found.run = run
    for key, kind in (("settings", dict), ("versions", dict), ("timings", dict), ("warnings", list)):
        if key in run and not isinstance(run[key], kind):
            found.problems.append(f"the {key} in {RUN} are damaged and left out")
            run.pop(key)
    major = re.match(r"\d+", str(run.get("schema", "")))
    if major is None:
        found.problems.append(f"{RUN} does not say which schema it has")
    elif int(major.group()) > int(SCHEMA.split(".")[0]):
        found.problems.append(
            f"the run was written by a newer rotoscope (schema {run['schema']}, this one reads {SCHEMA}); "
            "what is familiar is shown, upgrade with: pip install -U rotoscope"
        )
    if not found.complete:
        found.problems.append("the run is not finished; this is what there is so far")
    if found.kind not in KINDS:
        found.problems.append(
            f"this version does not know runs of kind '{found.kind}'; their tables are shown as they are"
        )


def _read_tables(found: Salvaged, folder: Path) -> None:
    there = {file.stem for file in folder.glob("*.parquet")}
    said = found.run.get("tables")
    listed = {str(name) for name in said} if isinstance(said, list) else set()
    for name in sorted(listed | there):
        try:
            found.tables[name] = read_table(folder / f"{Path(name).name}.parquet")
        except RunError as problem:
            found.problems.append(str(problem).replace(f"{folder}/", "").replace(str(folder), folder.name))
        except Exception as problem:  # a file made by a stranger
            found.problems.append(f"{name}.parquet cannot be read ({problem})")
    if not there and not listed and found.complete:
        found.problems.append("the run has no tables")


def _read_pieces(found: Salvaged, folder: Path) -> None:
    """What a run that is still going, or was killed, has finished."""
    parts: dict[str, list[pd.DataFrame]] = {}
    digest = str(found.run.get("settings_hash", ""))
    if not re.fullmatch(r"[0-9a-f]+", digest):
        return
    for file in sorted((folder / PIECES / digest).glob("*.parquet")):
        try:
            piece = read_table(file)
        except RunError:
            continue  # it is being written or was lost; the next look finds it
        name = _into(piece, file.stem)
        if name is not None and name not in found.tables:
            parts.setdefault(name, []).append(piece)
    found.tables |= {name: pd.concat(of, ignore_index=True) for name, of in parts.items()}


def _into(piece: pd.DataFrame, stem: str) -> str | None:
    """The table a piece belongs to; pieces of a null say which draw they are."""
    if match := PROFILE_PIECE.fullmatch(stem):
        if match["model"] == "real":
            return match["name"]
        piece.insert(0, "draw", int(match["draw"] or 0))
        piece.insert(0, "null_name", match["model"])
        return f"null_{match['name']}"
    match = TRAINING_PIECE.fullmatch(stem)
    return match["name"] if match else None
