"""Finding checkpoints in a folder, whoever wrote them."""

from __future__ import annotations

import re
from pathlib import Path

from rotoscope.errors import ModelError

STEP = re.compile(r"(?:checkpoint|step|global_step)[-_]?(\d+)$")


def find_checkpoints(folder: Path) -> dict[int, Path]:
    """Training step -> checkpoint, for folders called checkpoint-N, step-N or global_step-N, in order."""
    if not folder.is_dir():
        raise ModelError(f"no such folder: {folder}")
    found = {}
    for place in folder.iterdir():
        step = STEP.fullmatch(place.name)
        if step and (place / "config.json").is_file():
            found[int(step.group(1))] = place
    if not found:
        raise ModelError(
            f"{folder} holds no checkpoints: folders called checkpoint-N or step-N, each with a config.json, are wanted"
        )
    return dict(sorted(found.items()))
