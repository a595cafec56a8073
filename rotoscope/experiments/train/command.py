"""`rotoscope train`: a GPT-J on a multi-hop task, with every head scored on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from rotoscope.command import Given, command
from rotoscope.lab.settings import TrainSettings
from rotoscope.progress import says_loading
from rotoscope.settings import Output

MANY_HEADS = 40
"""More heads than this are counted, and the pure ones named."""


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
        from rotoscope.experiments.train.restrictions import restriction_of
        from rotoscope.experiments.train.watch import Watch
        from rotoscope.lab.training import train as train_models
        from rotoscope.terminal import new_console

    console = new_console()
    alone = len(task) == len(favour) == 1 and seeds is None and len(angles) < 2
    many = "" if alone else f"x{seeds or 1}"
    words = [word.replace(":", ".") for word in angles] + [kind for kind in favour if favour != ("none",)]
    folder = output.folder(*task, preset, *words, str(settings.get("seed", 0)), many)
    if angles:
        settings["angles"] = angles[0] if alone else angles
    runs: Any = train_models(
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
    if alone:
        return _show(console, runs, folder, output.figures)
    for run in runs:
        _show(console, run, run.folder, output.figures)
    restricted = len(favour) == 1 and any(restriction_of(run.run.settings) != "all" for run in runs)
    return _show_restrictions(console, runs, folder, output.figures) if restricted else 0


def _show_restrictions(console: Any, runs: list[Any], folder: Path, draw: bool) -> int:
    """What models with restricted heads learned, beside the others."""
    from rotoscope.experiments.show import end, show_table
    from rotoscope.experiments.train.restrictions import restrictions
    from rotoscope.runs.files import write_text
    from rotoscope.terminal import say

    result = restrictions(runs)
    table = result.table()
    place = result.save(folder / "restrictions", overwrite=True)
    title = "heads with some frequencies only: accuracy by hops, mean and spread over seeds"
    show_table(console, table, title, place / "table.csv")
    write_text(place / "table.csv", table.to_csv(index=False))
    nothing = (
        "nothing can be claimed: that takes three seeds, and as many unrestricted ones that learned the task"
    )
    for sentence in result.sentences() or [nothing]:
        say(console, sentence, markup=False)
    return end(console, result, place, draw=draw)


def _show(console: Any, result: Any, folder: Path, draw: bool) -> int:
    """What came of one model."""
    from rotoscope.experiments.show import end, show_table
    from rotoscope.experiments.train.dynamics_result import Dynamics
    from rotoscope.terminal import say

    test = result.test.assign(learned_at=result.learned().reindex(result.test["hops"]).to_numpy())
    after = (
        f"{result.task} task, seed {result.run.settings['seed']}, after {result.run.settings['steps']:,} steps"
    )
    title = f"{after}: accuracy by hops, and the step 95 % was reached"
    show_table(console, test, title, folder / "test.csv")
    show_dynamics(console, Dynamics.of_training(result), folder)
    spent, models_as_one = result.run.timings, result.run.details.get("trained_as_one")
    say(
        console,
        f"\n{spent['total_s']:.0f} s on {result.run.device}{f' for {models_as_one} models as one' if models_as_one else ''}: "
        f"training {spent['training_s']:.0f} s, scoring heads {spent['watching_s']:.1f} s, accuracy "
        f"{spent['accuracy_s']:.1f} s, saving {spent['saving_s']:.1f} s{' for this one' if models_as_one else ''}",
    )
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda place: int(place.name.split("-")[1]))
    next_commands = [["dynamics", folder], ["lengths", folder]]
    return end(console, result, folder, draw=draw, beside=checkpoints, then=next_commands)


def show_dynamics(console: Any, result: Any, folder: Path) -> None:
    """Which heads ended pure and since when (of many heads: how many are of each class, and the pure ones), and what each
    hop waited for."""
    from rotoscope.experiments.show import show_table

    heads, file = result.pure_from(), folder / "pure_from.csv"
    title = "heads at the end (gamma = 0.1), and the steps at which they became pure"
    if len(heads) > MANY_HEADS:
        _show_many(console, heads, file)
    else:
        show_table(console, heads, title, file)
    if result.has_hops:
        title = "what each hop waits for: pure heads by the step it is learned"
        show_table(console, result.waiting(), title, folder / "waiting.csv")
    if result.accuracy is not None:
        title = "over training, accuracy against the number of heads in each class"
        show_table(console, result.alignment(), title, folder / "alignment.csv")


def _show_many(console: Any, heads: Any, file: Path) -> None:
    """Counts by class, the heads that end pure in the order in which they became so, and where all heads are."""
    from rotoscope.experiments.show import show_table
    from rotoscope.runs.files import write_text
    from rotoscope.terminal import say

    groups = heads.groupby("head_class")["little_at_stake"]
    counts = groups.agg(["size", "sum"]).set_axis(["heads", "little_at_stake"], axis=1).reset_index()
    show_table(console, counts, f"{len(heads)} heads at the end (gamma = 0.1) by class", file)
    pure = heads.dropna(subset=["first_pure"]).sort_values(["first_pure", "layer", "head"])
    if len(pure):
        title = "heads that end pure, in the order in which they became so"
        show_table(console, pure, title, file.with_name("pure_heads.csv"))
    write_text(file, heads.to_csv(index=False))
    say(console, f"all {len(heads)} heads: {file}", markup=False)
