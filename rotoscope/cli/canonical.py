"""`rotoscope canonical`: which task can one head learn at which frequency?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from rotoscope.errors import RotoscopeError

__all__ = ["canonical"]

Flag = Annotated[bool, Parameter(negative="")]


def canonical(
    task: Literal["index", "retrieval", "induction", "all"] = "all",
    *,
    preset: Literal["quick", "paper"] = "quick",
    angles: Annotated[list[float] | None, Parameter(consume_multiple=True)] = None,
    seeds: int | None = None,
    steps: int | None = None,
    keys: int | None = None,
    symbols: int | None = None,
    entities: int | None = None,
    embedding: int | None = None,
    figures: bool = True,
    out: Path | None = None,
    overwrite: Flag = False,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Train one-head models restricted to single RoPE angles, a whole grid at once.

    Example: rotoscope canonical all --preset paper --out runs/canonical

    Parameters
    ----------
    task
        index (positional), retrieval (symbolic), induction (needs both; also with two angles), or all.
    preset
        quick: under a minute, for a first look. paper: 22 angles, 3 seeds, 2,500 steps.
    angles
        Angles per position; 0 is NoPE.
    seeds
        Models per angle.
    steps
        Training steps.
    keys
        Keys in an input.
    symbols
        Symbols or attributes.
    entities
        Entities of retrieval and induction.
    embedding
        Width of learned embeddings; one-hot tables by default.
    figures
        Draw the figures.
    out
        Run folder. Default: runs/canonical-TASK-PRESET. A killed run goes on where it was.
    overwrite
        Replace a run made with other settings.
    seed
        Shifts every initialisation and all data.
    device
        cpu, cuda, ... Default: a GPU where there is one.
    """
    from rotoscope.analysis.canonical import canonical_experiments
    from rotoscope.cli.summary import new_console, show_table, show_written

    console = new_console()
    folder = out or Path("runs") / f"canonical-{task}-{preset}"
    given = {
        "seeds": seeds,
        "steps": steps,
        "keys": keys,
        "symbols": symbols,
        "entities": entities,
        "embedding": embedding,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if seed:
        changes["seed"] = seed
    if angles is not None and not angles:
        raise RotoscopeError("the list of angles is empty; give at least one angle, 0 for NoPE")
    result = canonical_experiments(
        task, preset, angles=angles, device=device, out=folder, overwrite=overwrite, **changes
    )
    budget = result.run["settings"]
    show_table(
        console,
        result.table().reset_index(),
        f"accuracy after {budget['steps']} steps of {budget['batch']}, mean of {budget['seeds']} seeds (theta = 0: NoPE)",
    )
    written = [*sorted(folder.glob("*.parquet")), folder / "run.json"]
    if figures:
        from rotoscope import figures as draw

        made = {
            "accuracy": draw.canonical_accuracy(result),
            "steps": draw.canonical_steps(result),
            "positions": draw.canonical_positions(result),
            "scores": draw.canonical_scores(result),
        }
        if len(result.vectors):
            made["vectors"] = draw.canonical_vectors(result)
        for name, figure in made.items():
            written += draw.save_figure(figure, folder / name)
    show_written(console, written)
    return 0
