"""Made-up runs of a monitor: heads that separate as accuracy rises, and a null that does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.runs.record import RunRecord
from rotoscope.runs.result import Tables

SETTINGS: dict[str, Any] = {
    "task": "lookup",
    "model": "a-model",
    "steps": 900,
    "queries": "last",
    "tau": [1e-4],
}


def scored(step: int, grown: float, layers: int, heads: int, seed: int = 0) -> pd.DataFrame:
    """Heads that begin at (0.4, 0.4), every third going to (1, 0), every third to (0, 1), once `grown` of the way."""
    rows = pd.DataFrame(
        [(layer, head) for layer in range(layers) for head in range(heads)], columns=["layer", "head"]
    )
    dice = np.random.default_rng([step, seed])
    way, goal = np.clip(grown * (1 + (rows.index % 5) / 4), 0, 1), rows.index % 3
    for k, name in enumerate(("positional_score", "symbolic_score")):
        there = np.where(goal == 2, 0.4, goal == k)
        rows[name] = np.clip(0.4 + (there - 0.4) * way + dice.normal(0, 0.02, len(rows)), 0, 1)
    about = {"queries": "last", "tau": 1e-4, "relative_entropy": 0.9 - 0.5 * way, "swapped_mass": 0.4}
    rows = rows.assign(**about)
    rows.insert(0, "step", step)
    return rows


def point(
    step: int, grown: float, layers: int = 2, heads: int = 3, *, accuracy: bool = True, draws: int = 0
) -> Tables:
    """What a monitor writes at one step."""
    tables = {
        "scores": scored(step, grown, layers, heads),
        "points": pd.DataFrame({"step": [step], "fingerprint": [f"{step:x}"], "seconds": [0.1]}),
    }
    if accuracy:
        tables["accuracy"] = pd.DataFrame(
            {"step": [step], "hops": [0], "accuracy": [0.1 + 0.8 * grown], "inputs": [8]}
        )
    if draws:
        parts = [scored(step, 0.0, layers, heads, seed=9 + k).assign(draw=k) for k in range(draws)]
        tables["null_scores"] = pd.concat(parts, ignore_index=True)
    return tables


def monitored(steps: Sequence[int], layers: int = 2, heads: int = 3, **what: Any) -> Dynamics:
    """A whole run at these steps."""
    parts = [point(step, k / max(1, len(steps) - 1), layers, heads, **what) for k, step in enumerate(steps)]
    tables = {name: pd.concat([one[name] for one in parts], ignore_index=True) for name in parts[0]}
    return Dynamics(RunRecord(kind="dynamics", settings=SETTINGS), tables)
