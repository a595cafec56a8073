"""Which profiles of an atlas are of one model.

A fingerprint is that of the weights as they were read, so that a model in bfloat16 and in float32 has two, and nothing in the
record of a run says that they are of one. Name and shape must do: profiles of the same name, architecture, layers and heads in
different precisions are taken for one model. In the same precision, another fingerprint is another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

SHAPE = ["model", "architecture", "layers", "heads"]


def one_precision(profiles: pd.DataFrame, like: str = "") -> pd.DataFrame:
    """The profiles of every model in one precision: in that one where there are some, else where most models are."""
    by = [*SHAPE, "dtype"]
    found = profiles.groupby(by)["fingerprint"].nunique().rename("models").reset_index()
    found = found.assign(like=found["dtype"] == like)
    found = found.sort_values(["like", "models", "dtype"], ascending=[False, False, True])
    kept = pd.MultiIndex.from_frame(found.drop_duplicates(SHAPE)[by])
    return profiles[pd.MultiIndex.from_frame(profiles[by]).isin(kept)]


def count_models(profiles: pd.DataFrame) -> int:
    """How many models there are, each once in whatever precisions it was read."""
    return int(one_precision(profiles)["fingerprint"].nunique())


def other_precisions(profiles: pd.DataFrame, model: Mapping[str, Any]) -> pd.Series:
    """Which profiles are of that model, by its name and shape, read in another precision than its own."""
    same = profiles["dtype"] != model["dtype"]
    for name in SHAPE:
        same &= profiles[name] == model[name]
    return same
