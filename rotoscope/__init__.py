"""rotoscope: does an attention head attend by position or by symbol?

The public surface is the list of imports below, and nothing else. Type checkers read it as it stands; at run time a name is
imported when it is first used, so that `rotoscope --help` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rotoscope.lazy import attach

__version__ = "0.2.0"

if TYPE_CHECKING:
    from rotoscope import errors as errors
    from rotoscope import experiments as experiments
    from rotoscope import lab as lab
    from rotoscope import ledger as ledger
    from rotoscope import models as models
    from rotoscope import monitor as monitor
    from rotoscope import report as report
    from rotoscope import runs as runs
    from rotoscope import scores as scores
    from rotoscope import settings as settings
    from rotoscope import stats as stats
    from rotoscope import sweeps as sweeps
    from rotoscope import tasks as tasks
    from rotoscope.errors import RotoscopeError as RotoscopeError
    from rotoscope.experiments import figures as figures
    from rotoscope.experiments import plan as plan
    from rotoscope.experiments.depths.run import depths as depths
    from rotoscope.experiments.gate.run import gate as gate
    from rotoscope.experiments.known_heads import known_heads as known_heads
    from rotoscope.experiments.lengths.run import measure_lengths as lengths
    from rotoscope.experiments.profile.across_tasks import agreement as agreement
    from rotoscope.experiments.profile.result import Profile as Profile
    from rotoscope.experiments.profile.run import profile as profile
    from rotoscope.experiments.registry import open as open
    from rotoscope.experiments.train.checkpoint_scores import measure_dynamics as dynamics
    from rotoscope.lab.training import train as train
    from rotoscope.measures.measure import measure as measure
    from rotoscope.models.layer import LayerHeads as LayerHeads
    from rotoscope.models.loading import Subject as Subject
    from rotoscope.models.loading import load as load
    from rotoscope.monitor.head_monitor import HeadMonitor as HeadMonitor
    from rotoscope.scores.blocks import Blocks as Blocks
    from rotoscope.scores.classes import purity_class as purity_class
    from rotoscope.scores.constructions import RotaryHead as RotaryHead
    from rotoscope.scores.counterfactual import counterfactual_logits as counterfactual_logits
    from rotoscope.scores.discrepancy import discrepancy as discrepancy
    from rotoscope.scores.exclusion_principle import exclusion as exclusion
    from rotoscope.scores.swaps import swap_scores as swap_scores
    from rotoscope.sweeps.driver import run_sweep as sweep
    from rotoscope.tasks.prompt import Prompt as Prompt

__getattr__, __dir__, __all__ = attach(__name__, __file__)
__all__ += ["__version__"]
