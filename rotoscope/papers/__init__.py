"""The ledger: every claim of both papers, how it is computed, what came out."""

from rotoscope.papers.claim import VERDICTS as VERDICTS
from rotoscope.papers.claim import Claim as Claim
from rotoscope.papers.claim import Finding as Finding
from rotoscope.papers.judging import CLAIMS as CLAIMS
from rotoscope.papers.judging import reproduce as reproduce
