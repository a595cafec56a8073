"""What a list says of a finished run without opening it: its classes and its accuracy, from two small tables.

Files may be anybody's: what is large, damaged or not what the run wrote is not read, and the list says nothing of it. A file
that has not changed is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from rotoscope.maths.purity import CLASSES
from rotoscope.results.files import checksum, plain
from rotoscope.results.record import RunRecord

MOST_BYTES = 16_000_000
MOST_ROWS = 500_000
CLASSED = {"profile": "heads.parquet", "depths": "turns.parquet"}
"""Where the classes of heads stand, by kind of run."""
ANSWERS = "answers.parquet"


def classes_of(folder: Path, run: RunRecord) -> dict[str, int]:
    """How many heads of each class there are at the first tau, classes without any left out."""
    file = CLASSED.get(run.kind)
    return (_seen(folder, file, run, _classes) if file else None) or {}


def accuracy_of(folder: Path, run: RunRecord) -> float | None:
    """How often the model itself answered rightly."""
    found: float | None = _seen(folder, ANSWERS, run, _accuracy)
    return found


def _classes(file: Path) -> dict[str, int]:
    rows = _columns(file, "tau", "head_class")
    counts = rows["head_class"][rows["tau"] == rows["tau"].iloc[0]].value_counts()
    return {name: int(counts[name]) for name in CLASSES if name in counts}


def _accuracy(file: Path) -> float | None:
    correct = _columns(file, "correct")["correct"].astype(float)
    return float(correct.mean()) if len(correct) and 0 <= correct.min() <= correct.max() <= 1 else None


def _columns(file: Path, *names: str) -> pd.DataFrame:
    with pq.ParquetFile(file) as table:
        about = table.metadata
        sizes = [about.row_group(k).total_byte_size for k in range(about.num_row_groups)]
        if about.num_rows > MOST_ROWS or sum(sizes) > MOST_BYTES:
            raise ValueError("too large for a glimpse")
        return table.read(list(names)).to_pandas()


def _seen(folder: Path, name: str, run: RunRecord, look: Callable[[Path], Any]) -> Any:
    """What a table says, if it is one of this run's."""
    expected = run.files.get(name)
    if not run.complete or expected is None:
        return None
    file = folder / name
    try:
        about = plain(file).stat()
        return _looked(file, look, expected, about.st_mtime_ns, about.st_size)
    except Exception:  # a file made by a stranger: the run's page says what is wrong with it
        return None


@lru_cache(maxsize=20_000)
def _looked(file: Path, look: Callable[[Path], Any], expected: str, changed: int, size: int) -> Any:
    return look(file) if size <= MOST_BYTES and checksum(file) == expected else None
