"""Plans: from what heads do to decisions that engineers make. Each is measured beside other ways to decide.

`cache`: which key heads keep all their keys and values. `rotation`: which planes go on rotating.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.commands import end
from rotoscope.experiments.plan.settings import CacheSettings, PlanSettings, RotationSettings
from rotoscope.experiments.registry import Experiment, ResultKind
from rotoscope.lazy import attach
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output

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


DECISIONS: dict[str, type[PlanSettings]] = {
    "cache": CacheSettings,
    "rotation": RotationSettings,
}


@command
def plan(
    decision: Literal["cache", "rotation"],
    model: str = "smollm2",
    *,
    cache: Annotated[Given, CacheSettings, *CacheSettings.own()],
    rotation: Annotated[Given, RotationSettings, *RotationSettings.own()],
    judged: Annotated[Given, PlanSettings],
    loading: Annotated[Given, ModelSettings],
    output: Output,
) -> int:
    """Make a plan from what heads and planes do, and judge it beside other ways to choose.

    Example: rotoscope plan cache smollm2 --keep 25% --out runs/cache

    cache: which key heads keep all keys and values, while the others keep a window and the first tokens. rotation: which planes
    go on rotating. Each ends with a table of what was measured.

    Parameters
    ----------
    decision
        cache or rotation.
    model
        "smollm2", a folder, a .gguf file, or a hub id.
    """
    flags = {"cache": cache, "rotation": rotation}
    for other, own in flags.items():
        if other != decision and own:
            flag = next(iter(own)).replace("_", "-")
            raise RotoscopeError(f"--{flag} means something for plan {other} only, not for plan {decision}")
    chosen = DECISIONS[decision].make(**judged, **flags[decision])
    with says_loading():
        from rotoscope.experiments import plan as plans
        from rotoscope.models.loading import load

        subject = load(model, device=output.device, **loading)
    folder = output.folder(Path(model).stem, decision, "plan")
    place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    return end(getattr(plans, decision)(subject, chosen, **place), folder, output)


__getattr__, __dir__, __all__ = attach(__name__, __file__)

EXPERIMENT = Experiment(
    name="plan",
    question="Which key heads need the whole cache, and which planes their rotation?",
    command=":plan",
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
