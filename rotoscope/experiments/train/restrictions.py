"""Models whose heads have some frequencies only, beside unrestricted ones: what each still learns.

A task fails under a restriction only where at least three seeds say so: every one of them is right in less than half of the cases,
while every unrestricted seed, three at least, has learned it. What lies between is shown, and nothing is claimed of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.lab.checkpoints import LEARNED, Training
from rotoscope.lab.sequences import training_sequences
from rotoscope.lab.settings import UNRESTRICTED, TrainSettings
from rotoscope.plotting.palette import CLASS_COLOURS, HOP_COLOURS
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun, SummaryTable, Table
from rotoscope.scores.classes import AT_ITS_LAYER
from rotoscope.settings import BASE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rotoscope.terminal import Screen

HALF = 0.5
"""Fewer than half are right: the task fails."""
LEAST_SEEDS = 3
LEARNS, FAILS, BETWEEN, NO_CLAIM = "learned", "fails", "in between", "no claim"
MODEL = ["task", "restriction"]


class Restrictions(SavedRun):
    """Trainings by task, restriction and seed. Frequency ids count from 1, the fastest; layers and heads from 0."""

    kind = "restrictions"

    accuracy = Table("One row per (task, restriction, seed, hops): accuracy on the test sequences, and chance.")
    heads = Table(
        "One row per (task, restriction, seed, layer, head): scores and class at the end of training, where they were watched.",
        optional=True,
    )

    def by_hops(self) -> pd.DataFrame:
        """Accuracy over seeds for each task, restriction and number of hops, and what follows from it (`outcome`)."""
        groups = self.accuracy.groupby([*MODEL, "hops"], sort=False)["accuracy"]
        table = groups.agg(["mean", "std", "min", "max", "count"]).reset_index()
        table = table.rename(columns={"mean": "accuracy", "std": "spread", "count": "seeds"})
        unrestricted = table[table["restriction"] == UNRESTRICTED].set_index(["task", "hops"])
        task_and_hops = pd.MultiIndex.from_frame(table[["task", "hops"]])
        beside = unrestricted.reindex(task_and_hops).reset_index(drop=True)
        table["unrestricted"] = beside["accuracy"]
        table["chance"] = self.accuracy.groupby("task")["chance"].mean().reindex(table["task"]).to_numpy()
        enough = (table["seeds"] >= LEAST_SEEDS) & (beside["seeds"] >= LEAST_SEEDS)
        fails = enough & (beside["min"] >= LEARNED) & (table["max"] < HALF)
        learned = (table["seeds"] >= LEAST_SEEDS) & (table["min"] >= LEARNED)
        judged = enough & (beside["min"] >= LEARNED)
        table["outcome"] = NO_CLAIM
        table.loc[judged, "outcome"] = BETWEEN
        table.loc[learned, "outcome"] = LEARNS
        table.loc[fails, "outcome"] = FAILS
        return table

    def table(self) -> pd.DataFrame:
        """One row per task and restriction: mean accuracy and spread over seeds by hops, chance, scores and pure heads."""
        by_hops = self.by_hops()
        wide = by_hops.groupby(MODEL, sort=False).agg({"seeds": "min", "chance": "first"})
        for hops, rows in by_hops.groupby("hops"):
            heads = rows.set_index(MODEL)
            wide[f"hops_{hops}"], wide[f"hops_{hops}_spread"] = heads["accuracy"], heads["spread"]
        if "heads" in self.tables:
            groups = self.heads.groupby(MODEL, sort=False)
            wide = wide.join(groups[["positional_score", "symbolic_score"]].mean())
            counts = self.heads.groupby([*MODEL, "head_class"]).size().unstack(fill_value=0)
            for kind in AT_ITS_LAYER[:2]:
                wide[f"{kind}_heads"] = counts.get(kind, 0) / wide["seeds"]
        return wide.reset_index()

    def summaries(self) -> list[SummaryTable]:
        """Accuracy by hops, and what follows from it."""
        accuracy = "Accuracy by hops with some frequencies only, and the heads at the end"
        return [
            SummaryTable(accuracy, self.table, ("accuracy",)),
            SummaryTable("What fails and what is learned", self.by_hops, ("accuracy",)),
        ]

    def screen(self) -> Screen:
        """What a terminal shows: accuracy by restriction, and what can be said of each."""
        screen = super().screen()
        nothing = "nothing can be claimed: that takes three seeds, and as many unrestricted ones that learned the task"
        return replace(screen, against=self.sentences() or [nothing])

    def sentences(self) -> list[str]:
        """What can be said of each restriction, with the figures; nothing where nothing can."""
        sentences = []
        for (task, restriction), rows in self.by_hops().groupby(MODEL, sort=False):
            if restriction == UNRESTRICTED:
                continue
            failing, learned = (rows[rows["outcome"] == outcome] for outcome in (FAILS, LEARNS))
            if len(failing):
                worst, all_of = failing["max"].max(), failing["unrestricted"].min()
                sentences.append(
                    f"{task} fails with the angles {restriction} at {_hops(failing)} (at most {worst:.2f} in "
                    f"{int(failing['seeds'].min())} seeds, unrestricted {all_of:.2f}, chance {rows['chance'].iloc[0]:.2f})"
                )
            elif len(learned) == len(rows):
                sentences.append(
                    f"{task} is learned with the angles {restriction} (at least {learned['min'].min():.2f} in "
                    f"{int(learned['seeds'].min())} seeds)"
                )
        return sentences

    def __repr__(self) -> str:
        table = self.table()
        return f"Restrictions({', '.join(dict.fromkeys(table['restriction']))}; {table['seeds'].min()} seeds)"


def _hops(rows: pd.DataFrame) -> str:
    names = [str(hops) for hops in rows["hops"]]
    return f"{' and '.join([', '.join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]} hop{'s' * (names != ['1'])}"


# Which hops survive when heads have some frequencies only: trainings put beside one another.


GUESSED = 1_000
"""Sequences from which chance is known."""
FREE = {
    "seed", "positions", "validation_sequences", "test_sequences", "watch_every", "watch_closely",
    "watch_later", "checkpoints", "preset", "watched",
}  # fmt: skip
"""Settings in which trainings of a task may differ anyway."""
RESTRICTED = {"angles", "base", "nope"}
"""Those of a restriction; what another changes would be taken for the restriction's doing."""
HEAD = ["layer", "head", "positional_score", "symbolic_score", "head_class"]


