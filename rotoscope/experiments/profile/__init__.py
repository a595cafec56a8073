"""Does a head attend by position or by symbol?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.commands import end, load_with_prompts
from rotoscope.experiments.profile.settings import CommandSettings
from rotoscope.experiments.prompt_settings import PromptSettings, Task
from rotoscope.experiments.registry import Experiment, PromptChoice, ResultKind
from rotoscope.progress import says_loading
from rotoscope.settings import ModelSettings, Output

if TYPE_CHECKING:
    from rotoscope.experiments.profile.result import Profile


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
    chosen = CommandSettings.make(**settings)
    if task and len(task) > 1:
        return _several(model, task, prompts, chosen, loading, output)
    prompts |= {"task": task[0]} if task else {}
    PromptSettings.make(**prompts)
    subject, shown = load_with_prompts(model, prompts, loading, output, PromptChoice())
    with says_loading():
        from rotoscope.experiments.profile.run import profile as score
        from rotoscope.experiments.profile.screen import permuted_lines, score_lines
        from rotoscope.terminal import new_console, show_block

    folder = output.folder(Path(model).stem, shown.task)
    place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    printed: list[Profile] = []

    def show_scores(scored: Profile) -> None:
        show_block(new_console(), score_lines(scored))
        printed.append(scored)

    seed = prompts.get("seed", PromptSettings.seed)
    result = score(subject, shown, chosen, seed=seed, on_scores=show_scores, **place)
    changed = permuted_lines(result) if chosen.input_swaps else []
    return end(result, folder, output, found=changed if printed else None)


def _several(
    model: str,
    tasks: tuple[Task, ...],
    prompts: Given,
    settings: CommandSettings,
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
    sizes: dict[str, Given] = {
        task: {name: value for name, value in prompts.items() if task in meant.get(name, tasks)}
        for task in tasks
    }
    checked = [PromptSettings.make(task=task, **sizes[task]) for task in tasks]
    with says_loading():
        from rotoscope.experiments.profile.across_tasks import profile_tasks
        from rotoscope.experiments.prompts import make_prompts
        from rotoscope.models.loading import load
        from rotoscope.terminal import new_console, say

        subject = load(model, device=output.device, **loading)
    shown = [make_prompts(subject, own, given=sizes[str(own.task)]) for own in checked]
    folder = output.folder(Path(model).stem, *tasks)
    for each in shown:
        say(new_console(), f"{subject.name} on {subject.device} · {each.task} · {each.size}", markup=False)
    place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    profiles, result = profile_tasks(subject, shown, settings, seed=checked[0].seed, **place)
    parts = {folder / name: profiled for name, profiled in profiles.items()}
    then = [["report", *(folder / task for task in tasks[:2])]]
    return end(result, folder, output, parts=parts, then=then)


EXPERIMENT = Experiment(
    name="profile",
    question="Score every head of a model: does it attend by position or by symbol?",
    command=":profile",
    kinds=(
        ResultKind(
            name="profile",
            result="result:Profile",
            title="Heads of {name}",
            figures="figures:profile_figures",
            tabs={"overview": "page:heads_tab"},
            tabled=(
                "heads", "frequencies", "nulls", "prompts", "prompt_frequencies", "null_prompts",
                "null_prompt_frequencies", "traces", "vectors", "queries", "known_heads", "attention", "shown_prompt",
                "attention_prompt_permuted",
                "null_known_heads", "input_prompts", "null_input_prompts",
            ),
            comparison="rotoscope.experiments.compare:HeadScores",
            picture="plane",
            classes="heads",
        ),
        ResultKind(
            name="agreement",
            result="across_tasks:Agreement",
            title="Heads of {name} on several tasks",
            figures="across_tasks:agreement_figures",
            tabled=("pairs", "tasks", "components"),
        ),
    ),
)  # fmt: skip
