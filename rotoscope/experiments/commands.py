"""The commands of experiments, made from their declarations, and how each of them ends."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from rotoscope.command import Given, command
from rotoscope.errors import pip_install
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.experiments.registry import Experiment, PromptChoice, experiments
from rotoscope.progress import progress_bar, says_loading
from rotoscope.settings import ModelSettings, Output

if TYPE_CHECKING:
    from rotoscope.models.loading import Subject
    from rotoscope.runs.result import SavedRun
    from rotoscope.tasks.prompt import Prompts
    from rotoscope.terminal import Grid

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

    def run(model: str, *, prompts: Given, settings: Given, loading: Given, output: Output) -> int:
        chosen = kind.make(**settings)
        if chosen.case is not None:
            kind.check_meant(settings, chosen.case)
        subject, shown = load_with_prompts(model, prompts, loading, output, choice)
        folder = output.folder(Path(model).stem, experiment.name)
        place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
        seed = prompts.get("seed", PromptSettings.seed)
        result = experiment.resolve(experiment.run)(subject, shown, chosen, seed=seed, **place)
        return end(result, folder, output)

    run.__name__ = experiment.name
    run.__defaults__ = ("smollm2",)
    parts = (experiment.question, f"Example: {experiment.example}", experiment.about, MODEL)
    run.__doc__ = "\n\n".join(part for part in parts if part)
    run.__annotations__ = {
        "model": str,
        "prompts": Annotated[(Given, PromptSettings, *prompt_flags(choice))],
        "settings": Annotated[Given, kind],
        "loading": Annotated[Given, ModelSettings],
        "output": Output,
        "return": int,
    }
    return run


def prompt_flags(choice: PromptChoice) -> list[str]:
    """The fields of `PromptSettings` that an experiment offers as flags."""
    left_out = {*choice.without, *PromptSettings.python_only}
    return [name for name in PromptSettings.names() if name not in left_out]


def load_with_prompts(
    model: str, prompts: Given, loading: Given, output: Output, choice: PromptChoice
) -> tuple[Subject, Prompts]:
    """The model and what it is shown, which is said before anything is measured."""
    sizes = PromptSettings.make(**(dict(choice.sizes) | prompts))
    with says_loading():
        from rotoscope.experiments.prompts import make_prompts
        from rotoscope.models.loading import load
        from rotoscope.terminal import new_console, say

        subject = load(model, device=output.device, **loading)
    shown = make_prompts(subject, sizes, given=prompts, usual=choice.task)
    say(new_console(), f"{subject.name} on {subject.device} · {shown.task} · {shown.size}", markup=False)
    return subject, shown


def end(
    result: SavedRun,
    folder: Path,
    output: Output,
    *,
    then: Sequence[Sequence[object]] = (),
    parts: Mapping[Path, SavedRun] = MappingProxyType({}),
    found: Sequence[str | Grid] | None = None,
) -> int:
    """How every command ends that makes a run: what came out, what to beware of, where it is, and what to type next.

    `parts` are further runs within the folder, by their own folders; their tables and sentences join those of the run.
    `found` is what is left to show of what came out, where some of it stands on the screen already.
    """
    with says_loading():
        from rotoscope.terminal import new_console, say, show_next, show_place, show_screen, show_table

    console = new_console()
    screen = result.screen() if found is None else replace(result.screen(), found=found)
    for part in parts.values():
        details = [*screen.details, *part.screen().details]
        screen = replace(screen, against=[*screen.against, *part.sentences()], details=details)
    caveats = [f"{place.name}: {caveat}" for place, part in parts.items() for caveat in part.run.warnings]
    show_screen(console, screen, [*result.run.warnings, *caveats], verbose=output.verbose)
    for title, make in screen.details if output.verbose else ():
        show_table(console, make(), title)
    for place, part in {**parts, folder: result}.items():
        if output.figures and can_draw():
            draw(part, place)
        page = write_page(part, place) if output.page else None
    proof = None if result.run.proof is None else result.run.proof.largest_difference
    show_place(console, folder, sorted(folder.rglob("*")), page, proof)
    if output.figures and not can_draw():
        say(console, f"no figures: they need {pip_install('figures')}", markup=False)
    if output.page and page is None:
        say(console, f"no page: it needs {pip_install('report')}", markup=False)
    steps = [list(step) for step in then]
    for words in (shlex.split(step.command)[1:] for step in result.next_steps()):
        steps.append([*words, "--out", f"{folder}-{words[0]}"])
    steps = steps or [["report", folder]]
    show_next(console, *(steps if output.verbose else steps[:1]))
    return 0


def can_draw() -> bool:
    """Whether the package that draws figures is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def write_page(result: SavedRun, folder: Path) -> Path | None:
    """The run's page, in its folder; None where the package that draws it is not installed."""
    if importlib.util.find_spec("plotly") is None:
        return None
    with progress_bar("writing the page", None):
        return result.report(folder / "report.html")


def draw(result: SavedRun, folder: Path) -> list[Path]:
    """The figures of a run as files in a folder."""
    from rotoscope.experiments.registry import figures_of

    return save_figures(figures_of(result), folder)


def save_figures(figures: Iterable[tuple[str, Any]], folder: Path) -> list[Path]:
    """Figures with their names as files; how far that is is shown."""
    from rotoscope.plotting.style import save

    written = []
    with progress_bar("drawing figures", None) as bar:
        for name, figure in figures:
            written += save(figure, folder / name)
            bar.advance()
    return written
