"""Write the ledger's table into docs/ledger.md and its rows into tests/ledger/expected.json.

python docs/ledger_page.py RUN      # a finished run of rotoscope reproduce; rows that it lacks stay as they are
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pandas as pd

from rotoscope.ledger.result import Ledger

PAGE = Path(__file__).with_name("ledger.md")
EXPECTED = Path(__file__).parents[1] / "tests" / "ledger" / "expected.json"
COUNTS = re.compile(r"^\d+ claims: .*$", re.MULTILINE)


def write_expected(rows: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Verdict and values of every row; tolerances that were pinned stay."""
    pinned = json.loads(EXPECTED.read_text("utf-8"))
    for row in rows.to_dict("records"):
        values = {name: row[name] for name in ("verdict", "our_value", "null_value") if row[name]}
        tolerance = pinned.get(row["id"], {}).get("tolerance")
        pinned[row["id"]] = values | ({} if tolerance is None else {"tolerance": tolerance})
    EXPECTED.write_text(json.dumps(pinned, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return pinned


def write_table(ledger: Ledger, verdicts: list[str]) -> None:
    """Rows of the page's table that the run has, and the counts of all."""
    lines = {
        line.split(" | ")[0].strip("| "): line
        for line in ledger.markdown().splitlines()
        if line.startswith("| ")
    }
    page = PAGE.read_text("utf-8").splitlines()
    page = [
        lines.get(line.split(" | ")[0].strip("| "), line) if line.count(" | ") >= 7 else line for line in page
    ]
    counts = ", ".join(f"{n} {verdict}" for verdict, n in pd.Series(verdicts).value_counts().items())
    PAGE.write_text(COUNTS.sub(f"{len(verdicts)} claims: {counts}.", "\n".join(page)) + "\n", "utf-8")


if __name__ == "__main__":
    run = Ledger.open(sys.argv[1])
    write_table(run, [row["verdict"] for row in write_expected(run.rows).values()])
