"""How far do models generalise to longer inputs?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rotoscope.command import Given, command
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.commands import end
from rotoscope.experiments.lengths.settings import LengthsSettings
from rotoscope.experiments.registry import Experiment, ResultKind
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
    chosen = LengthsSettings.make(**settings)
    if source == STORED and settings:
        flag = next(iter(settings)).replace("_", "-")
        raise RotoscopeError(f"--{flag} means nothing for stored measurements: they are shown as they are")
    with says_loading():
        from rotoscope.experiments.lengths.run import measure_lengths, stored_lengths

    folder = output.folder(Path(source).name, "lengths")
    if source == STORED:
        result = stored_lengths()
        result.save(folder, overwrite=output.overwrite)
    else:
        place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
        result = measure_lengths(source, chosen, device=output.device, **place)
    then = [["reproduce", "p2"]] if source == STORED else [["lengths", STORED]]
    return end(result, folder, output, then=then)


EXPERIMENT = Experiment(
    name="lengths",
    question="How far do models generalise to longer inputs?",
    command=":lengths",
    kinds=(
        ResultKind(
            name="lengths",
            result="result:Lengths",
            title="How far models generalise",
            figures="figures:length_figures",
            tabs={"lengths": "result:lengths_tab"},
            tabled=("heads",),
        ),
    ),
)
