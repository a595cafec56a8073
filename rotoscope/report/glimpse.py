"""What a list says of a finished run without opening it: whether it is damaged, its classes and its accuracy.

Files may be anybody's: large ones are not read, nor tables with other columns. A file that has not changed is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rotoscope.maths.purity import CLASSES, purity_classes
from rotoscope.results.files import WITH_SETTINGS, checksum, plain
from rotoscope.results.record import RunRecord

MOST_BYTES = 16_000_000
MOST_ROWS = 500_000
CLASSED = {
    "profile": "heads.parquet",
    "depths": "turns.parquet",
    "dynamics": "scores.parquet",
    "training": "scores.parquet",
}
"""Where the classes of heads stand, by kind of run; those of a training are made from its scores."""
ANSWERED = {"dynamics": "accuracy.parquet", "training": "metrics.parquet"}
"""Where a training's accuracy stands; that of other runs is in their answers."""
ANSWERS = "answers.parquet"


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
    file, taus = CLASSED.get(run.kind), run.settings.get("tau")
    look = _last_classes if run.kind in ANSWERED else _classes
    counted: dict[Any, Counter[Any]] = (_seen(folder, file, run, look) if file else None) or {}
    first = taus[0] if isinstance(taus, list) and taus and isinstance(taus[0], float) else None
    counts = counted.get(first) or next(iter(counted.values()), Counter())
    return {name: counts[name] for name in CLASSES if counts[name]}


def accuracy_of(folder: Path, run: RunRecord) -> float | None:
    """How often the model itself answered rightly; of a training, at its end, in the mean over hops."""
    look = _last_accuracy if run.kind in ANSWERED else _accuracy
    found: float | None = _seen(folder, ANSWERED.get(run.kind, ANSWERS), run, look)
    return found


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
