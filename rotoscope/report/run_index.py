"""Which runs lie under a folder, and what can be said of each without opening its tables."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.registry import ResultKind, kind_declaration, result_kinds
from rotoscope.runs.files import WITH_SETTINGS, checksum, plain
from rotoscope.runs.folder import LOG, PIECES
from rotoscope.runs.record import RUN, RunRecord
from rotoscope.runs.result import folders_in, holds_run
from rotoscope.runs.run import DONE
from rotoscope.scores.classes import CLASSES, purity_classes

DEPTH = 3
MOST_FOLDERS = 5_000
"""Folders looked into: whoever serves a whole disk is told, and does not wait for ever."""
ITEM_NOTE = "item.json"
"""How the item of a sweep that has ended is known."""
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
    first = [kind.picture for _, kind in result_kinds().values() if kind.picture]
    for name in (*first, *sorted(drawn)):
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


# What a list says of a finished run without opening it: whether it is damaged, its classes and its accuracy.
#
# Files may be anybody's: large ones are not read, nor tables with other columns. A file that has not changed is read once.


MOST_BYTES = 16_000_000
MOST_ROWS = 500_000


def damage_of(folder: Path, run: RunRecord) -> str:
    """The first table that is missing or not what was written, in a sentence; large ones are checked when the run is opened."""
    for name in run.tables:
        file = folder / f"{Path(name).name}.parquet"
        expected = run.files.get(file.name)
        try:
            about = plain(file).stat()
            small = about.st_size <= MOST_BYTES
            known = _checksum(file, about.st_mtime_ns, about.st_size) if small else expected
        except OSError:
            return f"{file.name} is missing or cannot be read; {WITH_SETTINGS}"
        if expected is not None and known != expected:
            return f"{file.name} is damaged (it is not what was written); {WITH_SETTINGS}"
    return ""


@lru_cache(maxsize=20_000)
def _checksum(file: Path, changed: int, size: int) -> str:
    return checksum(file)


def classes_of(folder: Path, run: RunRecord) -> dict[str, int]:
    """How many heads of each class there are at the first tau, classes without any left out."""
    kind, taus = kind_declaration(run.kind), run.settings.get("tau")
    if kind is None or not kind.classes:
        return {}
    count = _last_classes if kind.by_step else _classes
    counted: dict[Any, Counter[Any]] = _seen(folder, f"{kind.classes}.parquet", run, count) or {}
    first = taus[0] if isinstance(taus, list) and taus and isinstance(taus[0], float) else None
    counts = counted.get(first) or next(iter(counted.values()), Counter())
    return {name: counts[name] for name in CLASSES if counts[name]}


def accuracy_of(folder: Path, run: RunRecord) -> float | None:
    """How often the model itself answered rightly; of a training, at its end, in the mean over hops."""
    kind = kind_declaration(run.kind) or ResultKind(run.kind, "")
    mean = _last_accuracy if kind.by_step else _accuracy
    accuracy: float | None = _seen(folder, f"{kind.accuracy}.parquet", run, mean)
    return accuracy


def _classes(file: Path) -> dict[Any, Counter[Any]]:
    """Heads by class, by tau."""
    counted: dict[Any, Counter[Any]] = {}
    for tau, name in zip(*_columns(file, "tau", "head_class"), strict=True):
        counted.setdefault(tau, Counter())[name] += 1
    return counted


def _last_classes(file: Path) -> dict[Any, Counter[Any]]:
    """Heads by class at the last step, by tau, for the first kind of queries."""
    names = ("step", "queries", "tau", "positional_score", "symbolic_score")
    steps, queries, taus, positional, symbolic = _columns(file, *names)
    last, counted = max(steps), dict[Any, Counter[Any]]()
    classes = purity_classes(positional, symbolic)
    for step, asked, tau, name in zip(steps, queries, taus, classes, strict=True):
        if step == last and asked == queries[0]:
            counted.setdefault(tau, Counter())[name] += 1
    return counted


def _last_accuracy(file: Path) -> float | None:
    steps, shares = _columns(file, "step", "accuracy")
    last = max(steps)
    shares = [share for step, share in zip(steps, shares, strict=True) if step == last]
    mean = sum(shares) / len(shares)
    return mean if 0 <= mean <= 1 else None


def _accuracy(file: Path) -> float | None:
    (answers,) = _columns(file, "correct")
    return sum(answers) / len(answers) if answers and set(answers) <= {0, 1} else None


def _columns(file: Path, *names: str) -> list[list[Any]]:
    with pq.ParquetFile(file) as table:
        about = table.metadata
        sizes = [about.row_group(k).total_byte_size for k in range(about.num_row_groups)]
        if about.num_rows > MOST_ROWS or sum(sizes) > MOST_BYTES:
            raise ValueError("too large for a glimpse")
        read = table.read(list(names), use_threads=False)
        return [read[name].to_pylist() for name in names]


def _seen(folder: Path, name: str, run: RunRecord, look: Callable[[Path], Any]) -> Any:
    """What a table says, if it is one of this run's."""
    if name not in run.files:
        return None
    file = folder / name
    try:
        about = plain(file).stat()
        return _looked(file, look, about.st_mtime_ns, about.st_size)
    except Exception:  # a stranger's table, which fits its checksum
        return None


