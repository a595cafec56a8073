"""Judging claims: all of them, those of one paper, or one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.theory.run import STATEMENTS
from rotoscope.ledger import (
    ours_depths,
    ours_models,
    p1_canonical,
    p1_models,
    p2_layers,
    p2_learning,
    p2_lengths,
)
from rotoscope.ledger.claim import COSTS, Claim, Ledger
from rotoscope.ledger.claim_runs import ClaimRuns
from rotoscope.ledger.verdicts import Finding, of_statement
from rotoscope.progress import progress_bar
from rotoscope.runs.files import write_text
from rotoscope.runs.run import Run
from rotoscope.settings import nearest


def _statement(name: str, runs: ClaimRuns) -> Finding:
    """What the check of one theorem, construction or erratum found."""
    row = runs.theory(name).statements.set_index("name").loc[name]
    note = ""
    if row["verdict"] != "holds":
        checked = "checked" if row["correction_holds"] else "NOT confirmed"
        note = f"instead: {row['correction']} ({checked}); against it: {row['counterexample']}"
    verdict = of_statement(row["verdict"], STATEMENTS[name].says, bool(row["correction_holds"]))
    return Finding(row["figure"], verdict, note=note)


THEORY = [
    Claim(
        id=f"theory-{statement.name}",
        paper="p1" if "P1" in statement.source else "p2",
        section=statement.source.split(maxsplit=1)[1],
        says=statement.says,
        kind="theorem",
        statement=statement.claim,
        paper_value="proved" if "Theorem" in statement.source or "Corollary" in statement.source else "stated",
        rule="reproduced if the check finds no exception; corrected if it holds after the repair that stands beside it",
        reason="one counterexample is enough; only what is known to be printed can be false as printed",
        needs="theory",
        compute=partial(_statement, statement.name),
    )
    for statement in STATEMENTS.values()
]
"""The theorems, constructions and errata: one claim per statement of the theory lab."""
EMPIRICAL = (p1_models, p1_canonical, p2_learning, p2_layers, p2_lengths, ours_depths, ours_models)
CLAIMS: dict[str, Claim] = {
    claim.id: claim for claim in (*THEORY, *(claim for module in EMPIRICAL for claim in module.CLAIMS))
}


def chosen(selection: str | None = None) -> list[Claim]:
    """The claims meant by "p1", "p2", "ours", an id, or nothing (all)."""
    claims = list(CLAIMS.values())
    if selection is None:
        return claims
    chosen = [claim for claim in claims if selection in (claim.paper, claim.id)]
    if not chosen:
        hint = nearest(selection, [claim.id for claim in claims])
        raise RotoscopeError(
            f"no claim called '{selection}': {hint}give p1, p2, ours or a claim's id; there are {len(claims)}"
        )
    return chosen


def reproduce(
    selection: str | None = None,
    cost: Literal["quick", "cpu", "gpu"] = "quick",
    *,
    out: str | Path,
    subject: Any = "smollm2",
    one_hop: Sequence[str | Path] = (),
    device: str | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Ledger:
    """Judge claims and write the ledger. Runs are kept under `out` and used again; a stopped command goes on.

    `quick` works from the embedded models and their stored runs, `cpu` computes in full what a CPU can, `gpu`
    also trains. `subject` is the language model P1's claims are put to, `one_hop` are finished runs of frontier
    models on one-hop questions (`rotoscope ask --endpoint`), which P2's Table 3 is judged on.
    """
    if cost not in COSTS:
        raise RotoscopeError(f"unknown cost '{cost}'; choose {', '.join(COSTS)}")
    claims = chosen(selection)
    runs = ClaimRuns(Path(out), cost, subject, device, one_hop)
    settings = {
        "which": selection or "all",
        "cost": cost,
        "subject": str(subject if isinstance(subject, (str, Path)) else runs.subject.name),
        "one_hop": [str(run) for run in one_hop],
        "claims": [claim.id for claim in claims],
    }
    run = Run(Ledger, settings, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    with progress_bar("claims", len(claims), show_progress) as bar:
        for claim in claims:
            run.piece(claim.id, partial(_judged, claim, runs))
            bar.advance()
    ledger = run.finish(timings={"total_s": float(run.result.rows["seconds"].sum())})
    write_text(Path(out) / "ledger.md", ledger.markdown())
    return ledger


def _judged(claim: Claim, runs: ClaimRuns) -> dict[str, pd.DataFrame]:
    began = time.perf_counter()
    finding = claim.compute(runs)
    model = str(runs.source if isinstance(runs.source, (str, Path)) else runs.subject.name)
    row = {
        "id": claim.id,
        "paper": claim.paper,
        "kind": claim.kind,
        "place": claim.place,
        "statement": claim.statement,
        "paper_value": claim.paper_value,
        "our_value": finding.value,
        "null_value": finding.null,
        "verdict": finding.verdict,
        "judged": claim.rule,
        "reason": claim.reason,
        "restated": claim.restated,
        "was": claim.was,
        "note": finding.note,
        "rests_on": runs.rests_on(claim.needs) if finding.value else "",
        "cost": claim.cost,
        "command": claim.command(runs.cost, model),
        "recompute": claim.recompute(runs.cost, model),
        "seconds": time.perf_counter() - began,
    }
    return {"ledger": pd.DataFrame([row])}
