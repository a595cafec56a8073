"""Which folders hold runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rotoscope.runs.folder import PIECES
from rotoscope.runs.record import RUN

CHECKPOINT = "checkpoint-"
"""How folders of weights begin that a training leaves, often hundreds of them; a run may be called so, too."""


def holds_run(folder: Path) -> bool:
    """Whether there is a `run.json`, whatever it is: one that cannot be read is a run that somebody must hear of."""
    return os.path.exists(folder / RUN)


def folders_in(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those in it as deep as that, in order.

    Links are not followed, nor hidden folders and parts of runs looked into; a checkpoint is one unless it holds a run.
    """
    yield folder
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # removed meanwhile, or not ours to read
        return
    for name in names:
        weights = name.startswith(CHECKPOINT) and not holds_run(folder / name)
        if not name.startswith(".") and name not in (PIECES, RUN) and not weights:
            yield from folders_in(folder / name, depth - 1)
