"""The ledger: claims of both papers, how each is computed, what came out."""

from typing import TYPE_CHECKING

from rotoscope.experiments.registry import Experiment, ResultKind
from rotoscope.lazy import attach

if TYPE_CHECKING:
    from rotoscope.ledger.claim import Claim as Claim
    from rotoscope.ledger.claim import Ledger as Ledger
    from rotoscope.ledger.judge import CLAIMS as CLAIMS
    from rotoscope.ledger.judge import reproduce as reproduce
    from rotoscope.ledger.verdicts import VERDICTS as VERDICTS
    from rotoscope.ledger.verdicts import Finding as Finding

__getattr__, __dir__, __all__ = attach(__name__, __file__)

EXPERIMENT = Experiment(
    name="reproduce",
    question="Which claims of both papers hold?",
    command="command:reproduce",
    kinds=(
        ResultKind(
            name="ledger",
            result="claim:Ledger",
            title="The ledger of both papers",
            tabs={"ledger": "page:ledger_tab"},
            tabled=("ledger",),
        ),
    ),
)
