"""`rotoscope gate`: keep or remove frequencies, or silence heads, and see what the model loses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.gate.settings import GateSettings
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output

USUAL = {"pairs": 8, "prompts": 8}
EFFECT = ["effect", "low", "high", "random_heads", "null_low", "null_high", "p_value", "verdict"]


@command
def gate(
    model: str = "smollm2",
    *,
    prompts: Annotated[Given, PromptSettings],
    settings: Annotated[Given, GateSettings],
    classes: Path | None = None,
    loading: Annotated[Given, ModelSettings],
    output: Output,
) -> int:
    """Gate frequencies or heads while the model runs, and measure task loss, text loss and the heads' scores.

    Example: rotoscope gate smollm2 --task repeats --keep 1-8 --heads symbolic --out runs/gate

    Without --keep, --remove or --silence, every band is kept alone and removed alone, in all heads and in the heads of
    each class, beside random heads from the same layers. --heads-of-class symbolic silences a class whole. Prompts are eight, of
    random tokens repeated, unless you say so.

    Parameters
    ----------
    model
        "smollm2", "number", "letter", a folder, a .gguf file, or a hub id.
    classes
        A profile run of the same model to take the classes from. By default the task's own prompts are profiled.
    """
    gates, sizes = GateSettings.make(**settings), PromptSettings.make(**(USUAL | prompts))
    gates.check_meant(settings, gates.case)
    with says_loading():
        from rotoscope.experiments.gate.run import gate as close_gate
        from rotoscope.experiments.profile.result import Profile
        from rotoscope.experiments.prompts import make_prompts
        from rotoscope.experiments.show import end, show_table
        from rotoscope.models.loading import load
        from rotoscope.terminal import as_flags, new_console, say

        subject = load(model, device=output.device, **loading)
    console = new_console()
    task_prompts = make_prompts(subject, sizes, given=prompts, usual="repeats")
    profile = None if classes is None else Profile.open(classes)
    profiled = None if profile is None else profile.run.subject
    if profile is not None and profiled is not None and profiled.fingerprint != subject.fingerprint:
        raise RotoscopeError(f"{classes} is a profile of another model ({profile.name})")
    folder = output.folder(Path(model).stem, "gate")
    options: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    result = close_gate(subject, task_prompts, gates, classes=profile, seed=sizes.seed, **options)
    columns = ["condition", "head_group", "control", "gated_heads", "source"]
    numbers = ["loss", "loss_low", "loss_high", "accuracy", "draws"]
    title = "loss and accuracy, 95 % intervals over prompts; of random heads, 95 % of the draws"
    show_table(console, result.summary[columns + numbers], title, folder / "summary.csv")
    if not result.sweep:
        effects = result.effects.rename(columns={"null_value": "random_heads"})
        title = "what the gate changes, beside random heads of the same layers"
        show_table(console, effects[["source", "measure", *EFFECT]], title, folder / "effects.csv")
        for reason in dict.fromkeys(reason for reason in effects["reason"] if reason):
            say(console, reason, markup=False)
    scores = result.gated_heads
    for kind in ("positional", "symbolic") if len(scores) else ():
        before, after = scores[f"{kind}_score"].median(), scores[f"{kind}_score_gated"].median()
        say(console, f"median {kind} score over heads: {before:.2f} before, {after:.2f} gated")
    profiling = ["profile", model, *as_flags({"task": task_prompts.task} | prompts | loading)]
    return end(console, result, folder, draw=output.figures, then=[profiling] if classes is None else [])
