"""What all plans have in common: sentences that say what was decided, and tables that say what was measured."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pandas as pd

from rotoscope.results.intervals import mean_interval
from rotoscope.results.saved import SavedRun

MEASURES = {"loss": np.inf, "accuracy": 1.0}
"""What is measured on every prompt, and the most that it can be."""


class Plan(SavedRun, ABC):
    """A decision about a model, with what was measured beside other ways to decide."""

    @abstractmethod
    def sentences(self) -> list[str]:
        """What was decided, and by what."""

    @abstractmethod
    def overview(self) -> list[tuple[str, pd.DataFrame]]:
        """The tables that one reads first, each with its title."""


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
