"""`rotoscope plan`: which key heads need the whole cache, which planes their rotation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
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
    for name in flags.keys() - {decision}:
        for flag in flags[name]:
            words = flag.replace("_", "-")
            raise RotoscopeError(f"--{words} means something for plan {name} only, not for plan {decision}")
    settings = DECISIONS[decision].make(**judged, **flags[decision])
    with says_loading():
        from rotoscope.experiments import plan as plans
        from rotoscope.experiments.show import end, show_table
        from rotoscope.models.loading import load
        from rotoscope.terminal import new_console, say

        subject = load(model, device=output.device, **loading)
    console = new_console()
    folder = output.folder(Path(model).stem, decision, "plan")
    result = getattr(plans, decision)(subject, settings, out=folder, overwrite=output.overwrite)
    for number, (title, table) in enumerate(result.overview()):
        show_table(console, table, title, folder / f"table-{number}.csv")
    say(console, "")
    for sentence in result.sentences():
        say(console, sentence, markup=False)
    return end(console, result, folder, draw=output.figures)
