"""One profile on the command line: what is scored is said before, what came out after."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.markup import escape

from rotoscope.command import Given
from rotoscope.experiments.profile.caveats import next_steps
from rotoscope.experiments.profile.run import profile
from rotoscope.experiments.profile.settings import CommandSettings
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.experiments.prompts import make_prompts
from rotoscope.experiments.show import end, show_summary, show_table
from rotoscope.models.loading import load
from rotoscope.progress import says_loading
from rotoscope.settings import Output
from rotoscope.terminal import as_flags, new_console, say


def one_profile(model: str, prompts: Given, settings: Given, loading: Given, output: Output) -> int:
    """One run."""
    wanted, sizes = CommandSettings.make(**settings), PromptSettings.make(**prompts)
    with says_loading():
        subject = load(model, device=output.device, **loading)
    console = new_console()
    given = [*prompts, *settings]
    shown = make_prompts(subject, sizes, given=given)
    folder = output.folder(Path(model).stem, shown.task)
    say(console, f"[bold]{escape(subject.name)}[/] on {subject.device}: {shown.size}")
    how: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    result = profile(subject, shown, wanted, seed=sizes.seed, **how)
    show_summary(console, result)
    if "known_heads" in result.tables:
        title = "heads of known kinds by class (in brackets: classes shuffled within layers; *: beyond that)"
        show_table(console, result.known_overview(), title, folder / "known_overview.csv")
    same = [model, *as_flags({"task": shown.task} | prompts | loading)]
    steps = [shlex.split(step.command)[1:] for step in next_steps(result, same)]
    then = [[*words, "--out", f"{folder}-{words[0]}"] for words in steps[:1]]
    return end(console, result, folder, draw=output.figures, then=then)
