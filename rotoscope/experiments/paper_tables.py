"""Tables as the papers print them, and runs of our own put beside them."""

from __future__ import annotations

from typing import Any

import pandas as pd

from rotoscope.experiments.ask.result import OneHopRun
from rotoscope.experiments.roles.geometry import Geometry

TABLE_1 = {
    "number": (1, 2, 2, 2, 10, 39, 38, 38, 38, 37, 37, 38),
    "letter": (18, 32, 42, 37, 40, 38, 41, 38, 41, 39, 38, 40),
}
"""P2, Table 1: weighted-average frequency id per layer, of models with 64 frequencies."""
FREQUENCIES = 64

MODELS = ("GPT 5.4", "GPT 5.5", "Sonnet 3.7")
# Accuracy by length, number then letter task for each model.
PRINTED_3 = {
    12: (0.98, 0.96, 0.55, 0.87, 0.40, 0.92),
    16: (0.87, 0.98, 0.56, 0.95, 0.34, 0.89),
    24: (0.73, 1.00, 0.42, 0.96, 0.22, 0.88),
    32: (0.45, 0.99, 0.23, 0.96, 0.15, 0.88),
    48: (0.17, 0.99, 0.21, 0.77, 0.11, 0.80),
    64: (0.14, 0.98, 0.12, 0.84, 0.08, 0.87),
    80: (0.10, 0.96, 0.10, 0.75, 0.06, 0.89),
    100: (0.08, 0.85, 0.07, 0.66, 0.06, 0.86),
    200: (0.08, 0.52, 0.06, 0.55, 0.05, 0.77),
    300: (0.06, 0.40, 0.04, 0.50, 0.05, 0.80),
}
TABLE_3 = pd.DataFrame(
    [
        {"task": task, "length": length, **dict(zip(MODELS, row[first::2], strict=True))}
        for first, task in enumerate(("number", "letter"))
        for length, row in PRINTED_3.items()
    ]
)
"""P2, Table 3: accuracy of three models by task and length."""
SCREENED_LENGTH, SCREENED_ACCURACY = 16, 0.85


def beside_table_1(run: Geometry) -> pd.DataFrame:
    """Our frequency ids with `paper_id` from P2's Table 1; missing for a model of another shape or task."""
    ids = run.weighted_ids()
    printed = TABLE_1.get(run.task, ())
    same_shape = len(printed) == len(ids) and run.use["frequency_id"].nunique() == FREQUENCIES
    return ids.assign(paper_id=list(printed) if same_shape else pd.array([pd.NA] * len(ids), dtype="Int64"))


def beside_table_3(run: OneHopRun) -> pd.DataFrame:
    """Our accuracy beside P2's Table 3; empty where P2 has no figure for a length."""
    ours = run.accuracy()[["task", "scoring", "length", "mean", "std"]]
    return ours.merge(TABLE_3, on=["task", "length"], how="left")


def screening(run: OneHopRun) -> dict[str, Any]:
    """P2's rule for taking a model into Table 3: at least 85 % on the letter task at length 16.

    The answer must be one word and no chain of thought (an answer of several words is never right here).
    """
    found = run.accuracy()
    wanted = {"task": "letter", "length": SCREENED_LENGTH, "scoring": "free"}
    cell = found[(found[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    if cell.empty or not cell["questions"].iloc[0]:
        return {"selected": None, "reason": f"the letter task was not asked at length {SCREENED_LENGTH}"}
    row = cell.iloc[0]
    return {
        "selected": bool(row["mean"] >= SCREENED_ACCURACY),
        "accuracy": float(row["mean"]),
        "low": float(row["low"]),
        "high": float(row["high"]),
        "single_answers": float(row["single_answers"]),
        "questions": int(row["questions"]),
    }
