"""Which runs lie under a folder, and what can be said of each without opening its tables."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.report.glimpse import accuracy_of, classes_of, damage_of
from rotoscope.report.running import classes_so_far, how_far, is_recent, last_change, progress_of
from rotoscope.results.place import PIECES
from rotoscope.results.record import RUN, RunRecord
from rotoscope.results.walk import folders_in, holds_run

DEPTH = 3
MOST_FOLDERS = 5_000
"""Folders looked into: whoever serves a whole disk is told, and does not wait for ever."""
PICTURES = (
    "plane",
    "depth_map",
    "plane_over_training",
    "training_accuracy",
    "accuracy",
    "one_hop_accuracy",
    "gate_bands",
)
MOST_SIGNS = 80
"""Of a name in the list; the run's page has it whole."""
READ = (".json", ".jsonl", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Found:
    """One run: `path` is relative to the folder served, empty for that folder itself."""

    path: str
    name: str
    kind: str = "unknown"
    state: str = "damaged"
    """finished, running, unfinished or damaged."""
    written: str
    model: str = ""
    task: str = ""
    accuracy: float | None = None
    chance: float | None = None
    classes: dict[str, int] = field(default_factory=dict)
    """Heads by class."""
    progress: str = ""
    """How far a run is that is not finished."""
    share: float | None = None
    picture: bool
    problem: str = ""


def find_runs(root: Path) -> tuple[list[Found], bool]:
    """All runs, the last written first; and whether every folder was looked into."""
    seen, found = 0, []
    for folder in folders_in(root, DEPTH):
        seen += 1
        if seen > MOST_FOLDERS:
            break
        if _is_run(folder, root):
            found.append(_describe(folder, root))
    return sorted(found, key=lambda run: (run.written, run.path), reverse=True), seen <= MOST_FOLDERS


def run_folder(root: Path, path: str) -> Path | None:
    """The run at a path under the folder; nothing where it leads outside or is none."""
    folder = inside(root, root / path)
    return folder if folder is not None and _is_run(folder, root) and not leads_out(folder, root) else None


def inside(root: Path, path: Path) -> Path | None:
    """The path with every link and `..` followed, if that is in the folder."""
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, links in a circle
        return None
    return real if real.is_relative_to(root) else None


def _is_run(folder: Path, root: Path) -> bool:
    file = inside(root, folder / RUN)
    return file is not None and holds_run(folder)


def leads_out(folder: Path, root: Path) -> bool:
    """Whether a file that a page would read is a link to somewhere else."""
    try:
        with os.scandir(folder) as entries:
            links = [e.path for e in entries if e.is_symlink() and (e.name.endswith(READ) or e.name == PIECES)]
    except OSError:
        return False
    return any(inside(root, Path(link)) is None for link in links)


def picture(root: Path, folder: Path) -> Path | None:
    """The figure that stands for a run: the plane or the accuracy first, else any."""
    try:
        drawn = {file.stem: file for file in sorted(folder.glob("*.png"), reverse=True)}
    except OSError:
        return None
    for name in (*PICTURES, *sorted(drawn)):
        file = inside(root, drawn[name]) if name in drawn else None
        if file is not None and file.is_file():
            return file
    return None


def _describe(folder: Path, root: Path) -> Found:
    path = folder.relative_to(root).as_posix()
    path = "" if path == "." else path
    changed = _moment(last_change(folder))
    about: dict[str, Any] = {"path": path, "name": path or root.name, "written": changed}
    about["picture"] = picture(root, folder) is not None
    try:
        run = RunRecord.read(folder)
    except (RotoscopeError, OSError, RecursionError) as damage:
        return Found(**about, problem=str(damage).replace(f"{folder}/", "").replace(str(folder), about["name"]))
    if leads_out(folder, root):
        return Found(**about, problem="a file in it is a link that leads outside the folder shown")
    about |= {"kind": run.kind, "model": _model(run), "task": _named(run, "task", "tasks", "preset")}
    if not run.complete:
        rows = progress_of(folder)
        progress, share = how_far(folder, run.settings, rows)
        state = "running" if is_recent(folder) else "unfinished"
        return Found(**about, state=state, progress=progress, share=share, classes=classes_so_far(rows))
    about["written"] = _stated(run.written) or changed
    if problem := damage_of(folder, run):
        return Found(**about, problem=problem)
    accuracy, chance = accuracy_of(folder, run), run.settings.get("chance")
    chance = float(chance) if isinstance(chance, int | float) and 0 <= chance <= 1 else None
    return Found(**about, state="finished", accuracy=accuracy, chance=chance, classes=classes_of(folder, run))


def _model(run: RunRecord) -> str:
    known = run.subject.name if run.subject is not None else ""
    return known[:MOST_SIGNS] if isinstance(known, str) and known else _named(run, "model", "models")


def _named(run: RunRecord, *keys: str) -> str:
    """What the settings say, as text."""
    parts = []
    for key in keys:
        value = run.settings.get(key)
        if isinstance(value, dict | list | tuple):
            value = ", ".join(map(str, value))
        if value:
            parts.append(str(value)[:MOST_SIGNS])
    return " · ".join(parts)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _stated(written: object) -> str:
    try:
        moment = datetime.fromisoformat(str(written))
        return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return ""
