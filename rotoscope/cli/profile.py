"""`rotoscope profile`: score every head of a model on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rotoscope.cli.command import Given, command
from rotoscope.settings import ModelSettings, Output, ProfileSettings, PromptSettings

SCORES = ["correlation", "early_positional", "late_positional"]
VARIATIONS = ["varied", "setting", *SCORES, "sink_in_block", "changes"]


@command
def profile(
    model: str = "smollm2",
    *,
    prompts: Annotated[Given, PromptSettings],
    settings: Annotated[Given, ProfileSettings],
    loading: ModelSettings,
    output: Output,
) -> int:
    """Score every head of a model: does it attend by position or by symbol?

    Example: rotoscope profile smollm2 --task binding --pairs 32 --prompts 16 --out runs/first

    Parameters
    ----------
    model
        "smollm2", "number", "letter", a folder, a .gguf file, or a hub id such as org/name (which goes to the network).
    """
    wanted, sizes = ProfileSettings.make(**settings), PromptSettings.make(**prompts)
    from rich.markup import escape

    from rotoscope.analysis.estimate import check_prompts, estimate
    from rotoscope.analysis.profiling import profile as score
    from rotoscope.analysis.prompts import make_prompts
    from rotoscope.cli.summary import end, new_console, say, show_summary, show_table
    from rotoscope.reading import load

    console = new_console()
    subject = load(model, device=output.device, allow_missing=loading.allow_missing)
    given = [*prompts, *settings]
    check_prompts(subject, sizes, wanted, given=given, force=output.force)
    shown = make_prompts(subject, sizes, given=given)
    folder = output.folder(Path(model).stem, shown.task)
    say(console, f"[bold]{escape(subject.name)}[/] on {subject.device}: {estimate(subject, shown, wanted)}")
    how: dict[str, Any] = {"out": folder, "overwrite": output.overwrite, "force": output.force}
    result = score(subject, shown, wanted, seed=sizes.seed, **how)
    show_summary(console, result)
    if "known_heads" in result.tables:
        title = "heads of known kinds by class (in brackets: classes shuffled within layers; *: beyond that)"
        show_table(console, result.known_overview(), title)
    if "variations" in result.tables:
        show_table(
            console, result.tables["variations"][VARIATIONS], "which conclusions change with the settings"
        )
    return end(console, result, folder, draw=output.figures)
