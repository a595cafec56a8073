"""What a gate did: losses and accuracies per condition, with intervals."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property

import numpy as np
import pandas as pd

from rotoscope.experiments.plan.result import summarised
from rotoscope.runs.result import SavedRun, Table
from rotoscope.stats.intervals import mean_interval
from rotoscope.stats.verdict import Figure, verdicts

KEYS = ["condition", "action", "head_group", "control", "first_id", "last_id", "gated_heads", "source"]


class Gating(SavedRun):
    """A gating run: what a model loses without frequencies in its heads, beside random heads there."""

    kind = "gating"

    @property
    def sweep(self) -> bool:
        """Whether every band was gated in turn, rather than one gate closed."""
        settings = self.run.settings
        one = settings.get("keep") is not None or settings.get("remove") is not None or settings.get("silence")
        one = one or settings.get("heads_of_class") is not None
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
        return summarised(self.conditions, KEYS)

    @cached_property
    def effects(self) -> pd.DataFrame:
        """What every gate changes, beside random heads of the same layers: one row per condition, source and measure.

        `effect` is the mean over prompts of the loss (or accuracy) under the gate minus that without, with its 95 % interval;
        the null is the same of every random group, and the verdict that of `rotoscope.stats.verdicts`.
        """
        keys = ["condition", "head_group", "source"]
        rows, figures = [], []
        untouched = self.conditions[self.conditions["condition"] == "nothing gated"]
        before = untouched.set_index(["source", "prompt"])
        for key, group in self.conditions.drop(untouched.index).groupby(keys, sort=False):
            for measure, most in (("loss", np.inf), ("accuracy", 1.0)):
                wide = group.pivot(index="prompt", columns="draw", values=measure)
                change = wide.sub(before.loc[key[2]][measure], axis=0)
                own = change.pop(-1).to_numpy(dtype=float)
                [low], [high] = mean_interval(own[:, None], (-most, most))
                error = own.std(ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.nan
                heads = int(group.loc[~group["control"], "gated_heads"].iloc[0])
                about = dict(zip(keys, key, strict=True)) | {"gated_heads": heads, "measure": measure}
                rows.append(about | {"effect": own.mean(), "low": low, "high": high, "prompts": len(own)})
                figures.append(Figure(float(own.mean()), error, change.mean().tolist(), measure == "accuracy"))
        beside = pd.DataFrame([asdict(verdict) for verdict in verdicts(figures)])
        return pd.concat([pd.DataFrame(rows), beside], axis=1)

    def __repr__(self) -> str:
        return f"Gating({self.name!r}: {self.conditions['condition'].nunique()} conditions)"
