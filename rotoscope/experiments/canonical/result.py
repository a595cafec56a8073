"""Trained toy heads: accuracy by frequency, step and position; scores; vectors."""

from __future__ import annotations

import pandas as pd

from rotoscope.experiments.page_data import PageRun, Tab, clean, columns
from rotoscope.runs.result import SavedRun, SummaryTable, Table


class Canonical(SavedRun):
    """A canonical run. `theta` is the angle of the (last) rotating plane, 0 for NoPE; seeds count from 0."""

    kind = "canonical"

    accuracy = Table("One row per (experiment, theta, seed, step).")
    positions = Table(
        "One row per (experiment, theta, seed, step, position): accuracy and weight on the target."
    )
    scores = Table("One row per (experiment, theta, seed): the metric on heads whose mechanism is known.")
    vectors = Table("Key and query vectors of single heads along training (seed 0).")

    @property
    def experiments(self) -> list[str]:
        """The experiments of this run: a task, with one angle or two."""
        return list(dict.fromkeys(self.accuracy["experiment"]))

    def final(self) -> pd.DataFrame:
        """Accuracy at the end of training, mean and standard deviation over seeds."""
        last = self.accuracy[self.accuracy["step"] == self.accuracy["step"].max()]
        groups = last.groupby(["experiment", "theta"], sort=False)["accuracy"]
        return groups.agg(["mean", "std", "count"]).reset_index()

    def table(self) -> pd.DataFrame:
        """Final accuracy, angles down, experiments across."""
        table = self.final().pivot(index="theta", columns="experiment", values="mean")
        return table.sort_index(ascending=False)

    def position_trends(self) -> pd.DataFrame:
        """Rank correlation with the distance from the middle: negative for an inverse U, positive for a U."""
        last = self.positions[self.positions["step"] == self.positions["step"].max()]
        rows = []
        for (experiment, theta), group in last.groupby(["experiment", "theta"], sort=False):
            curve = group.groupby("position")[["accuracy", "target_weight"]].mean()
            distance = pd.Series(abs(curve.index - (len(curve) - 1) / 2), index=curve.index).rank()
            row = {"experiment": experiment, "theta": theta}
            for name in ("accuracy", "target_weight"):
                ranks = curve[name].rank()
                row[f"{name}_trend"] = float(ranks.corr(distance)) if ranks.nunique() > 1 else None
            rows.append(row)
        return pd.DataFrame(rows)

    def summaries(self) -> list[SummaryTable]:
        """Final accuracy, scores, and where along the sequence accuracy is lost."""
        accuracy = "Accuracy at the end of training by angle, mean over seeds (theta = 0: NoPE)"
        trends = "Does accuracy rise or fall away from the middle? (rank correlations)"
        return [
            SummaryTable(accuracy, lambda: self.table().reset_index(), ("accuracy",)),
            SummaryTable("Scores of the trained heads", lambda: self.scores, ("scores",)),
            SummaryTable(trends, self.position_trends, ("positions",)),
        ]

    def __repr__(self) -> str:
        return f"Canonical({', '.join(self.experiments)}; {self.accuracy['step'].max()} steps)"


def canonical_tab(page_run: PageRun) -> Tab:
    """Final accuracy by angle, and how it grew."""
    run = Canonical(page_run.run, page_run.tables)
    final = run.final()
    experiments = []
    for name in run.experiments:
        rows = final[final["experiment"] == name].sort_values("theta", ascending=False)
        grown = run.accuracy[run.accuracy["experiment"] == name]
        wide = grown.pivot_table(index="theta", columns="step", values="accuracy").sort_index(ascending=False)
        experiments.append(
            {
                "name": name,
                "theta": [clean(float(theta), 4) for theta in rows["theta"]],
                **columns(rows, ("mean", "std", "count")),
                "steps": [int(step) for step in wide.columns],
                "step_theta": [clean(float(theta), 4) for theta in wide.index],
                "by_step": clean(wide.to_numpy().tolist()),
            }
        )
    return {"experiments": experiments, "tables": page_run.summary_tables(run.summaries()[1:])}
