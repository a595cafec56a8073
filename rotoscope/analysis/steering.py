"""Trainings that favour a kind of heads, side by side: what their heads are, and how far their models generalise.

Accuracy is measured in training order and, where the task has another, shuffled, both at the length of training and on
longer inputs, which have more tokens in front. Heads are measured at the last token of held-out sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from rotoscope.analysis.restriction import check_alike
from rotoscope.analysis.roles import HELD_OUT
from rotoscope.analysis.watching import score_heads
from rotoscope.errors import RunError, TaskError
from rotoscope.lab.checkpoints import load_multihop, sequences_for
from rotoscope.lab.gptj import GPTJ, LayerState, head_logits
from rotoscope.maths.exclusion_principle import exclusion
from rotoscope.maths.purity import purity_classes
from rotoscope.progress import progress_bar
from rotoscope.reading import find_checkpoints
from rotoscope.results.lengths import accuracy_row
from rotoscope.results.record import settings_hash
from rotoscope.results.run import Run
from rotoscope.results.steering import Steering
from rotoscope.results.training import Training
from rotoscope.settings import TrainSettings
from rotoscope.tasks.multihop import MultiHops

AT_ONCE = 50_000
"""Tokens that run through a model together."""
HEAD_INPUTS = 400
STEERED = {"favour", "strength", "favour_layers", "favour_from", "favour_until"}
"""Settings in which trainings that are put beside one another may differ, besides those that change nothing."""


def measure_steering(
    runs: Sequence[str | Path],
    *,
    longer: Sequence[int] = (20, 50, 100, 200, 500),
    inputs: int = 1_000,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Steering:
    """Accuracy and heads of the last models of training runs (folders), which differ in what they favour, and in seeds.

    `longer` are numbers of tokens in front of the sequences; `inputs` how many sequences each accuracy is measured on.
    """
    if not runs or min(longer, default=1) < 1 or inputs < 1:
        raise TaskError("give at least one training run, one input, and numbers of tokens in front from 1 on")
    if isinstance(runs, (str, Path)):
        raise TaskError("give the folders of training runs as a list, one for each model")
    opened = [Training.open(folder) for folder in runs]
    for one in opened:
        check_alike(next(run for run in opened if run.task == one.task).run.settings, one.run.settings, STEERED)
    each = [TrainSettings.read(run.run.settings) for run in opened]
    about = [
        {
            "task": one.task,
            "favour": one.favour,
            "strength": one.strength * (one.favour != "none"),
            "seed": one.seed,
        }
        for one in each
    ]
    named = [str(tuple(one.values())) for one in about]
    if len(set(named)) < len(named):
        raise RunError("two of the runs have the same task, favoured kind, strength and seed; give each once")
    trained = [settings_hash(run.run.settings) for run in opened]
    settings = {"runs": named, "trained": trained, "longer": list(longer), "inputs": inputs}
    run = Run(Steering, settings, out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    with progress_bar("steering", len(named), show_progress) as bar:
        for k, (folder, row) in enumerate(zip(runs, about, strict=True)):
            run.piece(f"model-{k:04d}", partial(_measured, Path(folder), row, longer, inputs, device))
            bar.advance(1)
    return run.finish()


@torch.no_grad()
def _measured(
    folder: Path, about: dict[str, Any], longer: Sequence[int], inputs: int, device: str | None
) -> dict[str, pd.DataFrame]:
    """The tables of one model, with what it is about."""
    places = find_checkpoints(folder)
    subject = load_multihop(places[max(places)], device)
    model, rows = GPTJ.from_transformers(subject.model), []

    def sequences(count: int, **changes: Any) -> MultiHops:
        made = sequences_for(subject.model.config, count, first=HELD_OUT, balanced=True, **changes)
        return made.to(subject.device)

    shown = sequences(HEAD_INPUTS)
    orders: dict[str, dict[str, bool]] = {"in order": {}}
    if "shuffled" in shown.settings:
        orders["shuffled"] = {"shuffled": True}
    for order, changes in orders.items():
        for front in (0, *longer):
            if shown.length + front <= model.shape.positions:
                samples = sequences(inputs, front=front, **changes)
                found = accuracy_row(_right(model, samples), len(samples))
                rows.append({"order": order, "length": samples.length, **found})
    return {"accuracy": pd.DataFrame(rows).assign(**about), "heads": _heads(model, shown).assign(**about)}


def _right(model: GPTJ, samples: MultiHops) -> int:
    """How many answers are right."""
    size = max(1, AT_ONCE // samples.length)
    parts = range(0, len(samples), size)
    return sum(
        int((model.logits(samples.tokens[k : k + size]).argmax(-1) == samples.answer[k : k + size]).sum())
        for k in parts
    )


def _heads(model: GPTJ, samples: MultiHops) -> pd.DataFrame:
    """Scores of the heads at the last token, and how far they are from either kind."""
    table = score_heads(model, samples)[["layer", "head", "positional_score", "symbolic_score"]]
    states: list[LayerState] = []
    model.logits(samples.tokens, visit=states.append)
    found = [exclusion(head_logits([state], samples.length - 1)[0, ..., :-1, :-1]) for state in states]
    own = {
        "variance": [one.variance for one in found],
        "positional_penalty": [one.penalty("positional") for one in found],
        "symbolic_penalty": [one.penalty("symbolic") for one in found],
    }
    means = {name: torch.stack(values).mean(1).flatten().cpu().numpy() for name, values in own.items()}
    kinds = purity_classes(table["positional_score"], table["symbolic_score"])
    return table.assign(head_class=kinds, **means)
