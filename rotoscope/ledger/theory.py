"""The theorems, constructions and errata: one claim per statement of the theory lab."""

from __future__ import annotations

from functools import partial

from rotoscope.experiments.theory.run import STATEMENTS
from rotoscope.ledger.claim import Claim
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.verdicts import Finding, of_statement

RULE = (
    "reproduced if the check finds no exception; corrected if it holds after the repair that stands beside it"
)
REASON = "one counterexample is enough; only what is known to be printed can be false as printed"


def _statement(name: str, workshop: Workshop) -> Finding:
    row = workshop.theory(name).statements.set_index("name").loc[name]
    note = ""
    if row["verdict"] != "holds":
        checked = "checked" if row["correction_holds"] else "NOT confirmed"
        note = f"instead: {row['correction']} ({checked}); against it: {row['counterexample']}"
    verdict = of_statement(row["verdict"], STATEMENTS[name].says, bool(row["correction_holds"]))
    return Finding(row["figure"], verdict, note=note)


CLAIMS = [
    Claim(
        id=f"theory-{statement.name}",
        paper="p1" if "P1" in statement.source else "p2",
        where=statement.source.split(maxsplit=1)[1],
        says=statement.says,
        learned=False,
        statement=statement.claim,
        paper_value="proved" if "Theorem" in statement.source or "Corollary" in statement.source else "stated",
        rule=RULE,
        reason=REASON,
        needs="theory",
        compute=partial(_statement, statement.name),
    )
    for statement in STATEMENTS.values()
]
