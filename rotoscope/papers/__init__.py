"""The ledger: claims of both papers, how each is computed, what came out."""

from rotoscope.papers.claim import Claim as Claim
from rotoscope.papers.judging import CLAIMS as CLAIMS
from rotoscope.papers.judging import reproduce as reproduce
from rotoscope.papers.verdicts import VERDICTS as VERDICTS
from rotoscope.papers.verdicts import Finding as Finding