@lru_cache(maxsize=20_000)
def _looked(file: Path, look: Callable[[Path], Any], changed: int, size: int) -> Any:
    return look(file) if size <= MOST_BYTES else None


# A run that is not finished: whether it is going on, and how far it is.


RECENT_S = 15 * 60
"""An unfinished run that has written nothing for this long is not called running."""
PATIENCE = 3
"""Nor one that has written nothing for so many times as long as its last piece took, if that is longer."""
MOST_LOG_BYTES = 64_000_000


def last_change(folder: Path) -> float:
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


def is_recent(folder: Path) -> bool:
    """Whether something was written a short while ago, or not much longer than it took before: who writes may be at work."""
    quiet = datetime.now(UTC).timestamp() - last_change(folder)
    return quiet < RECENT_S or quiet < PATIENCE * _between_pieces(folder)


def _between_pieces(folder: Path) -> float:
    """How long the last piece took, seen from when it and the one before were finished."""
    try:
        ends = sorted(marker.stat().st_mtime for marker in (folder / PIECES).glob(f"*/*{DONE}"))
    except OSError:
        return 0.0
    return ends[-1] - ends[-2] if len(ends) > 1 else 0.0


def progress_of(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a training run so far; a line still being written is left for the next time."""
    rows = []
    try:
        file = plain(folder / LOG)
        if file.stat().st_size > MOST_LOG_BYTES:
            return []
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
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


def how_far(
    folder: Path, settings: dict[str, Any], rows: list[dict[str, Any]] | None = None
) -> tuple[str, float | None]:
    """How far an unfinished run is, in words, and as a share where its settings or its log say how long it will be; `rows` are its
    evaluations, where they have been read."""
    if isinstance(items := settings.get("items"), dict) and items:  # of a sweep
        ended = sum((folder / Path(str(name)).name / ITEM_NOTE).is_file() for name in items)
        return f"{ended} of {len(items)} items ended", ended / len(items)
    rows, steps = progress_of(folder) if rows is None else rows, settings.get("steps")
    listed = [one for one in steps if type(one) is int] if isinstance(steps, list) else []
    if rows:
        step, whole = rows[-1]["step"], max(listed, default=None) if isinstance(steps, list) else steps
        whole = rows[-1].get("of") or whole  # whoever watches a training may know it without having set it
        known = type(whole) is int and whole > 0
        return f"step {step} of {whole if known else '?'}", max(0, min(step, whole)) / whole if known else None
    try:
        parts = sum(1 for _ in (folder / PIECES).glob(f"*/*{DONE}"))
    except OSError:
        parts = 0
    if listed:
        return f"{parts} of {len(listed)} steps finished", min(parts / len(listed), 1.0)
    return f"{parts} part{'' if parts == 1 else 's'} finished", None


def classes_so_far(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Heads by class at the last evaluation, where it says so."""
    said = rows[-1].get("classes") if rows else None
    counts = said if isinstance(said, dict) else {}
    return {name: counts[name] for name in CLASSES if type(counts.get(name)) is int and counts[name] > 0}


def so_far(folder: Path, settings: dict[str, Any]) -> str:
    """The same as a sentence, with what the last evaluation gave."""
    rows = progress_of(folder)
    sentence = how_far(folder, settings, rows)[0]
    accuracy = rows[-1].get("accuracy") if rows else None
    if isinstance(accuracy, dict) and accuracy.keys() == {"0"}:  # a task without hops
        sentence += f"; accuracy on the prompts {_short(accuracy['0'])}"
    elif isinstance(accuracy, dict) and accuracy:
        sentence += "; accuracy by hops " + ", ".join(f"{h}: {_short(a)}" for h, a in accuracy.items())
    if classes := classes_so_far(rows):
        sentence += "; heads: " + ", ".join(f"{count} {name}" for name, count in classes.items())
    if rows and rows[-1].get("loss") is not None:
        sentence += f"; loss {_short(rows[-1]['loss'])}"
    return sentence


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
