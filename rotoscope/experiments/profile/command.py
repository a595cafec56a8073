"""`rotoscope profile`: score every head of a model on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.profile.settings import CommandSettings
from rotoscope.experiments.prompt_settings import PromptSettings, Task
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output


@command
def profile(
    model: str = "smollm2",
    *,
    task: tuple[Task, ...] | None = None,
    prompts: Annotated[Given, PromptSettings],
    settings: Annotated[Given, CommandSettings],
    loading: Annotated[Given, ModelSettings],
    output: Output,
) -> int:
    """Score every head of a model: does it attend by position or by symbol?

    Example: rotoscope profile smollm2 --task binding --pairs 32 --prompts 16 --out runs/first

    Parameters
    ----------
    model
        "smollm2", "number", "letter", a folder, a .gguf file, or a hub id such as org/name (which goes to the network).
    task
        binding: facts and a question. groups: facts of three members, two given. lookup: lines "name: colour", twice, and a
        name. recall: a list of words, twice, and begun again. repeats: random tokens, repeated. text: your own prompt
        (--text). number, letter: the model's own multi-hop task; a language model is asked one-hop questions. By default
        the model's own task, else binding. Several: a run for each, and how far they agree on the heads.
    """
    prompts |= {"task": task[0]} if task and len(task) == 1 else {}
    if task and len(task) > 1:
        return _several(model, task, prompts, settings, loading, output)
    with says_loading():
        from rotoscope.experiments.profile.show import one_profile
    return one_profile(model, prompts, settings, loading, output)


def _several(
    model: str,
    tasks: tuple[Task, ...],
    prompts: Given,
    settings: Given,
    loading: Given,
    output: Output,
) -> int:
    """A run per task, and one over them; a size is taken by the tasks that it means something for."""
    if len(set(tasks)) < len(tasks):
        raise RotoscopeError(f"--task {' '.join(tasks)}: give every task once")
    meant = PromptSettings.meant_for
    for name in prompts:
        if not set(meant.get(name, tasks)) & set(tasks):
            PromptSettings.check_meant([name], " and ".join(tasks))
    wanted = CommandSettings.make(**settings)
    given = {
        task: {name: value for name, value in prompts.items() if task in meant.get(name, tasks)}
        for task in tasks
    }
    sizes = {task: PromptSettings.make(task=task, **own) for task, own in given.items()}
    with says_loading():
        from rich.markup import escape

        from rotoscope.experiments.profile.across_tasks import profile_tasks
        from rotoscope.experiments.prompts import make_prompts
        from rotoscope.experiments.show import drawn, end, show_table
        from rotoscope.models.loading import load
        from rotoscope.terminal import new_console, say

        subject = load(model, device=output.device, **loading)
    console = new_console()
    shown = [make_prompts(subject, sizes[task], given=given[task]) for task in tasks]
    folder = output.folder(Path(model).stem, *tasks)
    for one in shown:
        say(console, f"[bold]{escape(subject.name)}[/], {one.task}: {one.size}")
    how: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    found, result = profile_tasks(subject, shown, wanted, seed=sizes[tasks[0]].seed, **how)
    show_table(console, result.tasks, "the tasks, and the heads of each class", folder / "tasks.csv")
    title = "heads with the same class on two tasks; null: labels shuffled within layers"
    show_table(console, result.pairs, title, folder / "pairs.csv")
    if len(result.components):
        title = "variance of the scores over heads, tasks and prompts"
        show_table(console, result.components, title, folder / "components.csv")
    beside = []
    for name, profiled in found.items():
        for caveat in profiled.run.warnings:
            say(console, f"[yellow]caveat, {name}:[/] {escape(caveat)}")
        beside += [folder / name / "run.json", *(drawn(profiled, folder / name) if output.figures else [])]
    then = [["report", *(folder / task for task in tasks[:2])]]
    return end(console, result, folder, draw=output.figures, beside=beside, then=then)
