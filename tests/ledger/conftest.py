"""Runs that claims are put to in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rotoscope.ledger.claim_runs import ClaimRuns
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.verdicts import Finding


@pytest.fixture
def runs() -> ClaimRuns:
    """The stored runs; a run that is put into `opened` stands in place of a stored one."""
    return ClaimRuns(Path("nowhere"))


def judged_on(claim: str, **opened: Any) -> Finding:
    """A claim on runs of a test's own making, by their names, beside untrained models; no twins are waited for."""
    runs = ClaimRuns(Path("nowhere"))
    del runs.nulls[1:]
    runs.opened |= {name.replace("_", "-"): run for name, run in opened.items()}
    return CLAIMS[claim].compute(runs)
