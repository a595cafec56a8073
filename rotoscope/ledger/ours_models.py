"""Ours: what favoured, restricted and planned models do. Which frequencies the tasks need, what favouring heads does, plans."""

from __future__ import annotations

from functools import partial

import pandas as pd

from rotoscope.experiments.train.restrictions import FAILS
from rotoscope.ledger.claim import BesideModels, claims
from rotoscope.ledger.claim_runs import RESTRICTED, Runs, Size
from rotoscope.ledger.verdicts import UNDECIDED, Outcome
from rotoscope.stats.verdict import BEYOND, NO_VERDICT

TENTH, TASK = 0.1, "repeats"
LOSES_MORE = "the plan loses more"


def not_learned(task: str, index: int, size: Size, runs: Runs) -> Outcome:
    """Whether a task fails with some frequencies alone, at every number of hops or at some."""
    restriction, rows = RESTRICTED[size][index], runs.restricted(size).by_hops()
    rows = rows[(rows["task"] == task) & (rows["restriction"] == restriction)]
    fails = rows["outcome"] == FAILS

    def listed(column: str) -> str:
        return ", ".join(f"{value:.2f}" for value in rows[column])

    value = (
        f"ids {restriction} alone: {listed('accuracy')} right, in the best seed {listed('max')}; unrestricted "
        f"{listed('unrestricted')} (by hops)"
    )
    return Outcome(value, bool(fails.all()), bool(fails.any()))


def helps(favour: str, runs: Runs) -> Outcome:
    """Whether favouring a kind is better than favouring none on all inputs beyond training, or on some."""
    rows = runs.steered().comparisons()
    shortest = rows.groupby("task")["length"].transform("min")
    beyond = (rows["length"] > shortest) | (rows["order"] == "shuffled")
    rows = rows[beyond & (rows["favour"] == favour) & (rows["against"] == "none")]
    better, worse = rows["found"] == "better", int((rows["found"] == "worse").sum())
    value = (
        f"better on {int(better.sum())}, worse on {worse} of {len(rows)} kinds of inputs (favouring {favour} "
        f"{rows['accuracy'].mean():.2f} right on average, none {rows['against_accuracy'].mean():.2f})"
    )
    return Outcome(value, bool(len(rows) and better.all()), bool(better.any()) and not worse)


def frontier(runs: Runs) -> Outcome:
    """Whether the plan is better than random choices at a tenth, and nowhere worse than another ranking."""
    plan = runs.cache_plan()
    others = plan.against_others[plan.against_others["source"] == TASK]
    worse = others[others["verdict"] == LOSES_MORE]
    at = plan.against_random[
        (plan.against_random["source"] == TASK) & (plan.against_random["kept_share"] == TENTH)
    ]
    row = at.iloc[0]
    better = bool(row["verdict"] == BEYOND and row["loss"] < row["null_value"])
    ends = plan.frontier[(plan.frontier["source"] == TASK) & plan.frontier["kept_share"].isin((0.0, 1.0))]
    ends = ends.drop_duplicates("kept_share").set_index("kept_share")["loss"]
    value = (
        f"a tenth kept: loss {row['loss']:.2f}, random choices {row['null_value']:.2f} (all kept {ends[1.0]:.2f}, none "
        f"{ends[0.0]:.2f}); worse than another ranking at {len(worse)} of {len(others)} points"
    )
    return Outcome(value, better and worse.empty, better or worse.empty, undecided=_undecided(row, worse.empty))


def slow_planes(runs: Runs) -> Outcome:
    """Whether copying heads lose more without their slowest planes than random heads of the same layers do."""
    effects = runs.copying().effects
    row = effects[(effects["source"] == "task") & (effects["measure"] == "loss")].iloc[0]
    value = (
        f"loss {row['effect']:+.2f} [{row['low']:.2f}, {row['high']:.2f}] without the slowest quarter of the planes of "
        f"{int(row['gated_heads'])} copying heads, {row['null_value']:+.2f} of random heads of the same layers"
    )
    more = bool(row["effect"] > row["null_value"])
    return Outcome(value, more and row["verdict"] == BEYOND, undecided=_undecided(row, more))


def _undecided(row: pd.Series, met: bool) -> str:
    """Why a comparison with random choices says nothing yet, where the rest of the rule is met."""
    return str(row["reason"]) if met and row["verdict"] in (UNDECIDED, NO_VERDICT) else ""


CLAIMS = claims(
    {
        "ours-number-fast-mini": BesideModels(partial(not_learned, "number", 0, "mini")),
        "ours-letter-slow-mini": BesideModels(partial(not_learned, "letter", 1, "mini")),
        "ours-number-fast": BesideModels(partial(not_learned, "number", 0, "paper")),
        "ours-letter-slow": BesideModels(partial(not_learned, "letter", 1, "paper")),
        "ours-steered-either": BesideModels(partial(helps, "symbolic")),
        "ours-cache-frontier": BesideModels(frontier),
        "ours-copying-slow-planes": BesideModels(slow_planes),
    }
)
