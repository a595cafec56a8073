"""Running statements, one or all."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pandas as pd

from rotoscope.analysis.theory.statement import Statement
from rotoscope.analysis.theory.statements import STATEMENTS
from rotoscope.errors import RotoscopeError
from rotoscope.progress import progress_bar
from rotoscope.results.run import Run
from rotoscope.results.saved import Tables
from rotoscope.results.theory import TheoryRun
from rotoscope.settings.base import nearest


def run_theory(
    name: str | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> TheoryRun:
    """Put the papers' statements to the test: all of them, or the one that is named."""
    if name is not None and name not in STATEMENTS:
        raise RotoscopeError(
            f"no statement called '{name}': {nearest(name, STATEMENTS)}there are {', '.join(STATEMENTS)}"
        )
    chosen = [STATEMENTS[name]] if name is not None else list(STATEMENTS.values())
    settings = {"statements": [statement.name for statement in chosen]}
    run = Run(TheoryRun, settings, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    with progress_bar("checking", len(chosen), show_progress) as bar:
        for statement in chosen:
            run.piece(statement.name, partial(_checked, statement))
            bar.advance()
    return run.finish()


def _checked(statement: Statement) -> Tables:
    began = time.perf_counter()
    evidence = statement.check()
    row = {
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
    return {"statements": pd.DataFrame([row])}
