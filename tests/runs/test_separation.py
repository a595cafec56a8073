"""How far heads separate over training, by hand, and what a task without hops says."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.runs.record import RunRecord
from tests.monitored import monitored

POSITIONAL, SYMBOLIC, BETWEEN, SPREAD = (1.0, 0.0), (0.05, 0.95), (0.6, 0.4), (1.0, 1.0)


def rows(step: int, *heads: tuple[float, float], **more: int) -> pd.DataFrame:
    table = pd.DataFrame(heads, columns=["positional_score", "symbolic_score"]).assign(
        layer=0, head=range(len(heads))
    )
    return table.assign(step=step, queries="last", tau=1e-4, **more)


def test_separation_by_hand() -> None:
    scores = pd.concat(
        [rows(0, BETWEEN, SPREAD), rows(10, POSITIONAL, SYMBOLIC), rows(20, POSITIONAL, BETWEEN)]
    )
    null = [rows(0, BETWEEN, BETWEEN, draw=0), *(rows(0, SPREAD, POSITIONAL, draw=k) for k in range(1, 19))]
    run = Dynamics(RunRecord(), {"scores": scores})
    found = run.separation()
    assert found.columns.tolist() == ["step", "separation", "pure_share"]
    np.testing.assert_allclose(found["separation"], [0.1, 0.95, 0.6])
    assert found["pure_share"].tolist() == [0, 1, 0.5]
    run.tables["null_scores"] = pd.concat(null)  # of one step: it stands for all
    found = run.separation()
    np.testing.assert_allclose(found["separation_null_low"], [0.2] * 3)
    np.testing.assert_allclose(found["separation_null_high"], [0.5] * 3)
    assert found["pure_share_null_high"].tolist() == [0.5] * 3
    run.tables["null_scores"] = pd.concat([*null, *(rows(20, SPREAD, SPREAD, draw=k) for k in range(19))])
    found = run.separation()
    np.testing.assert_allclose(found["separation_null_high"], [0.5, np.nan, 0])
    assert run.separation(gamma=0.01)["pure_share"].tolist() == [0, 0.5, 0.5]


def test_a_task_without_hops_waits_for_nothing() -> None:
    run = monitored([0, 300, 600])
    assert not run.has_hops
    assert list(run.waiting().columns) == list(monitored([0]).waiting().columns)
    assert run.waiting().empty
    assert not monitored([0], accuracy=False).has_hops
    assert run.alignment()["steps"].tolist() == [3] * 5
