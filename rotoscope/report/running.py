"""A run that is not finished: whether it is going on, and how far it is."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rotoscope.maths.purity import CLASSES
from rotoscope.results.files import plain
from rotoscope.results.items import ITEM
from rotoscope.results.place import LOG, PIECES
from rotoscope.results.record import RUN
from rotoscope.results.run import DONE

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
        ended = sum((folder / Path(str(name)).name / ITEM).is_file() for name in items)
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
