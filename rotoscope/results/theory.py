"""What became of the papers' statements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from rotoscope.errors import RunError
from rotoscope.results.folder import read_run, read_table

__all__ = ["TheoryRun"]


class TheoryRun:
    """A table of statements with verdict, what was checked and the number that decides."""

    kind = "theory"

    def __init__(self, run: dict[str, Any], tables: dict[str, pd.DataFrame]) -> None:
        self.run = run
        self.tables = tables

    @property
    def statements(self) -> pd.DataFrame:
        return self.tables["statements"]

    @classmethod
    def open(cls, path: str | Path) -> TheoryRun:
        folder = Path(path)
        run = read_run(folder)
        if not run.get("complete"):
            raise RunError(f"{folder} is not finished; run the same command again")
        return cls(run, {"statements": read_table(folder / "statements.parquet")})

    def __repr__(self) -> str:
        counts = self.statements["verdict"].value_counts()
        return f"TheoryRun({', '.join(f'{number} {verdict}' for verdict, number in counts.items())})"
