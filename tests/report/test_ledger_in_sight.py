"""The ledger's verdicts are in sight on a screen of 1,280 pixels: on the page, and in the documentation as built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rotoscope.ledger.claim import Ledger
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.verdicts import VERDICTS
from rotoscope.runs.record import RunRecord
from tests.report.test_browser import Visit
from tests.test_docs import build_site

EXPECTED = Path(__file__).parents[1] / "ledger" / "expected.json"
WIDTH = 1280
CELLS = """(tables) => tables.flatMap((table) => {
  const titles = [...table.rows[0].cells].map((cell) => cell.innerText.trim().toLowerCase()), at = titles.indexOf("verdict");
  return [...table.rows].slice(1).map((row) => row.cells[at]).map((cell) => {
    const inside = document.createRange(); inside.selectNodeContents(cell);
    const box = inside.getBoundingClientRect(); return [cell.innerText.trim(), box.left, box.right];
  });
})"""


def check(cells: list[tuple[str, float, float]]) -> None:
    """The verdict of every claim, each whole between the screen's edges."""
    assert len(cells) == len(CLAIMS)
    assert {verdict for verdict, _, _ in cells} <= set(VERDICTS)
    assert all(0 <= left < right <= WIDTH for _, left, right in cells)


def test_on_the_page(visit: Visit) -> None:
    verdicts = json.loads(EXPECTED.read_text(encoding="utf-8"))
    table = pd.DataFrame(
        [
            {
                "id": name,
                "verdict": verdicts[name]["verdict"],
                "statement": claim.statement,
                "paper_value": claim.paper_value,
                "our_value": verdicts[name].get("our_value", ""),
                "null_value": verdicts[name].get("null_value", ""),
                "place": claim.section,
                "paper": "p1",
                "note": "",
            }
            for name, claim in CLAIMS.items()
        ]
    )
    page = visit(Ledger(RunRecord(kind="ledger"), {"ledger": table}), size=(WIDTH, 800)).page
    check(page.eval_on_selector_all("#panel table", CELLS))


@pytest.mark.slow
def test_in_the_documentation(browser: Any, tmp_path: Path) -> None:
    build_site(tmp_path)
    page = browser.new_page(viewport={"width": WIDTH, "height": 800})
    page.goto((tmp_path / "ledger.html").as_uri())
    check(page.eval_on_selector_all("#claims table", CELLS))
    page.close()
