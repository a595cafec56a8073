"""Plans: from what heads do to decisions that engineers make. Each is measured beside other ways to decide.

`cache`: which key heads keep all their keys and values. `rotation`: which planes go on rotating.
"""

from typing import TYPE_CHECKING

from rotoscope.experiments.registry import Experiment, ResultKind
from rotoscope.lazy import attach

if TYPE_CHECKING:
    from rotoscope.experiments.plan.cache_plan import cache as cache
    from rotoscope.experiments.plan.plan_files import RotatingPlanes as RotatingPlanes
    from rotoscope.experiments.plan.plan_files import StreamingPlan as StreamingPlan
    from rotoscope.experiments.plan.plan_files import load_cache as load_cache
    from rotoscope.experiments.plan.plan_files import load_rotation as load_rotation
    from rotoscope.experiments.plan.plan_files import save_duo_attention as save_duo_attention
    from rotoscope.experiments.plan.plan_files import stop_planes as stop_planes
    from rotoscope.experiments.plan.plan_files import stream as stream
    from rotoscope.experiments.plan.rotation_plan import rotation as rotation

__getattr__, __dir__, __all__ = attach(__name__, __file__)

EXPERIMENT = Experiment(
    name="plan",
    question="Which key heads need the whole cache, and which planes their rotation?",
    command="command:plan",
    kinds=(
        ResultKind(
            name="cache-plan",
            result="result:CachePlan",
            title="Key heads of {name} that keep everything",
            figures="figures:cache_figures",
            tabs={"plan": "page:plan_tab"},
            tabled=("points",),
            comparison="page:PlanComparison",
        ),
        ResultKind(
            name="rotation-plan",
            result="result:RotationPlan",
            title="Planes of {name} that rotate",
            figures="figures:rotation_figures",
            tabs={"plan": "page:plan_tab"},
            tabled=("points",),
            comparison="page:PlanComparison",
        ),
    ),
)
