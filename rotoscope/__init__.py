"""rotoscope: does an attention head attend by position or by symbol?

The public surface is the list of imports below, and nothing else. Type checkers read it as it stands; at run time a name is
imported when it is first used, so that `rotoscope --help` does not wait for torch.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rotoscope import analysis as analysis
    from rotoscope import errors as errors
    from rotoscope import figures as figures
    from rotoscope import lab as lab
    from rotoscope import maths as maths
    from rotoscope import monitor as monitor
    from rotoscope import papers as papers
    from rotoscope import reading as reading
    from rotoscope import report as report
    from rotoscope import results as results
    from rotoscope import settings as settings
    from rotoscope import sweeps as sweeps
    from rotoscope import tasks as tasks
    from rotoscope.analysis import agreement as agreement
    from rotoscope.analysis import depths as depths
    from rotoscope.analysis import gate as gate
    from rotoscope.analysis import known_heads as known_heads
    from rotoscope.analysis import measure_dynamics as dynamics
    from rotoscope.analysis import measure_lengths as lengths
    from rotoscope.analysis import plan as plan
    from rotoscope.analysis import profile as profile
    from rotoscope.errors import RotoscopeError as RotoscopeError
    from rotoscope.maths import Blocks as Blocks
    from rotoscope.maths import RotaryHead as RotaryHead
    from rotoscope.maths import counterfactual_logits as counterfactual_logits
    from rotoscope.maths import discrepancy as discrepancy
    from rotoscope.maths import exclusion as exclusion
    from rotoscope.maths import purity_class as purity_class
    from rotoscope.maths import swap_scores as swap_scores
    from rotoscope.monitor import HeadMonitor as HeadMonitor
    from rotoscope.reading import Subject as Subject
    from rotoscope.reading import load as load
    from rotoscope.results import Profile as Profile
    from rotoscope.results import open as open
    from rotoscope.sweeps import run_sweep as sweep
    from rotoscope.tasks import Prompt as Prompt


def _surface() -> dict[str, tuple[str, str]]:
    """The imports above: name -> (module, name there)."""
    module = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    listed = next(node for node in module.body if isinstance(node, ast.If))
    return {
        str(alias.asname): (str(node.module), alias.name)
        for node in listed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


_SURFACE = _surface()
__all__ = [*_SURFACE, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _SURFACE:
        raise AttributeError(f"module 'rotoscope' has no attribute {name!r}")
    module, original = _SURFACE[name]
    if module == "rotoscope":
        value = import_module(f"rotoscope.{original}")
    else:
        value = getattr(import_module(module), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
