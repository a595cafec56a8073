"""Which task can one head learn at which frequency?"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from rotoscope.command import Given, command
from rotoscope.experiments.commands import end
from rotoscope.experiments.registry import Experiment, ResultKind
from rotoscope.lab.toy_settings import CanonicalSettings
from rotoscope.progress import says_loading
from rotoscope.settings import Output


@command
def canonical(
    task: Literal["index", "retrieval", "induction", "all"] = "all",
    *,
    preset: Literal["quick", "paper"] = "quick",
    settings: Annotated[Given, CanonicalSettings],
    output: Output,
) -> int:
    """Train one-head models restricted to single RoPE angles, a whole grid at once.

    Example: rotoscope canonical all --preset paper --out runs/canonical

    Parameters
    ----------
    task
        index (positional), retrieval (symbolic), induction (needs both; also with two angles), or all.
    preset
        quick: under a minute, for a first look. paper: 22 angles, 3 seeds, 2,500 steps. The defaults below are those of paper.
    """
    with says_loading():
        from rotoscope.experiments.canonical.run import canonical_experiments

    folder = output.folder("canonical", task, preset)
    place: dict[str, Any] = {"out": folder, "overwrite": output.overwrite}
    result = canonical_experiments(task, preset, device=output.device, **place, **settings)
    then = [["canonical", task, "--preset", "paper"]] if preset == "quick" else []
    return end(result, folder, output, then=then)


EXPERIMENT = Experiment(
    name="canonical",
    question="Which task can one head learn at which frequency?",
    command=":canonical",
    kinds=(
        ResultKind(
            name="canonical",
            result="result:Canonical",
            title="One-head models at single frequencies",
            figures="figures:canonical_figures",
            tabs={"canonical": "result:canonical_tab"},
            tabled=("accuracy", "positions", "vectors", "scores"),
            picture="accuracy",
        ),
    ),
)
