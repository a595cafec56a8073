"""`rotoscope lengths`: how far multi-hop models generalise to longer inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.lengths.settings import LengthsSettings
from rotoscope.progress import says_loading
from rotoscope.settings import Output

STORED = "stored"


@command
def lengths(
    source: str,
    *,
    settings: Annotated[Given, LengthsSettings],
    output: Output,
) -> int:
    """Measure the accuracy of a trained multi-hop model on longer and longer inputs.

    Example: rotoscope lengths letter --out runs/letter-lengths

    Parameters
    ----------
    source
        number, letter, a training run or a checkpoint; "stored" shows the measurements of eight models that come with
        rotoscope. Language models and endpoints are asked one-hop questions instead: rotoscope ask.
    """
    lengths_settings = LengthsSettings.make(**settings)
    if source == STORED and settings:
        flag = next(iter(settings)).replace("_", "-")
        raise RotoscopeError(f"--{flag} means nothing for stored measurements: they are shown as they are")
    with says_loading():
        from rotoscope.experiments.lengths.run import measure_lengths, stored_lengths
        from rotoscope.experiments.show import end, show_table
        from rotoscope.terminal import new_console

    console = new_console()
    folder = output.folder(Path(source).name, "lengths")
    if source == STORED:
        result = stored_lengths()
        result.save(folder, overwrite=output.overwrite)
    else:
        place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
        result = measure_lengths(source, lengths_settings, device=output.device, **place)
    curve = result.curve().pivot(index="length", columns="model", values="accuracy").reset_index()
    title = "accuracy by length, all hop counts together"
    show_table(console, curve.rename_axis(columns=None), title, folder / "curve.csv")
    title = (
        "lengths at which accuracy falls below a level: predicted from training length, measured, and where the errors "
        "for other trainings let one expect it"
    )
    expected = result.predictions(known=None if source == STORED else stored_lengths())
    show_table(console, expected, title, folder / "predictions.csv")
    if "heads" in result.tables:
        title = "power of the length with which discrepancy and gap change, with 95 % intervals"
        show_table(console, result.exponents(), title, folder / "exponents.csv")
        title = '"decays for positional, stays for symbolic": heads by class at training length'
        show_table(console, result.decay(), title, folder / "decay.csv")
        title = "discrepancy by class at training length: mean, worst query, 10 %, 50 % and 90 % of all queries"
        show_table(console, result.discrepancies(), title, folder / "discrepancies.csv")
    next_steps = [["reproduce", "p2"]] if source == STORED else [["lengths", STORED]]
    return end(console, result, folder, draw=output.figures, then=next_steps)
