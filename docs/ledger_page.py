"""Write the ledger as it stands into docs/ledger.md, README.md and tests/ledger/expected.json.

python docs/ledger_page.py RUN      # a finished run of rotoscope reproduce; rows that it lacks stay as they are
python docs/ledger_page.py RUN --was   # also note in the claims' TOML which verdict each row had before
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from rotoscope.ledger.claim import SAYS, claim_words
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.result import Ledger, markdown_table

ROOT = Path(__file__).parents[1]
EXPECTED = ROOT / "tests" / "ledger" / "expected.json"
REMOVED = {"p2-letter-purity-strict": ("not reproduced", "no printed figure stands behind it")}
"""Claims that are no longer judged: their last verdict, and why."""


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


def write_pages(ledger: Ledger) -> None:
    """The tables of the ledger's page, and README's counts."""
    rows = ledger.changes().itertuples(index=False)
    removed = [(name, was, "no longer a claim", why) for name, (was, why) in REMOVED.items()]
    changed = markdown_table(("claim", "before", "now", "why"), [*rows, *removed])
    page = (ROOT / "docs" / "ledger.md").read_text("utf-8")
    page = section(section(page, "ledger", ledger.markdown()), "changes", changed)
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
