"""What came of trainings that favour a kind of heads: accuracy where they were trained and beyond, and what their heads are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from rotoscope.errors import RunError, TaskError
from rotoscope.experiments.lengths.result import accuracy_row
from rotoscope.experiments.roles.run import HELD_OUT
from rotoscope.experiments.train.restrictions import check_alike
from rotoscope.experiments.train.watch import score_heads
from rotoscope.lab.checkpoints import Training, load_multihop, sequences_for
from rotoscope.lab.gptj import GPTJ, LayerState, head_logits
from rotoscope.lab.settings import TrainSettings
from rotoscope.models.hub import find_checkpoints
from rotoscope.plotting.palette import INK, SCORE_COLOURS
from rotoscope.progress import progress_bar
from rotoscope.runs.record import settings_hash
from rotoscope.runs.result import SavedRun, SummaryTable, Table
from rotoscope.runs.run import Run
from rotoscope.scores.classes import purity_classes
from rotoscope.scores.exclusion_principle import exclusion
from rotoscope.tasks.multihop_frames import MultiHops

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST_SEEDS = 3
"""Trainings of each kind from which something is concluded."""
TRAINING = ["task", "favour", "strength", "seed"]


class Steering(SavedRun):
    """Models that differ in the kind they favour, by task, strength and seed."""

    kind = "steering"

    accuracy = Table(
        "One row per (training, order of the letters, length), with a 95 % interval; longer inputs have more in front."
    )
    heads = Table(
        "One row per (training, layer, head): scores, class (gamma = .1), variance of the logits, both penalties."
    )

    def overview(self) -> pd.DataFrame:
        """By (task, favour, strength): means over seeds of what the heads are and of the accuracy on every kind of inputs."""
        by = TRAINING[:-1]
        heads = self.heads.assign(
            positional=self.heads["head_class"] == "positional", symbolic=self.heads["head_class"] == "symbolic"
        )
        named = ["positional", "symbolic", "positional_penalty", "symbolic_penalty"]
        shares = heads.groupby(by, sort=False)[named].mean()
        seeds = self.heads.groupby(by, sort=False)["seed"].nunique().rename("seeds")
        right = self.accuracy.assign(on=self.accuracy["order"] + " " + self.accuracy["length"].astype(str))
        columns = right.drop_duplicates("on")["on"]
        wide = right.pivot_table(index=by, columns="on", values="accuracy", sort=False)[list(columns)]
        return shares.join(seeds).join(wide).reset_index()

    def summaries(self) -> list[SummaryTable]:
        """Heads and accuracy by the kind that was favoured."""
        needs = ("accuracy", "heads")
        overview = "Heads and accuracy by the kind that was favoured, means over seeds"
        return [
            SummaryTable(overview, self.overview, needs),
            SummaryTable("Every kind beside none and beside the opposite", self.comparisons, needs),
        ]

    def comparisons(self) -> pd.DataFrame:
        """Every favoured kind beside none and beside the opposite, on every kind of inputs: better, worse, or neither.

        Better means that with at least three seeds of both, the worst of the one is above the best of the other, and that
        their 95 % intervals do not touch; worse the reverse. Anything else is neither, and nothing follows from it.
        """
        rows = []
        for (task, order, length), rows_of_inputs in self.accuracy.groupby(
            ["task", "order", "length"], sort=False
        ):
            kinds = dict(list(rows_of_inputs.groupby(["favour", "strength"], sort=False)))
            for (favour, strength), first in kinds.items():
                opposite = {"symbolic": "positional", "positional": "symbolic"}.get(favour)
                for against, second in kinds.items():
                    if favour != "none" and against in (("none", 0.0), (opposite, strength)):
                        about = {
                            "task": task,
                            "order": order,
                            "length": length,
                            "favour": favour,
                            "strength": strength,
                        }
                        rows.append(about | {"against": against[0]} | _compared(first, second))
        return pd.DataFrame(rows)


def _compared(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, object]:
    """Two sets of trainings on the same inputs."""
    seeds = min(first["seed"].nunique(), second["seed"].nunique())
    answer = "neither"
    if seeds >= FEWEST_SEEDS:
        answer = "better" if first["low"].min() > second["high"].max() else answer
        answer = "worse" if first["high"].max() < second["low"].min() else answer
    means = {"accuracy": first["accuracy"].mean(), "against_accuracy": second["accuracy"].mean()}
    return {"seeds": seeds, **means, "found": answer}


# Trainings that favour a kind of heads, side by side: what their heads are, and how far their models generalise.
#
# Accuracy is measured in training order and, where the task has another, shuffled, both at the length of training and on
# longer inputs, which have more tokens in front. Heads are measured at the last token of held-out sequences.


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
    for training in opened:
        check_alike(
            next(run for run in opened if run.task == training.task).run.settings,
            training.run.settings,
            STEERED,
        )
    settings_list = [TrainSettings.read(run.run.settings) for run in opened]
    about = [
        {
            "task": training.task,
            "favour": training.favour,
            "strength": training.strength * (training.favour != "none"),
            "seed": training.seed,
        }
        for training in settings_list
    ]
    named = [str(tuple(row.values())) for row in about]
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
        samples = sequences_for(subject.model.config, count, first=HELD_OUT, balanced=True, **changes)
        return samples.to(subject.device)

    samples_of_heads = sequences(HEAD_INPUTS)
    orders: dict[str, dict[str, bool]] = {"in order": {}}
    if "shuffled" in samples_of_heads.settings:
        orders["shuffled"] = {"shuffled": True}
    for order, changes in orders.items():
        for front in (0, *longer):
            if samples_of_heads.length + front <= model.shape.positions:
                samples = sequences(inputs, front=front, **changes)
                accuracy = accuracy_row(_right(model, samples), len(samples))
                rows.append({"order": order, "length": samples.length, **accuracy})
    return {
        "accuracy": pd.DataFrame(rows).assign(**about),
        "heads": _heads(model, samples_of_heads).assign(**about),
    }


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
    exclusions = [exclusion(head_logits([state], samples.length - 1)[0, ..., :-1, :-1]) for state in states]
    columns = {
        "variance": [layer.variance for layer in exclusions],
        "positional_penalty": [layer.penalty("positional") for layer in exclusions],
        "symbolic_penalty": [layer.penalty("symbolic") for layer in exclusions],
    }
    means = {name: torch.stack(values).mean(1).flatten().cpu().numpy() for name, values in columns.items()}
    kinds = purity_classes(table["positional_score"], table["symbolic_score"])
    return table.assign(head_class=kinds, **means)


# Trainings that favour a kind of heads: how right their models are where they were trained, and beyond.


STYLES = ("-", "--", ":", "-.")


def steered_accuracy(run: Steering) -> Figure:
    """Accuracy by length for each task and order of the letters: a point per seed, a line at their mean."""
    from matplotlib.lines import Line2D

    from rotoscope.plotting.style import (
        COLUMN_WIDTH,
        TEXT_WIDTH,
        caption,
        drawing_grid,
        plain_steps,
        top_legend,
    )

    table = run.accuracy
    panels = table[["task", "order"]].drop_duplicates()
    tasks, orders = (list(dict.fromkeys(panels[name])) for name in ("task", "order"))
    strengths = sorted(table.loc[table["favour"] != "none", "strength"].unique())
    colours = {"none": INK, **SCORE_COLOURS}
    width = TEXT_WIDTH if len(orders) > 1 else COLUMN_WIDTH
    with drawing_grid(width, 0.9 + 1.7 * len(tasks), len(tasks), len(orders), sharey=True) as (figure, grid):
        for row, task in enumerate(tasks):
            for column, order in enumerate(orders):
                axes, rows = grid[row, column], table[(table["task"] == task) & (table["order"] == order)]
                if rows.empty:
                    axes.remove()
                    continue
                for (favour, strength), lines in rows.groupby(["favour", "strength"], sort=False):
                    style = "-" if favour == "none" else STYLES[strengths.index(strength) % len(STYLES)]
                    means = lines.groupby("length")["accuracy"].mean()
                    axes.plot(means.index, means, style, color=colours[favour], lw=1.2)
                    axes.plot(lines["length"], lines["accuracy"], "o", color=colours[favour], ms=2.2, alpha=0.6)
                plain_steps(axes, sorted(rows["length"].unique()))
                axes.set(ylim=(-0.02, 1.05))
                axes.set_title(f"{task}, {order}" if len(orders) > 1 else f"{task} task", loc="left")
            grid[row, 0].set_ylabel("accuracy")
        for axes in grid[-1]:
            if axes in figure.axes:
                axes.set_xlabel("length of the input in tokens")
        handles = [Line2D([], [], color=colours["none"], label="nothing favoured")] + [
            Line2D([], [], color=colours[kind], ls=STYLES[k % len(STYLES)], label=f"{kind}, {strength:g}")
            for kind in SCORE_COLOURS
            for k, strength in enumerate(strengths)
            if ((table["favour"] == kind) & (table["strength"] == strength)).any()
        ]
        top_legend(figure, handles, ncols=3)
    seeds, inputs = run.overview()["seeds"].min(), int(table["inputs"].min())
    return caption(
        figure,
        f"{seeds} seeds (points; lines: means), at least {inputs:,} inputs each; the number is the strength of the penalty; longer "
        "inputs have more tokens in front",
    )


def steering_figures(run: Steering) -> Iterator[tuple[str, Figure]]:
    """Accuracy by what was favoured."""
    yield "steered_accuracy", steered_accuracy(run)
