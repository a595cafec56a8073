"""`rotoscope depths`: swap blocks in the prompt, at a head's own layer and anywhere between."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rotoscope.command import Given, command
from rotoscope.experiments.depths.settings import DepthsSettings
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output

USUAL = {"prompts": 8}
SHOWN = [name for name in PromptSettings.names() if name not in ("answer", *PromptSettings.python_only)]
"""Settings of prompts that mean something where no answer is asked for."""


@command
def depths(
    model: str = "smollm2",
    *,
    prompts: Annotated[Given, PromptSettings, *SHOWN],
    settings: Annotated[Given, DepthsSettings],
    loading: Annotated[Given, ModelSettings],
    output: Output,
) -> int:
    """Swap blocks at the input of some layers: where does a head's place come from?

    Example: rotoscope depths smollm2 --task binding --pairs 32 --at 0 own --out runs/depths

    A head that follows the symbol at its own layer may still stay in place when the prompt itself is permuted: then
    earlier layers wrote the place into the states that it reads. Depth 0 is the prompt, own is the papers' score.
    --writers then silences heads below such heads, to find who wrote it.

    Parameters
    ----------
    model
        "smollm2", "number", "letter", a folder, a .gguf file, or a hub id.
    """
    wanted, sizes = DepthsSettings.make(**settings), PromptSettings.make(**(USUAL | prompts))
    with says_loading():
        import pandas as pd
        from rich.markup import escape

        from rotoscope.experiments.depths.run import depths as measure
        from rotoscope.experiments.depths.writers_result import ONE, writers_in_words
        from rotoscope.experiments.prompts import make_prompts
        from rotoscope.experiments.show import end, show_statistics, show_table
        from rotoscope.models.loading import load
        from rotoscope.terminal import as_flags, new_console, say

        subject = load(model, device=output.device, **loading)
    console = new_console()
    shown = make_prompts(subject, sizes, given=prompts)
    say(console, f"[bold]{escape(subject.name)}[/] on {subject.device}: {shown.size}")
    folder = output.folder(Path(model).stem, "depths")
    place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    result = measure(subject, shown, wanted, seed=sizes.seed, **place)
    for tau in result.taus:
        show_statistics(console, result, tau)
    turning = result.turning()
    if len(turning):
        title = "heads that follow at their own layer and stay in place below it (positional / symbolic; layer:head)"
        show_table(console, turning, title, folder / "turning.csv")
    if len(result.writers):
        found = result.writers_summary()
        edges = pd.concat([found[found["condition"] != ONE], result.writer_graph()])
        title = "what carried heads lose of their place without positional heads below them (controls: other heads there)"
        show_table(console, writers_in_words(edges), title, folder / "edges.csv")
    carried = (result.turns["head_class"] == "carried").any() and not wanted.writers
    again = [model, *as_flags({"task": shown.task} | prompts | settings | loading), "--writers"]
    then = [["depths", *again, "--out", f"{folder}-writers"]] if carried else []
    return end(console, result, folder, draw=output.figures, then=then)
