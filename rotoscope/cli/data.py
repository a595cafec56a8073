"""`rotoscope data`: a multi-hop task as a dataset on disk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from rotoscope.cli.command import Given, command
from rotoscope.progress import progress_bar, says_loading
from rotoscope.settings import Output, TrainSettings


@command
def data(
    task: Literal["number", "letter", "either"],
    *,
    train: int = 432_000,
    validation: int = 2_400,
    test: int = 45_600,
    sizes: Annotated[Given, TrainSettings, "hops", "target", "window", "letters", "alphabet", "digits", "seed"],
    output: Annotated[Given, Output, "out", "overwrite", "device"],
) -> int:
    """Write the sequences of a multi-hop task as Parquet with a dataset card.

    Example: rotoscope data letter --train 10000 --validation 1000 --test 1000 --out runs/letter-data

    Parameters
    ----------
    task
        number (pointers are distances), letter (pointers are symbols) or either (a pair is found by its place or its letter).
    train
        Training sequences.
    validation
        Sequences to watch training with.
    test
        Sequences to judge the result with. No row is in two of the three, but with few letters and short windows the
        same sequence can be; how many are is said at the end and in the card.
    """
    TrainSettings.check_meant(sizes, task)
    with says_loading():
        from rotoscope.cli.summary import show_written
        from rotoscope.cli.terminal import as_flags, new_console, say, show_next
        from rotoscope.lab.data import export_dataset, known_sequences
        from rotoscope.reading.devices import pick_device

    settings = TrainSettings.preset(
        "paper",
        task=task,
        train_sequences=train,
        validation_sequences=validation,
        test_sequences=test,
        batch=1,
        **sizes,
    )
    place = Output.make(**output)
    device = pick_device(place.device or "cpu")
    how: dict[str, Any] = {"overwrite": place.overwrite, "device": device}
    with progress_bar("writing sequences", None):
        files = export_dataset(settings, place.folder("data", task), **how)
        known_to_train = known_sequences(settings, device)
    console = new_console()
    for part, (different, known) in known_to_train.items():
        say(console, f"{part}: {different:,} different sequences, {known:,} of them also in train")
    show_written(console, files)
    show_next(console, ["train", task, *as_flags(sizes)])
    return 0
