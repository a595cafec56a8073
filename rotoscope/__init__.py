"""rotoscope: does an attention head attend by position or by symbol?

The public surface. Names are loaded on first use, so that `rotoscope --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Blocks": "rotoscope.maths",
    "Profile": "rotoscope.results",
    "Prompt": "rotoscope.tasks",
    "RotoscopeError": "rotoscope.errors",
    "Subject": "rotoscope.reading",
    "counterfactual_logits": "rotoscope.maths",
    "RotaryHead": "rotoscope.maths",
    "discrepancy": "rotoscope.maths",
    "dynamics": "rotoscope.analysis.dynamics",
    "exclusion": "rotoscope.maths",
    "gate": "rotoscope.analysis",
    "lengths": "rotoscope.analysis.lengths",
    "load": "rotoscope.reading",
    "open": "rotoscope.results",
    "profile": "rotoscope.analysis",
    "purity_class": "rotoscope.maths",
    "swap_scores": "rotoscope.maths",
}
_ROOMS = (
    "analysis",
    "errors",
    "figures",
    "lab",
    "maths",
    "papers",
    "reading",
    "report",
    "results",
    "tasks",
)

__all__ = [*_HOMES, *_ROOMS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"rotoscope.{name}")
    else:
        raise AttributeError(f"module 'rotoscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from rotoscope import analysis, errors, figures, lab, maths, reading, report, results, tasks
    from rotoscope.analysis import gate, profile
    from rotoscope.analysis.dynamics import dynamics
    from rotoscope.analysis.lengths import lengths
    from rotoscope.errors import RotoscopeError
    from rotoscope.maths import (
        Blocks,
        RotaryHead,
        counterfactual_logits,
        discrepancy,
        exclusion,
        purity_class,
        swap_scores,
    )
    from rotoscope.reading import Subject, load
    from rotoscope.results import Profile, open
    from rotoscope.tasks import Prompt
