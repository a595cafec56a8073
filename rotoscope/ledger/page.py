"""The ledger's tab: a row per claim, which opens onto its rule, every model's verdict and the tables it rests on."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pandas as pd

from rotoscope.experiments.page_data import PageRun, Tab, table, verdict_tab
from rotoscope.experiments.registry import result_class
from rotoscope.ledger.claim import PAPERS, Ledger
from rotoscope.ledger.language_figures import STORED
from rotoscope.runs.record import RunRecord

FRONT = ("id", "verdict", "paper", "place", "statement", "paper_value", "our_value", "null_value")
LABELS = {
    "id": "claim",
    "place": "where",
    "paper_value": "the paper's figure",
    "our_value": "our figure",
    "null_value": "models that learned nothing",
    "judged": "rule",
    "reason": "why these limits",
    "restated": "why the rule was restated",
    "was": "verdict under the earlier rule",
    "rests_on": "rests on",
    "cost": "cost of computing it",
    "command": "gives this row",
    "recompute": "computes it anew",
}
"""Columns in English."""
BEHIND = ("judged", "note", "reason", "rests_on", "command", "recompute", "was", "restated", "kind", "cost")
EVIDENCE: dict[str, tuple[str, tuple[int, ...]]] = {
    "canonical": ("canonical", (0, 2)),
    "training": ("{task}", (2, 1)),
    "roles": ("{task}/roles", (0, 1)),
    "geometry": ("{task}/geometry", (0,)),
    "lengths": ("lengths", (0,)),
    "restricted mini": ("restricted-mini", (0,)),
    "restricted": ("restricted-paper", (0,)),
    "steered": ("steering/either", (0,)),
    "copying": ("language/copying", (0,)),
}
"""Where the stored run of a need lies, and which of its summaries are shown."""
MOST_ROWS = 24
MODEL = re.compile(r"(?:^|; )([^;:()]+) \(([\d.]+) right\): (.*?)(?=; [^;:()]+ \([\d.]+ right\): |$)")
"""A model's part of a figure: its name, how much it gets right, its figure and its verdict."""


def ledger_tab(page_run: PageRun) -> Tab | None:
    """The claims with their verdicts."""
    if "ledger" not in page_run.tables:
        return None
    tab = verdict_tab(page_run, "ledger", "Claims", [*FRONT, *BEHIND])
    rows = page_run.tables["ledger"]
    if tab is None or "id" not in rows:
        return tab
    statements = tab["statements"]
    if "paper" in statements["names"]:
        at = statements["names"].index("paper")
        statements["columns"][at] = [PAPERS.get(paper, paper) for paper in statements["columns"][at]]
    ledger = Ledger(page_run.run, page_run.tables)
    counted = page_run.attempt("the counts by kind", ledger.kinds_text) if "kind" in rows else None
    return tab | {
        "front": sum(name in rows for name in FRONT),
        "labels": LABELS,
        "headline": f"{len(rows)} claims. {counted}." if counted else "",
        **(page_run.attempt("what the claims rest on", lambda: _behind(rows)) or {}),
    }


def _behind(rows: pd.DataFrame) -> dict[str, Any]:
    """By claim: the models' own verdicts, and the tables of the stored run."""
    models: dict[str, list[list[str]]] = {}
    evidence: dict[str, str] = {}
    tables: dict[str, list[Tab]] = {}
    for row in rows.to_dict("records"):
        name = str(row["id"])
        models[name] = [list(part) for part in MODEL.findall(str(row.get("our_value") or ""))]
        stored = _stored_run(name) if str(row.get("rests_on", "")).startswith("stored") else None
        if stored is not None:
            evidence[name] = stored[0]
            tables[stored[0]] = list(_tables(*stored))
    return {
        "models": {name: parts for name, parts in models.items() if parts},
        "evidence": evidence,
        "stored_tables": tables,
    }


def _stored_run(name: str) -> tuple[str, tuple[int, ...]] | None:
    """The stored run that a claim is judged on, below the folder of stored runs, and which of its summaries are shown."""
    from rotoscope.ledger.judge import CLAIMS

    if name not in CLAIMS or CLAIMS[name].needs not in EVIDENCE:
        return None
    folder, summaries = EVIDENCE[CLAIMS[name].needs]
    return folder.format(task="letter" if "letter" in name else "number"), summaries


@cache
def _tables(folder: str, chosen: tuple[int, ...]) -> tuple[Tab, ...]:
    """The summaries of a stored run."""
    record = RunRecord.read(STORED / folder)
    kind = result_class(record.kind)
    if kind is None:
        return ()
    run = kind.open(STORED / folder)
    summaries = run.available_summaries()
    return tuple(
        table(summaries[number].make(), summaries[number].title, most=MOST_ROWS)
        for number in chosen
        if number < len(summaries)
    )
