"""The ledger: every claim of both papers, how it is computed, what came out."""

from rotoscope.papers import p1, p2, theory
from rotoscope.papers.claim import VERDICTS, Claim, Finding
from rotoscope.papers.reproduce import reproduce

CLAIMS: dict[str, Claim] = {claim.id: claim for claim in (*theory.CLAIMS, *p1.CLAIMS, *p2.CLAIMS)}

__all__ = ["CLAIMS", "VERDICTS", "Claim", "Finding", "reproduce"]
