"""The ledger: every claim of both papers, how it is computed, what came out."""

from rotoscope.papers.claim import VERDICTS, Claim, Finding
from rotoscope.papers.judging import CLAIMS, reproduce

__all__ = ["CLAIMS", "VERDICTS", "Claim", "Finding", "reproduce"]
