"""Do the papers' theorems hold? Every statement, put to the test."""

from __future__ import annotations

from typing import Annotated

from rotoscope.command import Given, command
from rotoscope.experiments.commands import end
from rotoscope.experiments.registry import Experiment, ResultKind
from rotoscope.progress import says_loading
from rotoscope.settings import Output


@command
def theory(
    name: str | None = None,
    *,
    output: Annotated[Given, Output, "out", "overwrite", "figures", "page", "verbose"],
) -> int:
    """Run the papers' theorems, constructions and errata as checks over inputs, on the CPU in float64.

    Example: rotoscope theory exclusion

    Parameters
    ----------
    name
        One statement; all of them by default. A wrong name lists them.
    """
    place = Output.make(**output)
    with says_loading():
        from rotoscope.experiments.theory.run import run_theory

    folder = place.folder("theory", name or "")
    result = run_theory(name, out=folder, overwrite=place.overwrite)
    return end(result, folder, place, then=[["reproduce"]])


EXPERIMENT = Experiment(
    name="theory",
    question="Do the papers' theorems hold? Every statement, put to the test.",
    command=":theory",
    kinds=(
        ResultKind(
            name="theory",
            result="run:TheoryRun",
            title="Statements of both papers, checked",
            figures="figures:theory_figures",
            tabs={"theory": "run:theory_tab"},
            tabled=("statements",),
        ),
    ),
)
