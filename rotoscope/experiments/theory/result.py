"""What became of the papers' statements."""

from __future__ import annotations

from rotoscope.experiments.page_data import PageRun, Tab, verdict_tab
from rotoscope.runs.result import SavedRun, Table


class TheoryRun(SavedRun):
    """A table of statements with verdict, what was checked and the number that decides."""

    kind = "theory"

    statements = Table(
        "One row per statement: verdict, what was checked, the number that decides, correction, counterexample."
    )

    def __repr__(self) -> str:
        counts = self.statements["verdict"].value_counts()
        return f"TheoryRun({', '.join(f'{number} {verdict}' for verdict, number in counts.items())})"


def theory_tab(page_run: PageRun) -> Tab | None:
    """The statements with their verdicts."""
    return verdict_tab(page_run, "statements", "Statements", ("name", "verdict", "source", "claim", "figure"))
