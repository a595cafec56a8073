"""What a run says about its points: equal weights, and an order that cannot be."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.experiments.train.series import out_of_order
from rotoscope.runs.record import RunRecord


def test_nothing_is_said_about_an_order_that_few_weights_tell() -> None:
    scattered = np.random.default_rng(0).normal(size=(12, 20))
    assert out_of_order(scattered)  # what would be said
    rows = pd.DataFrame(scattered).stack().rename_axis(["step", "weight"]).rename("value").reset_index()
    assert Dynamics(RunRecord("dynamics"), {"weights": rows}).caveats() == []
