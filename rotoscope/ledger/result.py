"""The ledger: one row per claim of the papers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import pandas as pd

from rotoscope.ledger.claim import KINDS
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

    def counts_by_kind(self) -> pd.DataFrame:
        """The same by kind of claim: theorems, empirical claims of the papers, by construction, our own, cost."""
        table = pd.crosstab(self.rows["kind"], self.rows["verdict"])
        return table.reindex([kind for kind in KINDS if kind in table.index])

    def kinds_text(self) -> str:
        """The counts in words, one sentence for every kind of claim."""
        sentences = []
        for kind, counts in self.counts_by_kind().iterrows():
            counted = ", ".join(
                f"{n} {verdict}" for verdict, n in counts[counts > 0].sort_values(ascending=False).items()
            )
            sentences.append(f"{counts.sum()} {KINDS[str(kind)]}: {counted}")
        return "; ".join(sentences)

    def changes(self) -> pd.DataFrame:
        """The claims whose verdict is another than under their earlier rule, with the reason for the new rule."""
        rows = self.rows[(self.rows["was"] != "") & (self.rows["was"] != self.rows["verdict"])]
        return rows[["id", "was", "verdict", "restated"]].reset_index(drop=True)

    def markdown(self) -> str:
        """The ledger as a Markdown table, the verdict beside the claim: in sight on a narrow screen.

        How stored runs were made, and the command of every row, stand in the table alone.
        """
        head = ("claim", "verdict", "statement", "paper's value", "ours", "null", "paper", "rests on")
        rows = [
            (
                row.id,
                row.verdict,
                row.statement,
                row.paper_value,
                row.our_value + (f" ({row.note})" if row.note else ""),
                row.null_value,
                f"{PAPERS.get(row.paper, row.paper)}, {row.place}",
                row.rests_on.split(" (")[0],
            )
            for row in self.rows.itertuples()
        ]
        return f"{len(self.rows)} claims. {self.kinds_text()}.\n\n" + markdown_table(head, rows)

    def __repr__(self) -> str:
        counted = ", ".join(f"{number} {verdict}" for verdict, number in self.counts().items())
        return f"Ledger({counted})"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, cells on one line each."""
    cells = ([str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in (head, *rows))
    first, *rest = (f"| {' | '.join(line)} |" for line in cells)
    return "\n".join([first, "|---" * len(head) + "|", *rest]) + "\n"
