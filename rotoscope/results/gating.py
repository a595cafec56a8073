"""What a gate did: losses and accuracies per condition, with intervals."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from rotoscope.results.intervals import mean_interval
from rotoscope.results.saved import SavedRun
from rotoscope.results.table import Table

KEYS = ["condition", "action", "head_group", "control", "first_id", "last_id", "gated_heads", "source"]


class Gating(SavedRun):
    """A gating run: what a model loses without frequencies in its heads, beside random heads there."""

    kind = "gating"

    @property
    def sweep(self) -> bool:
        """Whether every band was gated in turn, rather than one gate closed."""
        settings = self.run.settings
        one = settings.get("keep") is not None or settings.get("remove") is not None or settings.get("silence")
        return not one if "bands" in settings else not settings.get("scores")

    conditions = Table("One row per (condition, source, prompt): loss and accuracy under the gate.")
    gated_heads = Table(
        "Scores of every head before and under the gate, where they were asked for.",
        optional=True,
    )

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per condition and source: mean loss and accuracy with 95 % intervals over prompts.

        Random controls of one condition are one row: their draws are averaged per prompt.
        """
        rows = []
        for key, group in self.conditions.groupby(KEYS, sort=False):
            row = dict(zip(KEYS, key, strict=True))
            for measure, most in (("loss", np.inf), ("accuracy", 1.0)):
                values = group.groupby("prompt")[measure].mean().to_numpy(dtype=float)
                [low], [high] = mean_interval(values[:, None], (0.0, most))
                row |= {measure: values.mean(), f"{measure}_low": low, f"{measure}_high": high}
            rows.append(row)
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        return f"Gating({self.name!r}: {self.conditions['condition'].nunique()} conditions)"
