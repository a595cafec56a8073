"""Judging claims: all of them, those of one paper, or one."""

from __future__ import annotations

import difflib
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.papers import canonical, costs, lengths, models, multihop, theory
from rotoscope.papers.claim import COSTS, Claim
from rotoscope.papers.workshop import Workshop
from rotoscope.progress import progress
from rotoscope.results.folder import RunFolder, read_table, replace_file, write_table
from rotoscope.results.ledger import Ledger

__all__ = ["CLAIMS", "chosen", "reproduce"]

CLAIMS: dict[str, Claim] = {
    claim.id: claim for room in (theory, models, canonical, multihop, lengths, costs) for claim in room.CLAIMS
}


def chosen(which: str | None = None) -> list[Claim]:
    """The claims meant by "p1", "p2", an id, or nothing (all)."""
    claims = list(CLAIMS.values())
    if which is None:
        return claims
    found = [claim for claim in claims if which in (claim.paper, claim.id)]
    if not found:
        close = difflib.get_close_matches(which, [claim.id for claim in claims], n=1, cutoff=0.3)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise RotoscopeError(
            f"no claim called '{which}': {hint}give p1, p2 or a claim's id; there are {len(claims)}"
        )
    return found


def reproduce(
    which: str | None = None,
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

    `quick` works from the embedded models and their stored runs, `cpu` computes in full what a CPU can, `gpu` also trains.
    `subject` is the language model P1's claims are put to, `one_hop` are finished runs of frontier models on one-hop
    questions (`rotoscope lengths --endpoint`), which P2's Table 3 is judged on.
    """
    if cost not in COSTS:
        raise RotoscopeError(f"unknown cost '{cost}'; choose {', '.join(COSTS)}")
    claims = chosen(which)
    workshop = Workshop(Path(out), cost, subject, device, one_hop)
    settings = {
        "which": which or "all",
        "cost": cost,
        "subject": str(workshop.source_name),
        "one_hop": [str(run) for run in one_hop],
        "claims": [claim.id for claim in claims],
    }
    folder = RunFolder(out, Ledger.kind, settings, overwrite=overwrite)
    if folder.complete:
        return Ledger.open(folder.path)
    folder.begin()
    rows = []
    with progress("claims", len(claims), show_progress) as bar:
        for claim in claims:
            file = folder.piece(f"{claim.id}.parquet")
            if not file.exists():
                write_table(file, pd.DataFrame([_judge(claim, workshop)]))
            rows.append(read_table(file))
            bar.advance()
    table = pd.concat(rows, ignore_index=True)
    run = folder.finish({"ledger": table}, timings={"total_s": float(table["seconds"].sum())}, warnings=[])
    ledger = Ledger(run, {"ledger": table})
    replace_file(Path(out) / "ledger.md", lambda file: file.write_text(ledger.markdown(), encoding="utf-8"))
    if importlib.util.find_spec("plotly") is not None:  # the page needs an extra; the ledger does not
        from rotoscope.report import write_report

        write_report(Path(out) / "report.html", ledger)
    return ledger


def _judge(claim: Claim, workshop: Workshop) -> dict[str, Any]:
    began = time.perf_counter()
    found = claim.compute(workshop)
    return {
        "id": claim.id,
        "paper": claim.paper,
        "place": claim.where,
        "statement": claim.statement,
        "paper_value": claim.paper_value,
        "our_value": found.value,
        "null_value": found.null,
        "verdict": found.verdict,
        "judged": claim.judged,
        "note": found.note,
        "rests_on": found.rests_on if found.value else "",
        "cost": claim.cost,
        "command": claim.command(workshop.cost, str(workshop.source_name)),
        "anew": claim.anew(workshop.cost, str(workshop.source_name)),
        "seconds": time.perf_counter() - began,
    }
