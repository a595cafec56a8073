"""Write the ledger as it stands into docs/ledger.md, README.md and tests/ledger/expected.json.

python docs/ledger_page.py RUN      # a finished run of rotoscope reproduce; rows that it lacks stay as they are
python docs/ledger_page.py RUN --was   # also note in the claims' TOML which verdict each row had before
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pandas as pd

from rotoscope.ledger.claim import KINDS, SAYS, Ledger, claim_words, markdown_table
from rotoscope.ledger.judge import CLAIMS

ROOT = Path(__file__).parents[1]
EXPECTED = ROOT / "tests" / "ledger" / "expected.json"
REMOVED = {"p2-letter-purity-strict": ("not reproduced", "no printed figure stands behind it")}
"""Claims that are no longer judged: their last verdict, and why."""
COLUMNS = {
    "claim": "id",
    "verdict": "verdict",
    "statement": "statement",
    "paper's value": "paper_value",
    "ours": "our_value",
    "null": "null_value",
}
LONGEST = {"our_value": 12, "null_value": 8}
"""Words of a cell that the page shows; the whole text stands in ledger.parquet."""


def write_expected(ledger: Ledger) -> None:
    """Verdict and values of every row; tolerances that were pinned stay."""
    pinned = json.loads(EXPECTED.read_text("utf-8"))
    for row in ledger.rows.to_dict("records"):
        values = {name: row[name] for name in ("verdict", "our_value", "null_value") if row[name]}
        tolerance = pinned.get(row["id"], {}).get("tolerance")
        pinned[row["id"]] = values | ({} if tolerance is None else {"tolerance": tolerance})
    rows = {name: pinned[name] for name in CLAIMS}
    EXPECTED.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", "utf-8")


def note_earlier_verdicts(ledger: Ledger) -> None:
    """In the TOML, `was` for every row whose verdict is another than the pinned one."""
    pinned = json.loads(EXPECTED.read_text("utf-8"))
    now = dict(zip(ledger.rows["id"], ledger.rows["verdict"], strict=True))
    for paper in SAYS:
        file = ROOT / "rotoscope" / "ledger" / f"claims-{paper}.toml"
        text = file.read_text("utf-8")
        for name, words in claim_words().items():
            changed = name in pinned and name in now and pinned[name]["verdict"] != now[name]
            if changed and "was" not in words:
                text = text.replace(f"[{name}]\n", f'[{name}]\nwas = "{pinned[name]["verdict"]}"\n')
        file.write_text(text, "utf-8")
    claim_words.cache_clear()
    ledger.rows["was"] = [claim_words().get(name, {}).get("was", "") for name in ledger.rows["id"]]


def section(page: str, name: str, text: str) -> str:
    """The page with the text between a pair of markers replaced."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    front, _, rest = page.partition(start)
    return f"{front}{start}\n{text.strip()}\n{end}{rest.partition(end)[2]}"


def shortened(text: str, words: int) -> str:
    """The text, or its beginning up to the last comma or semicolon within so many words."""
    if len(text.split()) <= words:
        return text
    start = " ".join(text.split()[:words])
    ends = [m.start() for m in re.finditer(r"[;,] ", start)]
    whole = [end for end in ends if all(start[:end].count(a) == start[:end].count(b) for a, b in ("()", "[]"))]
    start = start[: whole[-1]] if whole else start
    return f"{start} …" if re.search(r"\d", start) else "…"


def columns_of(kind: str, rows: pd.DataFrame) -> dict[str, str]:
    """The page's columns for claims of one kind: without empty ones. Theorems are checked and not measured."""
    columns = {title: name for title, name in COLUMNS.items() if rows[name].any()}
    return dict(list(columns.items())[:3]) if kind == "theorem" else columns


def claim_cells(row: pd.Series, columns: dict[str, str]) -> list[str]:
    """A claim as the page shows it. The null does not repeat the words with which our value begins."""
    ours, null = row["our_value"].split(), row["null_value"].split()
    same = [a == b and not re.search(r"\d", a) for a, b in zip(ours, null, strict=False)]
    cells = dict(row) | {"null_value": " ".join(null[[*same, False].index(False) :])}
    return [shortened(cells[name], LONGEST.get(name, 1000)) for name in columns.values()]


def claims_table(ledger: Ledger) -> str:
    """All claims, a table for every kind."""
    parts = [f"{len(ledger.rows)} claims. {ledger.kinds_text()}."]
    for kind, title in KINDS.items():
        rows = ledger.rows[ledger.rows["kind"] == kind]
        columns = columns_of(kind, rows)
        table = markdown_table(tuple(columns), [claim_cells(row, columns) for _, row in rows.iterrows()])
        parts.append(f"### {title.capitalize()}\n\n{table.strip()}")
    return "\n\n".join(parts)


def changes_table(ledger: Ledger) -> str:
    """The verdicts that changed, a line for every reason. Of several reasons the one that most claims share counts."""
    rows = ledger.changes()
    reasons = rows["restated"].str.split("; ")
    shared = reasons.explode().value_counts()
    rows["reason"] = [max(each, key=lambda reason: shared[reason]) for each in reasons]
    lines = []
    for reason, group in rows.groupby("reason", sort=False):
        changes = [
            f"{was} → {now}: {', '.join(claims['id'])}"
            for (was, now), claims in group.groupby(["was", "verdict"], sort=False)
        ]
        lines.append((reason, "; ".join(changes)))
    removed = [(why, f"{was} → no longer a claim: {name}") for name, (was, why) in REMOVED.items()]
    return markdown_table(("why the rule was restated", "what changed"), [*lines, *removed])


def write_pages(ledger: Ledger) -> None:
    """The tables of the ledger's page, and README's counts."""
    page = (ROOT / "docs" / "ledger.md").read_text("utf-8")
    page = section(section(page, "ledger", claims_table(ledger)), "changes", changes_table(ledger))
    (ROOT / "docs" / "ledger.md").write_text(page, "utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    counts = f"`rotoscope reproduce` judges {len(ledger.rows)} claims: {ledger.kinds_text()}."
    readme = re.sub(r"(?m)^`rotoscope reproduce` judges .*$", lambda _: counts, readme)
    (ROOT / "README.md").write_text(readme, "utf-8")


if __name__ == "__main__":
    run = Ledger.open(sys.argv[1])
    if "--was" in sys.argv:
        note_earlier_verdicts(run)
    write_expected(run)
    if len(run.rows) == len(CLAIMS):
        write_pages(run)
