"""Judging claims: all of them, those of one paper, or one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.ledger import costs, theory
from rotoscope.ledger import ours_depths as depths
from rotoscope.ledger import ours_models as ours
from rotoscope.ledger import p1_canonical as canonical
from rotoscope.ledger import p1_models as models
from rotoscope.ledger import p2_layers as layers
from rotoscope.ledger import p2_learning as learning
from rotoscope.ledger import p2_lengths as lengths
from rotoscope.ledger.claim import COSTS, Claim
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.result import Ledger
from rotoscope.progress import progress_bar
from rotoscope.runs.files import write_text
from rotoscope.runs.run import Run
from rotoscope.settings import nearest

ROOMS = (theory, models, canonical, learning, layers, lengths, costs, depths, ours)
CLAIMS: dict[str, Claim] = {claim.id: claim for room in ROOMS for claim in room.CLAIMS}


def chosen(which: str | None = None) -> list[Claim]:
    """The claims meant by "p1", "p2", "ours", an id, or nothing (all)."""
    claims = list(CLAIMS.values())
    if which is None:
        return claims
    found = [claim for claim in claims if which in (claim.paper, claim.id)]
    if not found:
        hint = nearest(which, [claim.id for claim in claims])
        raise RotoscopeError(
            f"no claim called '{which}': {hint}give p1, p2, ours or a claim's id; there are {len(claims)}"
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

    `quick` works from the embedded models and their stored runs, `cpu` computes in full what a CPU can, `gpu`
    also trains. `subject` is the language model P1's claims are put to, `one_hop` are finished runs of frontier
    models on one-hop questions (`rotoscope ask --endpoint`), which P2's Table 3 is judged on.
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
    run = Run(Ledger, settings, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    with progress_bar("claims", len(claims), show_progress) as bar:
        for claim in claims:
            run.piece(claim.id, partial(_judged, claim, workshop))
            bar.advance()
    ledger = run.finish(timings={"total_s": float(run.result.rows["seconds"].sum())})
    write_text(Path(out) / "ledger.md", ledger.markdown())
    return ledger


def _judged(claim: Claim, workshop: Workshop) -> dict[str, pd.DataFrame]:
    began = time.perf_counter()
    found = claim.compute(workshop)
    row = {
        "id": claim.id,
        "paper": claim.paper,
        "place": claim.place,
        "statement": claim.statement,
        "paper_value": claim.paper_value,
        "our_value": found.value,
        "null_value": found.null,
        "verdict": found.verdict,
        "judged": claim.rule,
        "reason": claim.reason,
        "note": found.note,
        "rests_on": workshop.rests_on(claim.needs) if found.value else "",
        "cost": claim.cost,
        "command": claim.command(workshop.cost, str(workshop.source_name)),
        "recompute": claim.recompute(workshop.cost, str(workshop.source_name)),
        "seconds": time.perf_counter() - began,
    }
    return {"ledger": pd.DataFrame([row])}
