"""Heads along training: scores of every head at every step looked at, beside the accuracy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rotoscope.errors import RunError
from rotoscope.maths.order import out_of_order
from rotoscope.maths.purity import AT_ITS_LAYER, GAMMA, purity_classes
from rotoscope.results.aggregate import little_at_stake
from rotoscope.results.saved import SavedRun
from rotoscope.results.table import Table
from rotoscope.results.training import LEARNED, Training, first_above

GAMMAS = (0.05, 0.1, 0.2)


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
        "One row per step: the fingerprint of its weights; `revision` where it came from a hub, `seconds` where a monitor scored it.",
        optional=True,
    )

    weights = Table("One row per (step, weight): the same few weights at every step.", optional=True)

    def caveats(self) -> list[str]:
        """Steps with the same weights, and steps whose weights would come at another place (`maths.order`)."""
        found = []
        if len(self.points):
            alike = self.points.sort_values("step").groupby("fingerprint")["step"].agg(list)
            found += [f"{_named(steps)} have the same weights" for steps in sorted(alike) if len(steps) > 1]
        if len(self.weights):
            values = self.weights.pivot(index="step", columns="weight", values="value").dropna(axis=1)
            for rows in out_of_order(values.to_numpy(dtype=float)):
                steps = [int(values.index[row]) for row in rows]
                they = (
                    "seem to have each other's weights"
                    if len(steps) > 1
                    else "seems to have those of another step"
                )
                found.append(f"{_named(steps)} {they}: the way from step to step would be clearly shorter")
        return found

    @property
    def accuracy(self) -> pd.DataFrame | None:
        """One row per (step, hops), where the task has answers; otherwise None."""
        return self.tables.get("accuracy")

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
        table = self.scores
        table = table[table["queries"] == (table["queries"].iloc[0] if queries is None else queries)]
        if len(table):
            table = table[np.isclose(table["tau"], table["tau"].iloc[0] if tau is None else tau)]
        classes = purity_classes(table["positional_score"], table["symbolic_score"], gamma)
        table = table.assign(head_class=classes).reset_index(drop=True)
        return table.assign(little_at_stake=little_at_stake(table))

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

    def pure_from(self, gamma: float = GAMMA, queries: str | None = None) -> pd.DataFrame:
        """For every head: where it ends, when it first was pure of that kind, and since when it has been."""
        rows = []
        for (layer, head), track in self.at(queries=queries, gamma=gamma).groupby(["layer", "head"]):
            track = track.sort_values("step")
            final = track["head_class"].iloc[-1]
            same = (track["head_class"] == final).to_numpy()
            since = len(same) - int(np.argmin(same[::-1])) if not same.all() else 0
            pure = final in ("positional", "symbolic")
            steps = track["step"].to_numpy()
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "head_class": final,
                    "little_at_stake": track["little_at_stake"].iloc[-1],
                    "positional_score": track["positional_score"].iloc[-1],
                    "symbolic_score": track["symbolic_score"].iloc[-1],
                    "first_pure": int(steps[same][0]) if pure else None,
                    "pure_since": int(steps[since]) if pure else None,
                }
            )
        table = pd.DataFrame(rows)
        return table.astype({"first_pure": "Int64", "pure_since": "Int64", "little_at_stake": "boolean"})

    def learned(self, threshold: float = LEARNED) -> pd.Series:
        """For each number of hops, the first step at which accuracy reaches the threshold."""
        assert self.accuracy is not None
        return first_above(self.accuracy, threshold)

    def waiting(self, gamma: float = GAMMA, threshold: float = LEARNED) -> pd.DataFrame:
        """P2 section 3.3: when each number of hops is learned, beside when the heads it needs become pure.

        P2's account: hop h of the number task waits for the h-th positional head, and every letter hop for the
        last symbolic one. Here are the steps at which that many heads had first been pure.
        """
        pure = self.pure_from(gamma)
        when = {
            kind: sorted(int(s) for s in pure.loc[pure["head_class"] == kind, "first_pure"])
            for kind in ("positional", "symbolic")
        }
        rows = []
        for hops, step in self.learned(threshold).items():
            enough = when["positional"][hops - 1] if 1 <= hops <= len(when["positional"]) else None
            rows.append(
                {
                    "hops": hops,
                    "learned_at": step,
                    "positional_then": sum(s <= step for s in when["positional"]),
                    "symbolic_then": sum(s <= step for s in when["symbolic"]),
                    "as_many_positional_at": enough,
                    "last_symbolic_at": when["symbolic"][-1] if when["symbolic"] else None,
                }
            )
        columns = {"learned_at": "Int64", "as_many_positional_at": "Int64", "last_symbolic_at": "Int64"}
        return pd.DataFrame(rows).astype(columns)

    def alignment(self, gamma: float = GAMMA) -> pd.DataFrame:
        """Rank correlation over steps between the mean accuracy and the number of heads in each class."""
        assert self.accuracy is not None
        counts = self.purity((gamma,)).set_index("step").drop(columns="gamma")
        counts["pure"] = counts["positional"] + counts["symbolic"]
        mean = self.accuracy.groupby("step")["accuracy"].mean()
        both = counts.join(mean, how="inner").rank()
        names = ["pure", *AT_ITS_LAYER]
        ranks = [both[n].corr(both["accuracy"]) if both[n].nunique() > 1 else np.nan for n in names]
        return pd.DataFrame({"heads": names, "rank_correlation": ranks}).assign(steps=len(both))

    def __repr__(self) -> str:
        final = self.at()[lambda t: t["step"] == t["step"].max()]
        little = final["little_at_stake"]
        counts = ", ".join(
            f"{len(rows)} {name}" + ("" if little.isna().all() else f" ({rows.sum()})")
            for name, rows in little.groupby(final["head_class"])
        )
        words = "unknown" if little.isna().all() else "in brackets"
        return f"Dynamics({len(self.steps)} steps up to {self.steps[-1]}; at the end {counts}; little at stake: {words})"


def _named(steps: list[int]) -> str:
    """Step 4; steps 1, 2 and 4."""
    *front, last = map(str, steps)
    return f"steps {', '.join(front)} and {last}" if front else f"step {last}"
