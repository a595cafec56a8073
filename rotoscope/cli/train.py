"""`rotoscope train`: a GPT-J on a multi-hop task, with every head scored on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

__all__ = ["train"]

Flag = Annotated[bool, Parameter(negative="")]


def train(
    task: Literal["number", "letter"],
    *,
    preset: Literal["mini", "paper"] = "mini",
    steps: int | None = None,
    batch: int | None = None,
    learning_rate: float | None = None,
    layers: int | None = None,
    heads: int | None = None,
    width: int | None = None,
    rotary: int | None = None,
    nope: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    dropout: float | None = None,
    hops: int | None = None,
    target: int | None = None,
    window: int | None = None,
    letters: int | None = None,
    alphabet: int | None = None,
    digits: int | None = None,
    checkpoints: int | None = None,
    inputs: int = 200,
    queries: Annotated[list[Literal["last", "path", "all"]] | None, Parameter(consume_multiple=True)] = None,
    figures: bool = True,
    out: Path | None = None,
    overwrite: Flag = False,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Train a GPT-J to follow pointers, and watch its heads become positional or symbolic.

    Example: rotoscope train number --preset mini --out runs/number

    Parameters
    ----------
    task
        number (pointers are distances: needs positions) or letter (pointers are symbols).
    preset
        mini: 4 layers, 1 or 2 hops, under a minute on two CPU cores. paper: 12 layers, 1 to 4 hops, for a GPU.
    steps
        Training steps.
    batch
        Sequences per step.
    learning_rate
        Peak of the schedule: linear warm-up, then linear decay to zero.
    layers
        Depth.
    heads
        Heads per layer.
    width
        Width of the residual stream.
    rotary
        Rotating dimensions per head; all by default.
    nope
        Layers that do not rotate at all.
    dropout
        On embeddings, attention and both branches.
    hops
        Most hops; sequences have one to this many in equal shares.
    target
        Tokens in the target window.
    window
        Tokens in the pointing window.
    letters
        Letters of the number task.
    alphabet
        Letters of the letter task.
    digits
        Digits of the letter task.
    checkpoints
        Models kept along the way.
    inputs
        Held-out sequences on which every evaluation scores the heads.
    queries
        Positions asked: last, path, all. Default: last.
    figures
        Draw the figures.
    out
        Run folder. Default: runs/TASK-PRESET-SEED. A killed run goes on where it was.
    overwrite
        Replace a run made with other settings.
    seed
        Weights, sequences, their order, dropout.
    device
        cpu, cuda, ... Default: a GPU where there is one.
    """
    from rotoscope.analysis.dynamics import Watch
    from rotoscope.cli.summary import new_console, show_table, show_written
    from rotoscope.lab.training import train as train_model
    from rotoscope.results.dynamics import Dynamics

    console = new_console()
    folder = out or Path("runs") / f"{task}-{preset}-{seed}"
    given: dict[str, Any] = {
        "steps": steps,
        "batch": batch,
        "learning_rate": learning_rate,
        "layers": layers,
        "heads": heads,
        "width": width,
        "rotary": rotary,
        "nope": tuple(nope) if nope else None,
        "dropout": dropout,
        "hops": hops,
        "target": target,
        "window": window,
        "letters": letters,
        "alphabet": alphabet,
        "digits": digits,
        "checkpoints": checkpoints,
    }
    result = train_model(
        task,
        preset,
        out=folder,
        on_evaluate=Watch(inputs, tuple(queries or ("last",))),
        device=device,
        overwrite=overwrite,
        seed=seed,
        **{name: value for name, value in given.items() if value is not None},
    )
    steps_taken = result.run["settings"]["steps"]
    test = result.test.assign(learned_at=result.learned().reindex(result.test["hops"]).to_numpy())
    show_table(
        console,
        test,
        f"{task} task after {steps_taken:,} steps: accuracy by hops, and the step 95 % was reached",
    )
    heads_over_time = Dynamics.of_training(result)
    show_dynamics(console, heads_over_time)
    spent = result.run["timings"]
    console.print(
        f"\n{spent['total_s']:.0f} s on {result.run['device']}: training {spent['training_s']:.0f} s, scoring heads "
        f"{spent['watching_s']:.1f} s, accuracy {spent['accuracy_s']:.1f} s, saving {spent['saving_s']:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    for caveat in result.run["warnings"]:
        console.print(f"[yellow]caveat:[/] {caveat}", highlight=False, soft_wrap=True)
    written = [folder / "run.json", folder / "metrics.jsonl", *sorted(folder.glob("*.parquet"))]
    written += sorted(folder.glob("checkpoint-*"), key=lambda place: int(place.name.split("-")[1]))
    if figures:
        from rotoscope import figures as draw

        for title, figure in draw.training_figures(heads_over_time):
            written += draw.save_figure(figure, folder / title)
    show_written(console, written)
    return 0


def show_dynamics(console: Any, result: Any) -> None:
    """Which heads ended pure and since when, and what each hop waited for."""
    from rotoscope.cli.summary import show_table

    show_table(
        console, result.pure_from(), "heads at the end (gamma = 0.1), and the steps at which they became pure"
    )
    if result.accuracy is not None:
        show_table(console, result.waiting(), "what each hop waits for: pure heads by the step it is learned")
        show_table(
            console, result.alignment(), "over training, accuracy against the number of heads in each class"
        )
