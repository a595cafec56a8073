"""A trained model: how its accuracy grew, what was watched on the way, and where its checkpoints are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pandas as pd

from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import SavedRun, Table, Tables

LEARNED = 0.95


class Training(SavedRun):
    """A training run. `model` is the trained model while it is in memory; `rs.load(folder)` loads it again."""

    kind = "training"

    def __init__(self, run: RunRecord, tables: Tables) -> None:
        super().__init__(run, tables)
        self.folder: Path | None = None
        self.model: Any = None

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Read a training run back; `folder` says where its checkpoints are."""
        training = super().open(path)
        training.folder = Path(path)
        return training

    @property
    def task(self) -> str:
        """Which multi-hop task was trained: number or letter."""
        return str(self.run.settings["task"])

    metrics = Table(
        "One row per (step, hops): accuracy on held-out sequences, loss since the evaluation before."
    )
    test = Table("Final accuracy by number of hops on the test sequences.")

    def learned(self, threshold: float = LEARNED) -> pd.Series:
        """For each number of hops, the first step from which accuracy is at least the threshold."""
        return first_above(self.metrics, threshold)

    def caveats(self) -> list[str]:
        """Hops that were not learned."""
        unlearned = self.test[self.test["accuracy"] < LEARNED]
        if unlearned.empty:
            return []
        shares = ", ".join(f"{row.hops} hops {row.accuracy:.0%}" for row in unlearned.itertuples())
        return [f"the model has not learned the whole task ({shares}): its heads show training half-way"]

    def __repr__(self) -> str:
        accuracy = ", ".join(f"{row.hops}: {row.accuracy:.3f}" for row in self.test.itertuples())
        return f"Training({self.task}, {self.run.settings['steps']} steps; accuracy by hops {accuracy})"


def first_above(metrics: pd.DataFrame, threshold: float = LEARNED) -> pd.Series:
    """The first step at which the accuracy of each number of hops reaches a threshold, else NaN."""
    reached = metrics[metrics["accuracy"] >= threshold].groupby("hops")["step"].min()
    return reached.reindex(sorted(metrics["hops"].unique())).rename("learned_at")
