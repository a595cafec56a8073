"""A toy experiment as another package would declare it: how loud a head is, the norm of its output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from rotoscope.experiments.registry import Experiment, PromptChoice, ResultKind
from rotoscope.runs.result import SavedRun, SummaryTable, Table
from rotoscope.runs.run import Run
from rotoscope.settings import Settings, count


@dataclass(frozen=True, kw_only=True)
class LoudSettings(Settings):
    """What loudness is measured at."""

    bounds: ClassVar = {"repeat": count(9, "more says nothing new")}
    repeat: int = 1
    """How often to look."""


class Loudness(SavedRun):
    """How loud every layer is."""

    kind = "loudness"
    layers = Table("One row per layer.")

    def summaries(self) -> list[SummaryTable]:
        return [SummaryTable("Loudness by layer", lambda: self.layers, ("layers",))]

    def sentences(self) -> list[str]:
        return [f"The loudest layer is {self.layers['loud'].idxmax()}."]


def listen(subject: Any, prompts: Any, settings: LoudSettings, *, seed: int = 0, **place: Any) -> Loudness:
    run = Run(
        Loudness, {"model": subject.name, "seed": seed, "prompts": len(prompts)} | settings.stored(), **place
    )
    if run.finished is not None:
        return run.finished
    layers = [{"layer": k, "loud": (k + 1.0) * settings.repeat} for k in range(2)]
    run.piece("all", lambda: {"layers": pd.DataFrame(layers)})
    return run.finish()


def loud_figures(run: Loudness) -> Iterator[tuple[str, Any]]:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot(run.layers["layer"], run.layers["loud"])
    yield "loudness", figure


def loud_tab(page_run: Any) -> dict[str, Any]:
    return {"title": "Loudness", "sentences": page_run.opened().sentences(), "tables": []}


EXPERIMENT = Experiment(
    name="loud",
    question="How loud is a layer?",
    example="rotoscope loud smollm2 --repeat 2 --out runs/loud",
    settings=":LoudSettings",
    run=":listen",
    prompts=PromptChoice(task="repeats", sizes={"prompts": 1}, without=("answer",)),
    kinds=(
        ResultKind(
            "loudness", ":Loudness", "Loudness of {name}", figures=":loud_figures", tabs={"loud": ":loud_tab"}
        ),
    ),
)
