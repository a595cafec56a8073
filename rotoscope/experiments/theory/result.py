"""What became of the papers' statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rotoscope.experiments.page_data import PageRun, Tab, verdict_tab
from rotoscope.runs.result import SavedRun, Table

if TYPE_CHECKING:
    from rotoscope.terminal import Screen

HOLDS = "holds"
LISTED = 8
"""Statements on the screen; those that do not hold as printed come first."""


class TheoryRun(SavedRun):
    """A table of statements with verdict, what was checked and the number that decides."""

    kind = "theory"

    statements = Table(
        "One row per statement: verdict, what was checked, the number that decides, correction, counterexample."
    )

    def screen(self) -> Screen:
        """What a terminal shows: one statement in full, of several the verdicts."""
        from rotoscope.terminal import Grid, Screen

        rows = self.statements
        counts = ", ".join(f"{number} {verdict}" for verdict, number in rows["verdict"].value_counts().items())
        details = [("Statements", lambda: rows[["name", "verdict", "source", "claim", "checked", "figure"]])]
        if len(rows) == 1:
            return Screen(found=statement_lines(rows.iloc[0].to_dict()), details=details)
        first = rows.sort_values("verdict", key=lambda verdicts: verdicts == HOLDS, kind="stable")
        grid = Grid.of(first[["name", "verdict", "source"]], LISTED)
        return Screen(found=[f"{len(rows)} statements: {counts}", grid], details=details)

    def __repr__(self) -> str:
        counts = self.statements["verdict"].value_counts()
        return f"TheoryRun({', '.join(f'{number} {verdict}' for verdict, number in counts.items())})"


def statement_lines(row: dict[str, Any]) -> list[str]:
    """One statement: the claim, what is against it, what was checked and what was found."""
    lines = [("claim", row["claim"])]
    if row["verdict"] != HOLDS:
        state = "checked, holds" if row["correction_holds"] else "checked, FAILS"
        lines += [("against it", row["counterexample"]), (f"instead ({state})", row["correction"])]
    lines += [("checked", row["checked"]), ("found", row["figure"])]
    head = f"{row['name']}: {row['verdict']} ({row['source']}, {row['seconds']:.1f} s)"
    return [head, *(f"  {title}: {text}" for title, text in lines)]


def theory_tab(page_run: PageRun) -> Tab | None:
    """The statements with their verdicts."""
    return verdict_tab(page_run, "statements", "Statements", ("name", "verdict", "source", "claim", "figure"))
