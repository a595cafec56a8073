"""Heads along training: scores of every head at every step looked at, beside the accuracy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rotoscope.errors import RunError
from rotoscope.experiments.train.series import out_of_order
from rotoscope.lab.checkpoints import LEARNED, Training, first_above
from rotoscope.runs.folder import LOG
from rotoscope.runs.result import SavedRun, SummaryTable, Table
from rotoscope.runs.run import Journal, Run
from rotoscope.scores.classes import AT_ITS_LAYER, GAMMA, purity_classes
from rotoscope.stats.aggregate import LEAST_MASS, little_at_stake

if TYPE_CHECKING:
    from rotoscope.terminal import Screen

GAMMAS = (0.05, 0.1, 0.2)
FEWEST_DRAWS = 19
"""Draws of a null from which a band is made."""
STABLE = 5
"""Points after an onset at which its condition still holds."""
MOVING = 200
"""Sampled weights that must have moved before anything is said about the order of steps."""
PURE = ("positional", "symbolic")
WAITING = [
    "hops",
    "learned_at",
    "positional_then",
    "symbolic_then",
    "as_many_positional_at",
    "last_symbolic_at",
]


ENDS_WHERE = "Where every head ends, and since when it has been pure"


class Dynamics(SavedRun):
    """Scores by (step, layer, head, queries, tau), and accuracy by (step, hops) where the task has any.

    `queries` says which positions were asked: "last", "path" (every position the path runs through) or "all".
    Layers and heads count from 0.
    """

    kind = "dynamics"

    @classmethod
    def of_training(cls, training: Training) -> Dynamics:
        """What was watched while a model was trained."""
        if "scores" not in training.tables:
            raise RunError(
                "no heads were watched in this training run; rs.dynamics(folder) scores its checkpoints"
            )
        return cls(training.run, {"scores": training.tables["scores"], "accuracy": training.metrics})

    scores = Table(
        "One row per (step, layer, head, tau): both scores, entropy and effective swaps, means over inputs."
    )

    points = Table(
        "One row per step: the fingerprint of its weights; `revision` where it came from a hub, `content` (a checksum of "
        "its files) where from a folder, `seconds` where a monitor scored it.",
        optional=True,
    )

    null_scores = Table(
        "As `scores`, of a null (models that learned nothing), with its `draw`; a null of one step stands for all steps.",
        optional=True,
    )
    weights = Table("One row per (step, weight): the same few weights at every step.", optional=True)

    def caveats(self) -> list[str]:
        """Steps with the same weights, and steps whose weights would come at another place (`experiments.train.series`)."""
        sentences = []
        if len(self.points):
            alike = self.points.sort_values("step").groupby("fingerprint")["step"].agg(list)
            sentences += [f"{_named(steps)} have the same weights" for steps in sorted(alike) if len(steps) > 1]
        if len(self.weights):
            values = self.weights.pivot(index="step", columns="weight", values="value").dropna(axis=1)
            moving = values.loc[:, values.nunique() > 1].to_numpy(dtype=float)
            # Where few weights move, points that only scatter can look like a way.
            for rows in out_of_order(moving) if moving.shape[1] >= MOVING else ():
                steps = [int(values.index[row]) for row in rows]
                they = (
                    "seem to have each other's weights"
                    if len(steps) > 1
                    else "seems to have those of another step"
                )
                sentences.append(f"{_named(steps)} {they}: the way from step to step would be clearly shorter")
        return sentences

    @property
    def accuracy(self) -> pd.DataFrame | None:
        """One row per (step, hops), 0 hops where the task has none; None where the task has no answers."""
        return self.tables.get("accuracy")

    @property
    def has_hops(self) -> bool:
        """Whether accuracy is told by number of hops; else it is the accuracy on the prompts."""
        return self.accuracy is not None and bool((self.accuracy["hops"] > 0).any())

    @property
    def task(self) -> str:
        """What the heads were scored on."""
        return str(self.run.settings.get("task", ""))

    @property
    def steps(self) -> list[int]:
        """The training steps that were scored, in order."""
        return sorted(int(s) for s in self.scores["step"].unique())

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return int(self.scores["layer"].max()) + 1

    def at(self, *, queries: str | None = None, tau: float | None = None, gamma: float = GAMMA) -> pd.DataFrame:
        """The scores of one kind of query and one tau, with the class of every head at tolerance gamma.

        `little_at_stake` marks heads with less than 5 % of their attention on what is swapped; missing where that
        was not measured.
        """
        return _classed(self.scores, queries, tau, gamma)

    def last_step(self, *, tau: float | None = None) -> pd.DataFrame:
        """The scores of the last step that was scored, with classes."""
        scores = self.at(tau=tau)
        return scores[scores["step"] == scores["step"].max()]

    def purity(self, gammas: tuple[float, ...] = GAMMAS, queries: str | None = None) -> pd.DataFrame:
        """How many heads are in each class, by step and tolerance, and how many of those have little at stake.

        The latter stand in columns such as `positional_little_at_stake`, missing where attention was not measured.
        """
        parts = []
        for gamma in gammas:
            rows = self.at(queries=queries, gamma=gamma)
            groups = rows.groupby(["step", "head_class"])["little_at_stake"]
            counts, little = (
                number.unstack(fill_value=0).reindex(columns=list(AT_ITS_LAYER), fill_value=0).astype("Int64")
                for number in (groups.size(), groups.sum())
            )
            if rows["little_at_stake"].isna().all():
                little[:] = pd.NA
            counts = counts.astype(int).join(little.add_suffix("_little_at_stake")).reset_index()
            counts.insert(0, "gamma", gamma)
            parts.append(counts)
        return pd.concat(parts, ignore_index=True).rename_axis(columns=None)

    def separation(
        self, gamma: float = GAMMA, queries: str | None = None, tau: float | None = None
    ) -> pd.DataFrame:
        """How far heads have separated, by step: the mean of `|positional - symbolic|` over heads, and the share of pure ones.

        Where a null has at least 19 draws, `separation_null_low` and the like are the least and the most of them. That band shows
        where random models lie and gives no verdict: steps are many, and no error is controlled over them.
        """
        rows = self.at(queries=queries, tau=tau, gamma=gamma)
        table = _apart(rows, ["step"])
        if len(rows) and len(self.null_scores) and self.null_scores["draw"].nunique() >= FEWEST_DRAWS:
            query_and_tau = (rows["queries"].iloc[0], rows["tau"].iloc[0])
            draws = _apart(_classed(self.null_scores, *query_and_tau, gamma), ["step", "draw"]).groupby("step")
            for end, band in (("low", draws.min()), ("high", draws.max())):
                band = band.reindex(table.index, method="nearest" if len(band) == 1 else None)
                table = table.join(band.add_suffix(f"_null_{end}"))
        return table.reset_index()

    def pure_from(
        self, gamma: float = GAMMA, queries: str | None = None, tau: float | None = None
    ) -> pd.DataFrame:
        """For every head: where it ends, when it first was pure of that kind, and since when it has been."""
        table = self.at(queries=queries, tau=tau, gamma=gamma).sort_values("step")
        final_columns = ("head_class", "little_at_stake", "positional_score", "symbolic_score")
        columns = {name: table[name].to_numpy() for name in ("step", *final_columns)}
        rows = []
        for (layer, head), track in table.groupby(["layer", "head"]).indices.items():
            final = columns["head_class"][track[-1]]
            same = columns["head_class"][track] == final
            since = len(same) - int(np.argmin(same[::-1])) if not same.all() else 0
            pure = final in PURE
            steps = columns["step"][track]
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    **{name: columns[name][track[-1]] for name in final_columns},
                    "first_pure": int(steps[same][0]) if pure else None,
                    "pure_since": int(steps[since]) if pure else None,
                }
            )
        table = pd.DataFrame(rows)
        return table.astype({"first_pure": "Int64", "pure_since": "Int64", "little_at_stake": "boolean"})

    def pure_counts(
        self, gamma: float = GAMMA, least_mass: float = LEAST_MASS, queries: str | None = None
    ) -> pd.DataFrame:
        """How many heads are pure positional and pure symbolic, by (step, layer).

        Only heads count that have at least `least_mass` of their attention on what is swapped.
        """
        rows = self._pure(gamma, least_mass, queries).groupby(["step", "layer"])[list(PURE)].sum()
        return rows.reset_index()

    def onsets(
        self,
        stable: int = STABLE,
        gamma: float = GAMMA,
        least_mass: float = LEAST_MASS,
        queries: str | None = None,
    ) -> pd.DataFrame:
        """Heads that become pure to stay, in the order in which they do: one row per (layer, head, head_class).

        `onset` is the first step at which a head is pure, and has at least `least_mass` of its attention on what is swapped,
        there and at the next `stable` points.
        """
        rows = self._pure(gamma, least_mass, queries).set_index(["step", "layer", "head"])
        parts = []
        for kind in PURE:
            steps = rows[kind].unstack("step").apply(onset, axis=1, stable=stable).dropna().rename("onset")
            parts.append(steps.reset_index().assign(head_class=kind))
        table = pd.concat(parts).sort_values(["onset", "layer", "head"], ignore_index=True)
        return table[["layer", "head", "head_class", "onset"]].astype({"onset": "int64"})

    def _pure(self, gamma: float, least_mass: float, queries: str | None) -> pd.DataFrame:
        """By (step, layer, head), whether it is pure of either kind with enough at stake."""
        rows = self.at(queries=queries, gamma=gamma)
        enough = ~little_at_stake(rows, least_mass).fillna(False).astype(bool)
        kinds = {kind: (rows["head_class"] == kind) & enough for kind in PURE}
        return rows[["step", "layer", "head"]].assign(**kinds)

    @property
    def cost(self) -> str:
        """How long a monitor took; empty where the run has none."""
        spent, training = (self.run.timings.get(name) for name in ("monitor_s", "training_s"))
        if spent is None or not training:
            return ""
        return f"the monitor took {spent:.1f} s, {spent / training:.1%} of the training's {training:.0f} s"

    def learned(self, threshold: float = LEARNED) -> pd.Series:
        """For each number of hops, the first step at which accuracy reaches the threshold."""
        assert self.accuracy is not None
        return first_above(self.accuracy, threshold)

    def waiting(self, gamma: float = GAMMA, threshold: float = LEARNED) -> pd.DataFrame:
        """P2 section 3.3: when each number of hops is learned, beside when the heads it needs become pure.

        P2's account: hop h of the number task waits for the h-th positional head, and every letter hop for the
        last symbolic one. Here are the steps at which that many heads had first been pure. A task without hops has no rows.
        """
        pure = self.pure_from(gamma)
        steps_pure = {
            kind: sorted(int(s) for s in pure.loc[pure["head_class"] == kind, "first_pure"]) for kind in PURE
        }
        rows = []
        for hops, step in self.learned(threshold).items():
            if hops == 0:
                continue
            enough = steps_pure["positional"][hops - 1] if 1 <= hops <= len(steps_pure["positional"]) else None
            rows.append(
                {
                    "hops": hops,
                    "learned_at": step,
                    "positional_then": sum(s <= step for s in steps_pure["positional"]),
                    "symbolic_then": sum(s <= step for s in steps_pure["symbolic"]),
                    "as_many_positional_at": enough,
                    "last_symbolic_at": steps_pure["symbolic"][-1] if steps_pure["symbolic"] else None,
                }
            )
        columns = {"learned_at": "Int64", "as_many_positional_at": "Int64", "last_symbolic_at": "Int64"}
        return pd.DataFrame(rows, columns=WAITING).astype(columns)

    def alignment(self, gamma: float = GAMMA) -> pd.DataFrame:
        """Rank correlation over steps between the mean accuracy and the number of heads in each class."""
        assert self.accuracy is not None
        counts = self.purity((gamma,)).set_index("step").drop(columns="gamma")
        counts["pure"] = counts["positional"] + counts["symbolic"]
        mean = self.accuracy.groupby("step")["accuracy"].mean()
        ranks_by_step = counts.join(mean, how="inner").rank()
        names = ["pure", *AT_ITS_LAYER]
        ranks = [
            ranks_by_step[n].corr(ranks_by_step["accuracy"]) if ranks_by_step[n].nunique() > 1 else np.nan
            for n in names
        ]
        return pd.DataFrame({"heads": names, "rank_correlation": ranks}).assign(steps=len(ranks_by_step))

    def summaries(self) -> list[SummaryTable]:
        """Where every head ends, what each hop waits for, and accuracy beside the number of heads in each class."""
        if not len(self.tables.get("scores", ())):
            return []
        waiting = "What each hop waits for: pure heads by the step it is learned"
        alignment = "Over training, accuracy against the number of heads in each class"
        tables = [SummaryTable(ENDS_WHERE, self.pure_from)]
        tables += [SummaryTable(waiting, self.waiting)] if self.has_hops else []
        return tables + ([SummaryTable(alignment, self.alignment)] if self.accuracy is not None else [])

    def screen(self) -> Screen:
        """What a terminal shows: heads by class at the end, the first pure ones, and what each hop waits for."""
        from rotoscope.terminal import Grid, Lines, Screen

        heads, columns = self.pure_from(), ["layer", "head", "head_class", "first_pure", "pure_since"]
        counts = "   ".join(f"{number} {name}" for name, number in heads["head_class"].value_counts().items())
        pure = heads.dropna(subset=["first_pure"]).sort_values(["first_pure", "layer", "head"])
        first: Lines = ["heads that end pure, in the order in which they became so", Grid.of(pure[columns])]
        return Screen(
            found=[f"{len(heads)} heads at the end   {counts}", *(first if len(pure) else [])],
            against=[Grid.of(self.waiting())] if self.has_hops else [],
            details=[(table.title, table.make) for table in self.summaries()],
        )

    def __repr__(self) -> str:
        final = self.at()[lambda t: t["step"] == t["step"].max()]
        little = final["little_at_stake"]
        counts = ", ".join(
            f"{len(rows)} {name}" + ("" if little.isna().all() else f" ({rows.sum()})")
            for name, rows in little.groupby(final["head_class"])
        )
        words = "unknown" if little.isna().all() else "in brackets"
        cost = f"; {self.cost}" if self.cost else ""
        return f"Dynamics({len(self.steps)} steps up to {self.steps[-1]}; at the end {counts}; little at stake: {words}{cost})"


def onset(holds: pd.Series, stable: int = STABLE) -> float:
    """The first step (index) at which something holds, there and at the next `stable` points; NaN where there is none."""
    values = holds.sort_index().to_numpy(dtype=bool)
    for k in range(len(values) - stable):
        if values[k : k + stable + 1].all():
            return float(holds.sort_index().index[k])
    return math.nan


class WatchedTraining(Training):
    """A training run as `rs.open` gives it, with what its heads became."""

    def head_rows(self) -> pd.DataFrame | None:
        """The heads at the end of training, where they were watched."""
        return Dynamics.of_training(self).last_step() if len(self.tables.get("scores", ())) else None

    def summaries(self) -> list[SummaryTable]:
        """Accuracy at the end, and where every head ended."""
        tested = SummaryTable("Accuracy by hops on the test sequences", self._tested, ("test", "metrics"))
        return [tested, *(self._watched.summaries() if "metrics" in self.tables else [])]

    def screen(self) -> Screen:
        """What a terminal shows: accuracy by hops, and the heads."""
        from rotoscope.terminal import Grid, Screen

        screen = self._watched.screen() if len(self.tables.get("scores", ())) else Screen()
        task, steps = self.task, f"{self.run.settings['steps']:,} steps"
        title = f"{task} task, seed {self.run.settings['seed']}, {steps}: accuracy by hops, and the step 95 % was reached"
        details = [(table.title, table.make) for table in self.summaries()]
        return replace(screen, found=[title, Grid.of(self._tested()), *screen.found], details=details)

    @property
    def _watched(self) -> Dynamics:
        return Dynamics(self.run, self.tables | {"accuracy": self.metrics})

    def _tested(self) -> pd.DataFrame:
        learned = self.learned().reindex(self.test["hops"]).to_numpy()
        return self.test.assign(learned_at=learned)


def _classed(table: pd.DataFrame, queries: str | None, tau: float | None, gamma: float) -> pd.DataFrame:
    """The rows of one kind of query and one tau, the first of each where none is named, with classes."""
    table = table[table["queries"] == (table["queries"].iloc[0] if queries is None else queries)]
    if len(table):
        table = table[np.isclose(table["tau"], table["tau"].iloc[0] if tau is None else tau)]
    classes = purity_classes(table["positional_score"], table["symbolic_score"], gamma)
    table = table.assign(head_class=classes).reset_index(drop=True)
    return table.assign(little_at_stake=little_at_stake(table))


def _apart(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Over heads, how far the two scores are apart, and the share of pure heads."""
    separation = (rows["positional_score"] - rows["symbolic_score"]).abs()
    heads = rows.assign(separation=separation, pure_share=rows["head_class"].isin(PURE))
    return heads.groupby(by)[["separation", "pure_share"]].mean()


def _named(steps: list[int]) -> str:
    """Step 4; steps 1, 2 and 4."""
    *front, last = map(str, steps)
    return f"steps {', '.join(front)} and {last}" if front else f"step {last}"


def step_key(step: int) -> str:
    """The key of a step's piece in a run."""
    return f"step-{int(step):08d}"


def reopened(finished: Dynamics, run: Run[Dynamics], up_to: float = math.inf) -> Run[Dynamics]:
    """A finished run begun again with the points, and the log, that it has up to a step."""
    log = [] if run.folder is None else Journal(run.folder / LOG, repair=False).rows
    again = Run(Dynamics, run.record.settings, run.folder, overwrite=True)
    for step in finished.steps:
        if step <= up_to:
            again.add(
                step_key(step), {name: part[part["step"] == step] for name, part in finished.tables.items()}
            )
    for row in log:
        if row.get("step", math.inf) <= up_to:
            again.log(row)
    return again
