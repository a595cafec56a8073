"""`rotoscope plan`: which key heads need the whole cache, which planes their rotation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.commands import end
from rotoscope.experiments.plan.settings import CacheSettings, PlanSettings, RotationSettings
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output

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
