"""`rotoscope data`: a multi-hop task as a dataset on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

__all__ = ["data"]

Flag = Annotated[bool, Parameter(negative="")]


def data(
    task: Literal["number", "letter"],
    *,
    train: int = 432_000,
    validation: int = 2_400,
    test: int = 45_600,
    hops: int = 4,
    target: int = 8,
    window: int = 8,
    letters: int = 120,
    alphabet: int = 8,
    digits: int = 8,
    out: Path | None = None,
    overwrite: Flag = False,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Write the sequences of a multi-hop task as Parquet with a dataset card.

    Example: rotoscope data letter --train 10000 --validation 1000 --test 1000 --out runs/letter-data

    Parameters
    ----------
    task
        number (pointers are distances) or letter (pointers are symbols).
    train
        Training sequences.
    validation
        Sequences to watch training with.
    test
        Sequences to judge the result with. No sequence is in two of the three.
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
    out
        Folder. Default: runs/data-TASK.
    overwrite
        Replace a dataset that is there.
    seed
        The sequences are a function of it.
    device
        Taken like everywhere; sequences are made on the CPU.
    """
    from rotoscope.cli.summary import new_console, show_written
    from rotoscope.lab.data import export_dataset
    from rotoscope.lab.training import TrainSettings

    settings = TrainSettings(
        task,
        seed,
        hops,
        target,
        window,
        letters,
        alphabet,
        digits,
        train_sequences=train,
        validation_sequences=validation,
        test_sequences=test,
        batch=1,
    )
    files = export_dataset(settings, out or Path("runs") / f"data-{task}", overwrite=overwrite)
    show_written(new_console(), files)
    return 0
