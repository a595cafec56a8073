"""`rotoscope dynamics`: heads along training, and what the trained model does with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from rotoscope.command import Given, command
from rotoscope.experiments.commands import end
from rotoscope.experiments.prompt_settings import PromptSettings
from rotoscope.experiments.train.settings import SeriesSettings
from rotoscope.lab.settings import TrainSettings, WatchSettings
from rotoscope.progress import progress_bar, says_loading
from rotoscope.settings import SEED, Output


@command
def train(
    task: tuple[Literal["number", "letter", "either"], ...],
    *,
    preset: Literal["mini", "paper"] = "mini",
    seeds: int | None = None,
    angles: tuple[str, ...] = (),
    favour: tuple[Literal["none", "symbolic", "positional"], ...] = ("none",),
    settings: Annotated[Given, TrainSettings],
    output: Output,
) -> int:
    """Train a GPT-J to follow pointers, and watch its heads become positional or symbolic.

    Example: rotoscope train number --preset mini --out runs/number

    Parameters
    ----------
    task
        number (pointers are distances: needs positions), letter (pointers are symbols) or either (the asked letter says where
        its pair stands, so that both ways lead there). With number and letter, a model of each is trained, all models as one,
        and --out holds a run folder for each: number-0, letter-0.
    preset
        mini: 4 layers, 1 or 2 hops, under a minute on two CPU cores. paper: 12 layers, 1 to 4 hops, for a GPU. The defaults
        below are those of paper.
    seeds
        Train so many models of each task as one, with --seed and the seeds after it. Default: one, whose run is --out itself.
    angles
        Heads have only these frequencies, over which their planes are dealt out: fast or slow (half of the ids), ids such as 1-8 or
        1,3,5 (1 is the fastest), or by layer: 0-5:fast+6-11:slow. Several, and all for no restriction, are trained as one and
        put beside one another. Default: all.
    favour
        Kind of heads that training favours, by a penalty on how far heads are from it: none, symbolic or positional. With
        several, models of each are trained as one: number-0, number-symbolic-0.
    """
    TrainSettings.check_meant(settings, *task)
    with says_loading():
        from rotoscope.experiments.train.dynamics import WatchedTraining
        from rotoscope.experiments.train.restrictions import restriction_of, restrictions
        from rotoscope.experiments.train.watch import Watch
        from rotoscope.lab.training import train as train_models

    alone = len(task) == len(favour) == 1 and seeds is None and len(angles) < 2
    many = "" if alone else f"x{seeds or 1}"
    words = [word.replace(":", ".") for word in angles] + [kind for kind in favour if favour != ("none",)]
    folder = output.folder(*task, preset, *words, str(settings.get("seed", 0)), many)
    if angles:
        settings["angles"] = angles[0] if alone else angles
    trained: Any = train_models(
        task[0] if alone else task,  # type: ignore[call-overload]
        preset,
        seeds=seeds,
        favour=favour[0] if alone else favour,
        out=folder,
        on_evaluate=Watch(),
        device=output.device,
        overwrite=output.overwrite,
        **settings,
    )
    models = [WatchedTraining(run.run, run.tables) for run in ([trained] if alone else trained)]
    folders = [folder] if alone else [run.folder for run in trained]
    for model, place in zip(models, folders, strict=True):
        end(model, place, output, then=[["dynamics", place], ["lengths", place]])
    if alone or len(favour) > 1 or all(restriction_of(run.run.settings) == "all" for run in models):
        return 0
    result = restrictions(trained)
    return end(result, result.save(folder / "restrictions", overwrite=True), output)


PAIRS, INPUTS = 16, 200


@command
def dynamics(
    source: str,
    *,
    task: Literal["number", "letter", "binding", "repeats"] | None = None,
    queries: Literal["last", "path", "all"] | None = None,
    inputs: int | None = None,
    roles: bool = True,
    seed: int = 0,
    chosen: SeriesSettings,
    output: Output,
) -> int:
    """Score all heads along training, then say which layer does what in the trained model.

    Example: rotoscope dynamics number --out runs/dynamics-number

    Parameters
    ----------
    source
        A training run, number or letter (the embedded models), a folder of checkpoint-N or step-N, or a model on the hub,
        org/name, with --revisions.
    task
        number, letter: make sure that the checkpoints are of this task. binding, repeats: what checkpoints of language
        models are shown.
    queries
        Positions scored: last, path, all. By default what was watched in training; for checkpoints, or with --inputs or
        --most, last.
    inputs
        Held-out sequences, or prompts, to score the heads on: 200. Given, checkpoints are scored again.
    roles
        Also find roles (Index, Retrieval, Reflexive), the way of the answer, and the frequencies in use.
    seed
        Of prompts, and of the sequences that roles and frequencies are measured on.
    """
    SEED.check("seed", seed)
    WatchSettings.bounds["inputs"].check("inputs", inputs)
    with says_loading():
        from rotoscope.experiments.prompts import make_prompts
        from rotoscope.experiments.train.checkpoint_scores import measure_dynamics
        from rotoscope.experiments.train.series import Series, find_series
        from rotoscope.lab.checkpoints import own_task
        from rotoscope.models.loading import load
        from rotoscope.terminal import new_console, say

    queries = queries or ("last" if inputs is not None or chosen != SeriesSettings() else None)
    inputs = INPUTS if inputs is None else inputs
    console = new_console()
    folder = output.folder("dynamics", Path(source).name)
    scored: str | Series = source
    last: Callable[..., Any] = partial(load, source)
    if chosen.revisions or task in ("binding", "repeats"):
        scored = find_series(source, chosen)
        last = scored.load_last
    prompts = None
    if chosen.revisions and task is None and own_task(last(device="cpu")) is None:
        task = "repeats"
        say(console, "a language model, scored on repeated random tokens (--task repeats; or --task binding)")
    if task in ("binding", "repeats"):  # in the words of the last checkpoint's tokenizer
        sizes, queries = PromptSettings(task=task, pairs=PAIRS, prompts=inputs, seed=seed), queries or "last"
        subject = last(device="cpu")
        prompts, task = make_prompts(subject, sizes), None
    result = measure_dynamics(
        scored,
        task=task,
        prompts=prompts,
        queries=queries,
        inputs=inputs,
        most=chosen.most,
        device=output.device,
        out=folder if queries is not None else None,
        overwrite=output.overwrite,
    )
    if queries is None:
        result.save(folder, overwrite=output.overwrite)
    parts = _roles(last, folder, seed, output) if roles else {}
    return end(result, folder, output, parts=parts, then=[["lengths", source]] if parts else [])


def _roles(last: Callable[..., Any], folder: Path, seed: int, output: Output) -> dict[Path, Any]:
    """Roles and geometry of the trained model by their folders; nothing for models that are not ours."""
    from rotoscope.experiments.commands import can_draw, save_figures
    from rotoscope.experiments.roles.result import find_geometry
    from rotoscope.experiments.roles.run import find_roles, trace
    from rotoscope.lab.checkpoints import own_task
    from rotoscope.terminal import new_console, say

    subject = last(device=output.device)
    if own_task(subject) is None:
        say(
            new_console(),
            "roles are found in models trained on the multi-hop tasks; this one says nothing of them",
        )
        return {}
    if output.figures and can_draw():
        from rotoscope.experiments.roles.figures import information_flow

        with progress_bar("following the answer", None):
            flow = trace(subject, seed=seed)
        save_figures([("information_flow", information_flow(flow))], folder)
    place: dict[str, Any] = {"seed": seed, "overwrite": output.overwrite}
    roles = find_roles(subject, out=folder / "roles", **place)
    with progress_bar("finding the frequencies in use", None):
        geometry = find_geometry(subject, out=folder / "geometry", **place)
    return {folder / "roles": roles, folder / "geometry": geometry}
