"""A run folder as content of a page: a stand-in, replaced by the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.results.folder import read_run
from rotoscope.results.saved import SavedRun

__all__ = ["run_payload"]


def run_payload(source: str | Path | SavedRun) -> dict[str, Any]:
    name = "run" if isinstance(source, SavedRun) else Path(source).name
    problems: list[str] = []
    run: dict[str, Any] = {}
    try:
        run = source.run if isinstance(source, SavedRun) else read_run(Path(source))
    except (RotoscopeError, OSError) as damage:
        problems.append(str(damage))
    kind = str(run.get("kind", "unknown"))
    return {
        "name": name,
        "kind": kind,
        "title": f"{name} ({kind})",
        "complete": bool(run.get("complete", False)),
        "problems": problems,
        "settings": run.get("settings", {}),
        "warnings": run.get("warnings", []),
        "timings": run.get("timings", {}),
        "tabs": [],
    }
