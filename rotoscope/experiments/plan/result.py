"""What all plans have in common: sentences that say what was decided, tables that say what was measured, and two rules.

Whether a choice is more than a random one is told from differences on the same prompts: what a prompt costs everybody says
nothing about a choice. And where the model itself does no better than guessing, nothing is better or worse than anything else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.runs.result import SavedRun
from rotoscope.stats.intervals import mean_interval
from rotoscope.stats.verdict import NO_VERDICT, Figure, Verdict, verdicts

MEASURES = {"loss": np.inf, "accuracy": 1.0}
"""What is measured on every prompt, and the most that it can be."""
AT_CHANCE = "the model itself does no better than guessing there"
"""Why nothing is said of a source."""


class Plan(SavedRun, ABC):
    """A decision about a model, with what was measured beside other ways to decide."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """What was decided, and by what."""

    @abstractmethod
    def overview(self) -> list[tuple[str, pd.DataFrame]]:
        """The tables that one reads first, each with its title."""

    @property
    def chance(self) -> float | None:
        """The loss of guessing among all tokens; none where the run does not say how many there are."""
        vocabulary = self.run.settings.get("vocabulary")
        return None if vocabulary is None else math.log(int(vocabulary))

    def guesses(self, losses: pd.Series) -> bool:
        """Whether losses, one for each prompt, are not below those of guessing, beyond noise; one prompt has none to tell of."""
        if self.chance is None or losses.empty:
            return False
        _, high = interval_of(losses - self.chance)
        return not (float(losses.mean() - self.chance) if math.isnan(high) else high) < 0

    def at_chance(self, untouched: pd.DataFrame) -> dict[str, float]:
        """Sources on which the untouched model does no better than guessing, and what it loses there."""
        by_source = untouched.groupby("source", sort=False)["loss"]
        return {str(source): float(losses.mean()) for source, losses in by_source if self.guesses(losses)}

    def about_chance(self, lost: Mapping[str, float]) -> list[str]:
        """A sentence for every source of which nothing is said."""
        return [
            f"On {source} the model as it is loses {loss:.2f}, no better than guessing ({self.chance:.2f}): nothing is said to be "
            "better or worse there."
            for source, loss in lost.items()
        ]


def interval_of(values: pd.Series) -> tuple[float, float]:
    """Both ends of the 95 % interval of a mean over prompts; differences know no bounds."""
    [low], [high] = mean_interval(values.to_numpy(dtype=float)[:, None])
    return float(low), float(high)


def summarised(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Loss and accuracy over the prompts of each group, with 95 % intervals; several draws of one prompt are averaged."""
    found = []
    for key, group in rows.groupby(keys, sort=False, dropna=False):
        row = dict(zip(keys, key, strict=True))
        for measure, most in MEASURES.items():
            values = group.groupby("prompt")[measure].mean().to_numpy(dtype=float)
            [low], [high] = mean_interval(values[:, None], (0.0, most))
            row |= {measure: values.mean(), f"{measure}_low": low, f"{measure}_high": high}
        found.append(row | {"prompts": group["prompt"].nunique()})
    return pd.DataFrame(found)


@dataclass(frozen=True)
class Chosen:
    """A choice beside random ones, on the same prompts."""

    about: dict[str, Any]
    """What the choice is, column by column."""
    losses: pd.Series
    """By prompt."""
    random: pd.DataFrame
    """By prompt and, column by column, draw."""
    at_chance: bool = False


def against_random(choices: Sequence[Chosen], about: Sequence[str]) -> pd.DataFrame:
    """Is a choice more than a random one? One row for each, by the rule for nulls (`rotoscope.stats.verdict`) over all of them.

    `effect` is the mean over prompts of its loss minus the mean of the random draws on the same prompt, and the error that the
    rule takes is that of this difference: what a prompt costs every choice alike is in neither. The null's columns are losses.
    """
    rows, figures = [], []
    for one in choices:
        draws = one.random.mean().tolist()
        # Without a draw there is no difference: what the choice loses is shown all the same.
        apart = one.losses - one.random.mean(axis=1) if draws else one.losses * np.nan
        low, high = interval_of(apart)
        loss = float(one.losses.mean())
        rows.append(one.about | {"loss": loss, "effect": float(apart.mean()), "low": low, "high": high})
        error = float(apart.std(ddof=1) / np.sqrt(len(apart)))
        figures.append(Figure(np.nan if one.at_chance else loss, error, draws, in_score_units=False))
    columns = [field.name for field in fields(Verdict)]
    beside = pd.DataFrame([asdict(found) for found in verdicts(figures)], columns=columns)
    table = pd.DataFrame(rows, columns=[*about, "loss", "effect", "low", "high"])
    table = pd.concat([table, beside], axis=1)
    lost = [one.at_chance for one in choices]
    table.loc[lost, ["verdict", "reason"]] = NO_VERDICT, AT_CHANCE
    return table
