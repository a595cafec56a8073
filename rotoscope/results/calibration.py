"""How often a verdict is wrong: random models in the subject's place, and a trained one beside them."""

from __future__ import annotations

import pandas as pd

from rotoscope.results.onehop import wilson
from rotoscope.results.saved import SavedRun
from rotoscope.results.table import Table
from rotoscope.results.verdict import BEYOND, LEVEL

CELL = ["scale", "prompts"]
"""What a random subject is made with: the standard deviation of its weights, and how many prompts it is shown."""


class Calibration(SavedRun):
    """Verdicts on models that learned nothing. Each that is beyond the null is an error."""

    kind = "calibration"

    subjects = Table(
        "One row per (scale, prompts, repetition, statistic): a random subject's figure and its verdict."
    )
    trained = Table("The same statistics of the trained model; empty if there was none.", optional=True)

    def errors(self) -> pd.DataFrame:
        """One row per (scale, prompts): how many subjects have any statistic beyond the null, and a 95 % interval."""
        wrong = self.subjects.assign(beyond=self.subjects["verdict"] == BEYOND)
        each = wrong.groupby([*CELL, "repetition"])["beyond"].any()
        return _shares(each.groupby(CELL))

    def by_statistic(self) -> pd.DataFrame:
        """One row per statistic: how many of all random subjects have it beyond the null, and a 95 % interval."""
        wrong = self.subjects.assign(beyond=self.subjects["verdict"] == BEYOND)
        return _shares(wrong.groupby("statistic", sort=False)["beyond"])

    def caveats(self) -> list[str]:
        """Where random models are called more than random more often than they may be."""
        return [
            f"at scale {row['scale']:g} and {row['prompts']:.0f} prompts {row['beyond']:.0f} of {row['subjects']:.0f} random "
            f"subjects are beyond the null somewhere: more than the {LEVEL:.0%} that the rule allows"
            for row in self.errors().to_dict("records")
            if row["low"] > LEVEL
        ]

    def __repr__(self) -> str:
        errors = self.errors()
        return f"Calibration({errors['beyond'].sum()} of {errors['subjects'].sum()} random subjects beyond the null)"


def _shares(groups: pd.core.groupby.SeriesGroupBy) -> pd.DataFrame:
    """How many of how many, as a share with Wilson's interval."""
    table = groups.agg(subjects="size", beyond="sum").astype(int).reset_index()
    table["share"] = table["beyond"] / table["subjects"]
    ends = [wilson(int(row.beyond), int(row.subjects)) for row in table.itertuples()]
    table["low"], table["high"] = zip(*ends, strict=True)
    return table
