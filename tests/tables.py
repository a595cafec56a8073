"""Two tables of scores, number by number."""

from __future__ import annotations

import numpy as np
import pandas as pd


def scores_agree(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Scores within 2e-5; within 2e-4 where tau = 1e-4 makes rounding visible."""
    for name in ("prompt", "layer", "head", "frequency_id", "tau"):
        assert (name in one) == (name in other)
        assert name not in one or one[name].tolist() == other[name].tolist()
    columns = [name for name in one if name.endswith("_score")]
    assert columns
    assert columns == [name for name in other if name.endswith("_score")]
    allowed = np.where(one.tau < 1e-3, 2e-4, 2e-5)
    for name in columns:
        first, second = one[name].to_numpy(), other[name].to_numpy()
        assert np.array_equal(np.isnan(first), np.isnan(second)), name
        apart = np.nan_to_num(np.abs(first - second))
        assert (apart <= allowed).all(), f"{name}: {apart.max():.1e}"
