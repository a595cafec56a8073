"""The questions that can be put to a model, a folder each."""

from typing import TYPE_CHECKING

from rotoscope.lazy import attach

if TYPE_CHECKING:
    from rotoscope.experiments.ask.endpoints import one_hop_endpoint as one_hop_endpoint
    from rotoscope.experiments.ask.result import OneHopRun as OneHopRun
    from rotoscope.experiments.ask.run import one_hop_local as one_hop_local
    from rotoscope.experiments.ask.settings import AskSettings as AskSettings
    from rotoscope.experiments.canonical.result import Canonical as Canonical
    from rotoscope.experiments.canonical.run import canonical_experiments as canonical_experiments
    from rotoscope.experiments.depths.result import SwapDepths as SwapDepths
    from rotoscope.experiments.depths.settings import DepthsSettings as DepthsSettings
    from rotoscope.experiments.depths.turnover import TurnoverStudy as TurnoverStudy
    from rotoscope.experiments.gate.result import Gating as Gating
    from rotoscope.experiments.gate.settings import GateSettings as GateSettings
    from rotoscope.experiments.known_heads import known_heads as known_heads
    from rotoscope.experiments.lengths.result import Lengths as Lengths
    from rotoscope.experiments.lengths.run import measure_lengths as measure_lengths
    from rotoscope.experiments.lengths.settings import LengthsSettings as LengthsSettings
    from rotoscope.experiments.plan.result import CachePlan as CachePlan
    from rotoscope.experiments.plan.result import RotationPlan as RotationPlan
    from rotoscope.experiments.plan.settings import CacheSettings as CacheSettings
    from rotoscope.experiments.plan.settings import PlanSettings as PlanSettings
    from rotoscope.experiments.plan.settings import RotationSettings as RotationSettings
    from rotoscope.experiments.profile.across_tasks import Agreement as Agreement
    from rotoscope.experiments.profile.across_tasks import agreement as agreement
    from rotoscope.experiments.profile.across_tasks import profile_tasks as profile_tasks
    from rotoscope.experiments.profile.result import Profile as Profile
    from rotoscope.experiments.profile.settings import ProfileSettings as ProfileSettings
    from rotoscope.experiments.prompt_settings import PromptSettings as PromptSettings
    from rotoscope.experiments.roles.result import Geometry as Geometry
    from rotoscope.experiments.roles.result import Roles as Roles
    from rotoscope.experiments.roles.result import find_geometry as find_geometry
    from rotoscope.experiments.roles.run import find_roles as find_roles
    from rotoscope.experiments.roles.run import trace as trace
    from rotoscope.experiments.steering import Steering as Steering
    from rotoscope.experiments.steering import measure_steering as measure_steering
    from rotoscope.experiments.theory.run import TheoryRun as TheoryRun
    from rotoscope.experiments.theory.run import run_theory as run_theory
    from rotoscope.experiments.train.checkpoint_scores import measure_dynamics as measure_dynamics
    from rotoscope.experiments.train.dynamics import Dynamics as Dynamics
    from rotoscope.experiments.train.restrictions import Restrictions as Restrictions
    from rotoscope.experiments.train.restrictions import restrictions as restrictions
    from rotoscope.experiments.train.settings import SeriesSettings as SeriesSettings
    from rotoscope.experiments.train.watch import Watch as Watch

__getattr__, __dir__, __all__ = attach(__name__, __file__)
