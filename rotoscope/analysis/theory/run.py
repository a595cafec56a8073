"""Running statements, one or all."""

from __future__ import annotations

import difflib
import time
from pathlib import Path

import pandas as pd

from rotoscope.analysis.theory.statements import STATEMENTS
from rotoscope.errors import RotoscopeError
from rotoscope.progress import progress
from rotoscope.results.folder import RunFolder, versions
from rotoscope.results.theory import TheoryRun

__all__ = ["theory"]


def theory(
    name: str | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> TheoryRun:
    """Put the papers' statements to the test: all of them, or the one that is named."""
    if name is not None and name not in STATEMENTS:
        close = difflib.get_close_matches(name, STATEMENTS, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise RotoscopeError(f"no statement called '{name}': {hint}there are {', '.join(STATEMENTS)}")
    chosen = [STATEMENTS[name]] if name is not None else list(STATEMENTS.values())
    settings = {"statements": [statement.name for statement in chosen]}
    folder = RunFolder(out, TheoryRun.kind, settings, overwrite=overwrite) if out is not None else None
    if folder is not None and folder.complete:
        return TheoryRun.open(folder.path)
    if folder is not None:
        folder.begin()
    rows = []
    with progress("checking", len(chosen), show_progress) as bar:
        for statement in chosen:
            began = time.perf_counter()
            evidence = statement.check()
            rows.append(
                {
                    "name": statement.name,
                    "source": statement.source,
                    "claim": statement.claim,
                    "verdict": statement.verdict(evidence),
                    "checked": evidence.checked,
                    "figure": evidence.figure,
                    "correction": statement.correction or "",
                    "correction_holds": evidence.corrected,
                    "counterexample": evidence.counterexample or "",
                    "seconds": time.perf_counter() - began,
                }
            )
            bar.advance()
    tables = {"statements": pd.DataFrame(rows)}
    if folder is not None:
        return TheoryRun(folder.finish(tables, warnings=[]), tables)
    return TheoryRun({"settings": settings, "versions": versions(), "warnings": []}, tables)
