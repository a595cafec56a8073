"""`rotoscope train`: a GPT-J on a multi-hop task, with every head scored on the way."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from rotoscope.command import Given, command
from rotoscope.experiments.commands import end
from rotoscope.lab.settings import TrainSettings
from rotoscope.progress import says_loading
from rotoscope.settings import Output


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
        from rotoscope.experiments.train.dynamics_result import WatchedTraining
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
