"""The commands of experiments, made from their declarations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from rotoscope.command import Given, command
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.experiments.registry import Experiment, experiments
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output

MODEL = """Parameters
----------
model
    "smollm2", "number", "letter", a folder, a .gguf file, or a hub id such as org/name."""


def experiment_commands() -> dict[str, Callable[..., int]]:
    """The command of every experiment by its name."""
    return {name: _command(experiment) for name, experiment in experiments().items()}


@cache
def _command(experiment: Experiment) -> Callable[..., int]:
    if experiment.command:
        function: Callable[..., int] = experiment.resolve(experiment.command)
        return function
    return command(_model_command(experiment))


def _model_command(experiment: Experiment) -> Callable[..., int]:
    """A command that loads a model, makes prompts, runs the experiment on them and shows what came out."""
    choice, kind = experiment.prompts, experiment.resolve(experiment.settings)
    left_out = {*choice.without, *PromptSettings.python_only}
    offered = [name for name in PromptSettings.names() if name not in left_out]

    def run(model: str, *, prompts: Given, settings: Given, loading: Given, output: Output) -> int:
        chosen = kind.make(**settings)
        sizes = PromptSettings.make(**(dict(choice.sizes) | prompts))
        with says_loading():
            from rich.markup import escape

            from rotoscope.experiments.prompts import make_prompts
            from rotoscope.experiments.show import end, show_table
            from rotoscope.models.loading import load
            from rotoscope.terminal import new_console, say

            subject = load(model, device=output.device, **loading)
        console = new_console()
        shown = make_prompts(subject, sizes, given=prompts, usual=choice.task)
        say(console, f"[bold]{escape(subject.name)}[/] on {subject.device}: {shown.size}")
        folder = output.folder(Path(model).stem, experiment.name)
        place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
        result = experiment.resolve(experiment.run)(subject, shown, chosen, seed=sizes.seed, **place)
        for number, summary in enumerate(result.available_summaries()):
            show_table(console, summary.make(), summary.title, folder / f"table-{number}.csv")
        for sentence in result.sentences():
            say(console, sentence, markup=False)
        return end(console, result, folder, draw=output.figures)

    run.__name__ = experiment.name
    run.__defaults__ = ("smollm2",)
    parts = (experiment.question, f"Example: {experiment.example}", experiment.about, MODEL)
    run.__doc__ = "\n\n".join(part for part in parts if part)
    run.__annotations__ = {
        "model": str,
        "prompts": Annotated[(Given, PromptSettings, *offered)],
        "settings": Annotated[Given, kind],
        "loading": Annotated[Given, ModelSettings],
        "output": Output,
        "return": int,
    }
    return run
