"""From scores per prompt to means, intervals and verdicts against a null."""

from typing import TYPE_CHECKING

from rotoscope.lazy import attach

if TYPE_CHECKING:
    from rotoscope.stats.statistics import Summary as Summary
    from rotoscope.stats.statistics import summarise as summarise
    from rotoscope.stats.verdict import Figure as Figure
    from rotoscope.stats.verdict import Verdict as Verdict
    from rotoscope.stats.verdict import verdicts as verdicts

__getattr__, __dir__, __all__ = attach(__name__, __file__)