def restriction_of(settings: Mapping[str, Any]) -> str:
    """The restriction of a training in words: all, where there is none."""
    base, nope = settings.get("base", BASE), settings.get("nope") or ()
    parts = [str(settings.get("angles", UNRESTRICTED))]
    parts += [f"base {base:g}"] if base != BASE else []
    parts += [f"NoPE in {' '.join(map(str, nope))}"] if nope else []
    return ", ".join(parts)


def restrictions(trainings: Sequence[Training]) -> Restrictions:
    """Trainings of the multi-hop tasks that differ in angles, base or NoPE layers, and in seeds.

    Put unrestricted ones among them, three seeds at least of each, or nothing can be said.
    """
    if not trainings:
        raise RotoscopeError("no training was given; give some, with restrictions and without")
    accuracy, heads, models, chances = [], [], set(), dict[str, float]()
    first = {run.task: run.run.settings for run in reversed(trainings)}
    tasks = list(dict.fromkeys(run.task for run in trainings))
    for run in sorted(trainings, key=lambda run: tasks.index(run.task)):
        settings = run.run.settings
        about = {"task": run.task, "restriction": restriction_of(settings), "seed": settings["seed"]}
        if tuple(about.values()) in models:
            raise RotoscopeError(f"the training of {', '.join(map(str, about.values()))} was given twice")
        models.add(tuple(about.values()))
        check_alike(first[run.task], settings, RESTRICTED)
        if run.task not in chances:
            sequences = training_sequences(TrainSettings.read(settings), "test", count=GUESSED)
            chances[run.task] = float(sequences.prompts().chance or 0.0)
        accuracy.append(run.test.assign(**about, chance=chances[run.task]))
        if "scores" in run.tables:
            heads.append(Dynamics.of_training(run).pure_from()[HEAD].assign(**about))
    tables = {"accuracy": pd.concat(accuracy, ignore_index=True)}
    if len(heads) == len(accuracy):
        tables["heads"] = pd.concat(heads, ignore_index=True)
    shared = {
        name: value
        for name, value in first[trainings[0].task].items()
        if name not in FREE | RESTRICTED | {"task"}
    }
    return Restrictions(RunRecord(Restrictions.kind, shared, device=trainings[0].run.device), tables)


