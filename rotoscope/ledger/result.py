"""The ledger: one row per claim of the papers."""

from __future__ import annotations

from functools import cached_property

import pandas as pd

from rotoscope.experiments.page_data import PageRun, Tab, verdict_tab
from rotoscope.runs.result import SavedRun

PAPERS = {"p1": "P1", "p2": "P2", "ours": "this project"}
"""Who says a claim, as a reader knows them."""


class Ledger(SavedRun):
    """Claims with the paper's value, ours, the null's, the verdict and the command behind it."""

    kind = "ledger"

    @cached_property
    def rows(self) -> pd.DataFrame:
        """One row per claim: the paper's value, ours, the null's, rule, verdict and the command behind it."""
        return self.tables["ledger"]

    def counts(self) -> pd.Series:
        """How many claims have each verdict."""
        return self.rows["verdict"].value_counts()

    def markdown(self) -> str:
        """The ledger as a Markdown table, the verdict beside the claim: in sight on a narrow screen.

        How stored runs were made, and the command of every row, stand in the table alone.
        """
        lines = [
            "| claim | verdict | statement | paper's value | ours | null | paper | rests on |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in self.rows.itertuples():
            ours = row.our_value + (f" ({row.note})" if row.note else "")
            cells = (
                row.id,
                row.verdict,
                row.statement,
                row.paper_value,
                ours,
                row.null_value,
                f"{PAPERS.get(row.paper, row.paper)}, {row.place}",
                row.rests_on.split(" (")[0],
            )
            lines.append("| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |")
        return f"{len(self.rows)} claims: {self._counted()}.\n\n" + "\n".join(lines) + "\n"

    def _counted(self) -> str:
        return ", ".join(f"{number} {verdict}" for verdict, number in self.counts().items())

    def __repr__(self) -> str:
        return f"Ledger({self._counted()})"


def ledger_tab(page_run: PageRun) -> Tab | None:
    """The claims with their verdicts."""
    front = ("id", "verdict", "paper", "place", "statement", "paper_value", "our_value", "null_value")
    return verdict_tab(page_run, "ledger", "Claims", front)
