"""Which runs lie under a folder, and what can be said of each without opening its tables."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.results.files import plain
from rotoscope.results.place import LOG, PIECES
from rotoscope.results.record import RUN, RunRecord

DEPTH = 3
MOST_FOLDERS = 5_000
"""Folders looked into: whoever serves a whole disk is told, and does not wait for ever."""
RECENT_S = 15 * 60
"""An unfinished run that has written nothing for this long is not called going on."""
PICTURES = (
    "plane",
    "depth_map",
    "plane_over_training",
    "training_accuracy",
    "accuracy",
    "one_hop_accuracy",
    "gate_bands",
)
READ = (".json", ".jsonl", ".parquet")


@dataclass(frozen=True)
class Found:
    """One run: `path` is relative to the folder served, empty for that folder itself."""

    path: str
    name: str
    kind: str
    state: str
    written: str
    about: str
    picture: bool
    problem: str = ""


def find_runs(root: Path) -> tuple[list[Found], bool]:
    """All runs, the last written first; and whether every folder was looked into."""
    seen, found = 0, []
    for folder in _folders(root, DEPTH):
        seen += 1
        if seen > MOST_FOLDERS:
            break
        if _is_run(folder, root):
            found.append(_describe(folder, root))
    return sorted(found, key=lambda run: (run.written, run.path), reverse=True), seen <= MOST_FOLDERS


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those in it. Links are not followed, nor hidden folders and parts of runs looked into."""
    yield folder
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # removed meanwhile, or not ours to read
        return
    for name in names:
        if not name.startswith((".", "checkpoint-")) and name != PIECES:
            yield from _folders(folder / name, depth - 1)


def run_folder(root: Path, path: str) -> Path | None:
    """The run at a path under the folder; nothing where it leads outside or is none."""
    folder = inside(root, root / path)
    return folder if folder is not None and _is_run(folder, root) and not _leads_out(folder, root) else None


def inside(root: Path, path: Path) -> Path | None:
    """The path with every link and `..` followed, if that is in the folder."""
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, links in a circle
        return None
    return real if real.is_relative_to(root) else None


def _is_run(folder: Path, root: Path) -> bool:
    file = inside(root, folder / RUN)
    try:
        return file is not None and file.is_file()
    except (OSError, ValueError):
        return False


def _leads_out(folder: Path, root: Path) -> bool:
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


def progress_of(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a training run so far; a line still being written is left for the next time."""
    rows = []
    try:
        lines = plain(folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line, parse_float=_number, parse_constant=_number)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _number(text: str) -> float | None:
    """NaN and infinity are no JSON, though Python writes them."""
    value = float(text)
    return value if math.isfinite(value) else None


def _describe(folder: Path, root: Path) -> Found:
    path = folder.relative_to(root).as_posix()
    path = "" if path == "." else path
    name, changed = path or root.name, _changed(folder)
    has_picture = picture(root, folder) is not None
    try:
        run = RunRecord.read(folder)
    except (RotoscopeError, OSError, RecursionError) as damage:
        return Found(path, name, "unknown", "damaged", _moment(changed), "", has_picture, str(damage))
    if _leads_out(folder, root):
        problem = "a file in it is a link that leads outside the folder shown"
        return Found(path, name, "unknown", "damaged", _moment(changed), "", has_picture, problem)
    about = _about(run.settings)
    if not run.complete and (rows := progress_of(folder)):
        about += f"{' · ' if about else ''}step {rows[-1]['step']} of {run.settings.get('steps', '?')}"
    written = _stated(run.written) if run.complete else ""
    state = "finished" if run.complete else "going on" if _recent(changed) else "unfinished"
    return Found(path, name, run.kind, state, written or _moment(changed), about, has_picture)


def _about(settings: dict[str, Any]) -> str:
    """The subject and the task."""
    parts = []
    for key in ("model", "models", "task", "tasks", "preset"):
        value = settings.get(key)
        if isinstance(value, dict | list | tuple):
            value = ", ".join(map(str, value))
        if value:
            parts.append(str(value)[:80])
    return " · ".join(parts)


def _changed(folder: Path) -> float:
    """When anything in the folder was last written."""
    latest = 0.0
    for file in (RUN, LOG, PIECES, "."):
        try:
            latest = max(latest, (folder / file).stat().st_mtime)
            if file == PIECES:
                latest = max([latest, *(piece.stat().st_mtime for piece in (folder / file).iterdir())])
        except OSError:
            continue
    return latest


def _recent(changed: float) -> bool:
    return datetime.now(UTC).timestamp() - changed < RECENT_S


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _stated(written: object) -> str:
    try:
        moment = datetime.fromisoformat(str(written))
        return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return ""
