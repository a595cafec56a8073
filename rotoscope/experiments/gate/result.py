"""What a gate did: losses and accuracies per condition, with intervals."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rotoscope.experiments.plan.result import MEASURES, summarised
from rotoscope.experiments.profile.screen import asked_again
from rotoscope.runs.result import NextStep, SavedRun, SummaryTable, Table
from rotoscope.stats.intervals import mean_interval
from rotoscope.stats.verdict import Figure, verdicts

UNGATED = "nothing gated"
if TYPE_CHECKING:
    from rotoscope.terminal import Screen

KEYS = ["condition", "action", "head_group", "control", "first_id", "last_id", "gated_heads", "source"]


class Gating(SavedRun):
    """A gating run: what a model loses without frequencies in its heads, beside random heads of the same layers."""

    kind = "gating"

    conditions = Table("One row per (condition, source, prompt): loss and accuracy under the gate.")
    gated_heads = Table("Scores of every head before and under the gate, where one was closed.", optional=True)

    @property
    def sweep(self) -> bool:
        """Whether every band was gated in turn, rather than one gate closed."""
        settings = self.run.settings
        named = [settings.get(name) for name in ("keep", "remove", "silence", "heads_of_class")]
        return all(value in (None, False) for value in named)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per condition and source: mean loss and accuracy with 95 % intervals over prompts.

        Random controls of one condition are one row, with the range in which 95 % of the draws lie.
        """
        return summarised(self.conditions, KEYS)

    @cached_property
    def effects(self) -> pd.DataFrame:
        """What every gate changes, beside random heads of the same layers: one row per condition, source and measure.

        `effect` is the mean over prompts of the loss (or accuracy) under the gate minus that without, with its 95 % interval;
        the null is the same of every random group, and the verdict that of `rotoscope.stats.verdicts`, on the random groups' prompts.
        """
        rows, figures = [], []
        ungated = self.conditions[self.conditions["condition"] == UNGATED]
        before = ungated.set_index(["source", "prompt"])
        keys = ["condition", "head_group", "source"]
        for key, group in self.conditions.drop(ungated.index).groupby(keys, sort=False):
            for measure, most in MEASURES.items():
                wide = group.pivot(index="prompt", columns="draw", values=measure)
                changes = wide.sub(before.loc[key[2]][measure], axis=0)
                effects = changes[-1].to_numpy(dtype=float)
                [low], [high] = mean_interval(effects[:, None], (-most, most))
                paired = changes.dropna()
                error = paired[-1].std(ddof=1) / np.sqrt(len(paired))
                heads = int(group.loc[~group["control"], "gated_heads"].iloc[0])
                labels = dict(zip(keys, key, strict=True)) | {"gated_heads": heads, "measure": measure}
                rows.append(
                    labels | {"effect": effects.mean(), "low": low, "high": high, "prompts": len(effects)}
                )
                value, *draws = paired.mean().tolist()
                figures.append(Figure(value, error, draws))
        beside = pd.DataFrame([asdict(verdict) for verdict in verdicts(figures)])
        return pd.concat([pd.DataFrame(rows), beside], axis=1)

    def screen(self) -> Screen:
        """What a terminal shows: what one gate changes, or the losses of a sweep."""
        from rotoscope.terminal import Grid, Screen

        details = [(table.title, table.make) for table in self.available_summaries()]
        if self.sweep:
            rows = self.summary[~self.summary["control"]].rename(columns={"gated_heads": "heads"})
            named = [name for name in ("head_group", "source") if rows[name].nunique() > 1]
            columns = ["condition", *named, "heads"]
            columns += [f"{measure}{end}" for measure in MEASURES for end in ("", "_low", "_high")]
            return Screen(
                ["loss and accuracy, 95 % intervals over prompts", Grid.of(rows[columns])], details=details
            )
        effects = self.effects.rename(columns={"null_value": "random"})
        columns = ["source", "measure", "effect", "low", "high", "random", "p_value", "verdict"]
        title = "what the gate changes, beside random heads of the same layers"
        return Screen([title, Grid.of(effects[columns])], against=self._scores_changed(), details=details)

    def _scores_changed(self) -> list[str]:
        """Medians of both scores before and under the gate, and why there are no verdicts."""
        heads = self.gated_heads
        changes = [
            f"median {kind} score {heads[f'{kind}_score'].median():.2f}, gated {heads[f'{kind}_score_gated'].median():.2f}"
            for kind in (("positional", "symbolic") if len(heads) else ())
        ]
        return [*changes, *(reason for reason in dict.fromkeys(self.effects["reason"]) if reason)]

    def next_steps(self) -> list[NextStep]:
        """The heads of the model on the same prompts."""
        command = asked_again(self.run, "profile")
        return [NextStep("What do the heads attend by on these prompts?", command)] if command else []

    def summaries(self) -> list[SummaryTable]:
        """What every gate changes, and losses by condition."""
        effects = "What every gate changes, beside random heads of the same layers"
        losses = "Loss and accuracy by condition, with 95 % intervals over prompts"
        return [
            SummaryTable(losses, lambda: self.summary, ("conditions",)),
            SummaryTable(effects, lambda: self.effects, ("conditions",)),
        ]

    def __repr__(self) -> str:
        return f"Gating({self.name!r}: {self.conditions['condition'].nunique()} conditions)"
