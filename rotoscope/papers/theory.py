"""The theorems, constructions and errata: one claim per statement of the theory lab."""

from __future__ import annotations

from functools import partial

from rotoscope.analysis.theory.statements import STATEMENTS
from rotoscope.papers.claim import DIFFERENT, FALSE, NOT, REPRODUCED, Claim, Finding
from rotoscope.papers.workshop import Workshop

OUTCOMES = {"holds": REPRODUCED, "holds as corrected": DIFFERENT, "false as printed": FALSE}

RULE = "reproduced if the check finds no exception; with a difference if it holds under one more condition"


def _statement(name: str, workshop: Workshop) -> Finding:
    table = workshop.theory.statements.set_index("name")
    row = table.loc[name]
    verdict = OUTCOMES[row["verdict"]]
    note = ""
    if verdict in (FALSE, DIFFERENT):
        checked = "checked" if row["correction_holds"] else "NOT confirmed"
        note = f"instead: {row['correction']} ({checked}); against it: {row['counterexample']}"
        verdict = verdict if row["correction_holds"] else NOT
    return Finding(row["figure"], verdict, note=note)


CLAIMS = [
    Claim(
        id=f"theory-{statement.name}",
        paper="p1" if statement.source.startswith("P1") else "p2",
        where=statement.source.split(maxsplit=1)[1],
        statement=statement.claim,
        paper_value="proved" if "Theorem" in statement.source or "Corollary" in statement.source else "stated",
        rule=RULE,
        needs="theory",
        compute=partial(_statement, statement.name),
    )
    for statement in STATEMENTS.values()
]
