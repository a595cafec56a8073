"""How every run is made, resumed, saved and opened again."""

from typing import TYPE_CHECKING

from rotoscope.lazy import attach

if TYPE_CHECKING:
    from rotoscope.runs.record import RunRecord as RunRecord
    from rotoscope.runs.result import SavedRun as SavedRun
    from rotoscope.runs.run import Run as Run

__getattr__, __dir__, __all__ = attach(__name__, __file__)