def check_alike(first: Mapping[str, Any], second: Mapping[str, Any], may_differ: set[str]) -> None:
    """Refuse trainings that differ in more than what is asked about."""
    for name in sorted((set(first) | set(second)) - FREE - may_differ):
        if first.get(name) != second.get(name):
            raise RotoscopeError(
                f"trainings that are put beside one another must have the same {name}, found {first.get(name)} and {second.get(name)}"
            )


# Heads with some frequencies only: what models still learn, and what their heads become.


def restricted_accuracy(run: Restrictions) -> Figure:
    """Left, accuracy by restriction and hops, a point per seed and a line at the mean; right, the classes of the heads."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from rotoscope.plotting.style import COLUMN_WIDTH, TEXT_WIDTH, caption, drawing_grid, top_legend

    tasks = list(dict.fromkeys(run.accuracy["task"]))
    names = list(dict.fromkeys(run.accuracy["restriction"]))
    all_hops = sorted(int(hops) for hops in run.accuracy["hops"].unique())
    watched = "heads" in run.tables
    size = (
        TEXT_WIDTH if watched else COLUMN_WIDTH,
        1.0 + len(tasks) * (0.6 + 0.3 * len(names)),
        len(tasks),
        1 + watched,
    )
    with drawing_grid(*size, sharex="col", sharey=True) as (figure, grid):
        for (axes, *rest), task in zip(grid, tasks, strict=True):
            task_rows = run.accuracy[run.accuracy["task"] == task]
            for k, hops in enumerate(all_hops):
                points = task_rows[task_rows["hops"] == hops]
                colour, off = HOP_COLOURS[k % len(HOP_COLOURS)], 0.64 * ((k + 0.5) / len(all_hops) - 0.5)
                rows = points["restriction"].map(names.index) + off
                means = points.groupby("restriction")["accuracy"].mean()
                at = [names.index(name) + off for name in means.index]
                axes.plot(means, at, "|", color=colour, markersize=16 / (1 + len(all_hops)), markeredgewidth=2)
                axes.plot(points["accuracy"], rows, "o", color=colour, markersize=2.5, alpha=0.7)
            axes.axvline(task_rows["chance"].mean(), color="#999999", lw=0.8, ls=":")
            axes.set_yticks(range(len(names)), names)
            axes.set(xlim=(-0.02, 1.03), ylim=(len(names) - 0.5, -0.5))
            axes.set_title(f"{task} task", loc="left")
            for ax in rest:
                shares = run.heads[run.heads["task"] == task].groupby("restriction")["head_class"]
                wide = shares.value_counts(normalize=True).unstack(fill_value=0.0)
                at, before = [names.index(name) for name in wide.index], 0.0 * wide.iloc[:, 0]
                for kind in AT_ITS_LAYER:
                    if kind in wide:
                        ax.barh(at, wide[kind], left=before, color=CLASS_COLOURS[kind], height=0.6)
                        before = before + wide[kind]
                ax.set(xlim=(0, 1))
                ax.set_title("heads at the end", loc="left")
        grid[-1, 0].set_xlabel("accuracy on test sequences")
        words = [f"{hops} hop{'s' * (hops > 1)}" for hops in all_hops]
        colours = [HOP_COLOURS[k % len(HOP_COLOURS)] for k in range(len(all_hops))]
        handles: list[Any] = [
            Line2D([], [], color=c, marker="o", ms=3, ls="", label=w)
            for c, w in zip(colours, words, strict=True)
        ]
        if watched:
            grid[-1, 1].set_xlabel("share of the heads")
            handles += [Patch(color=CLASS_COLOURS[kind], label=kind) for kind in AT_ITS_LAYER]
        top_legend(figure, handles)
    s, seeds = run.run.settings, run.by_hops()["seeds"].min()
    return caption(
        figure,
        f"{s['layers']} layers, {s['steps']:,} steps of {s['batch']}, {seeds} seeds; heads with these frequency ids only (1 is the "
        "fastest); bars: means, dotted: chance",
    )


def restriction_figures(run: Restrictions) -> Iterator[tuple[str, Figure]]:
    """Accuracy under every restriction."""
    yield "restricted_accuracy", restricted_accuracy(run)
