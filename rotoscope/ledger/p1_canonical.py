"""P1: what one head can learn at which frequency."""

from __future__ import annotations

import math

import pandas as pd

from rotoscope.experiments.canonical.result import Canonical
from rotoscope.ledger.claim import BesideModels, Look, claims
from rotoscope.ledger.claim_runs import Runs
from rotoscope.ledger.verdicts import EXPLAINED, Outcome, resultant
from rotoscope.stats.aggregate import SCORES

LEARNED, HALF = 0.9, 0.5
"""Nine in ten are right: learned. Fewer than half: not."""
FLAT = 0.15
"""Twice what untrained heads have right: a head that is right less often attends to nothing in particular."""
CORNER = 0.1
"""The papers' tolerance of purity."""


def limits(run: Canonical) -> tuple[float, float]:
    """The two angles that theory singles out for so many keys and entities.

    From 2 pi / N on, N keys go round once. Up to omega / N, with omega = 2 pi / entities, all keys together turn by less than
    one symbol's step.
    """
    keys, entities = run.run.settings["keys"], run.run.settings["entities"]
    return 2 * math.pi / keys, 2 * math.pi / entities / keys


def _outcome(runs: Runs, value: str, met: bool, in_part: bool = False, note: str = "") -> Outcome:
    """With the budget beside it: thresholds move with it."""
    s = runs.canonical().run.settings
    budget = f"{s['steps']} steps of {s['batch']}, {s['keys']} keys, {s['seeds']} seeds"
    return Outcome(value, bool(met), bool(in_part), note + budget)


def _fast_and_slow(runs: Runs, experiment: str) -> tuple[float, float]:
    """Mean accuracy at angles at which keys go round, and at which they turn by less than a symbol."""
    table = runs.canonical().table()[experiment].dropna()
    fast, slow = limits(runs.canonical())
    return table[table.index >= fast].mean(), table[table.index <= slow].mean()


def index_is_fast(runs: Runs) -> Outcome:
    fast, slow = _fast_and_slow(runs, "index")
    value = f"{fast:.2f} at angles that go round, {slow:.2f} at slow ones"
    return _outcome(runs, value, fast >= LEARNED and slow < HALF, fast >= HALF > slow)


def retrieval_is_slow(runs: Runs) -> Outcome:
    fast, slow = _fast_and_slow(runs, "retrieval")
    value = f"{slow:.2f} at slow angles, {fast:.2f} at those that go round"
    return _outcome(runs, value, slow >= LEARNED and fast < HALF, slow >= HALF > fast)


def induction_needs_two(runs: Runs) -> Outcome:
    table = runs.canonical().table()
    best_single, best_pair = table["induction"].max(), table["induction, two angles"].max()
    value = f"best single angle {best_single:.2f}, best pair (0, angle) {best_pair:.2f}"
    return _outcome(
        runs, value, best_pair >= LEARNED and best_single < HALF, best_pair >= LEARNED > best_single
    )


def _trends(runs: Runs, experiment: str, slowest: float) -> pd.DataFrame:
    """At angles with N theta < 2 pi, from the slowest on, at which a head is neither saturated nor flat."""
    trends = runs.canonical().position_trends()
    rows = trends[trends["experiment"] == experiment].set_index("theta")
    accuracy = runs.canonical().table()[experiment]
    fast, _ = limits(runs.canonical())
    chosen = accuracy[(accuracy.index > slowest) & (accuracy.index < fast)]
    chosen = chosen[(chosen < LEARNED) & (chosen >= FLAT)]
    return rows.loc[chosen.index, ["accuracy_trend", "target_weight_trend"]].astype(float)


def retrieval_inverse_u(runs: Runs) -> Outcome:
    trend = _trends(runs, "retrieval", limits(runs.canonical())[1])["accuracy_trend"]
    bent = trend <= -EXPLAINED
    value = f"rank correlation with the distance from the middle {_range(trend)}"
    return _outcome(runs, value, len(trend) > 0 and bent.all(), bent.mean() > 0.5)


def index_u(runs: Runs) -> Outcome:
    trends = _trends(runs, "index", 0.0)
    accuracy, weight = (trends[f"{name}_trend"] for name in ("accuracy", "target_weight"))
    met = len(trends) > 0 and (accuracy >= EXPLAINED).all()
    value = f"rank correlation with the distance from the middle: accuracy {_range(accuracy)}; weight on the target {_range(weight)}"
    return _outcome(runs, value, met, (accuracy >= EXPLAINED).mean() > 0.5)


def _range(trend: pd.Series) -> str:
    return f"{trend.min():.2f} to {trend.max():.2f} ({len(trend)} angles)" if len(trend) else "at no angle"


def toy_scores(runs: Runs) -> Outcome:
    table = runs.canonical().scores
    fast, slow = limits(runs.canonical())
    index = table[(table["experiment"] == "index") & (table["theta"] >= fast)]
    still = table[(table["experiment"] == "retrieval") & (table["theta"] <= slow)]
    (index_p, index_s), (slow_p, slow_s) = index[SCORES].mean(), still[SCORES].mean()
    corners = f"Index ({index_p:.2f}, {index_s:.2f}), Retrieval ({slow_p:.2f}, {slow_s:.2f})"
    first = index_p >= 1 - CORNER and index_s <= CORNER
    second = slow_p <= CORNER and slow_s >= 1 - CORNER
    return _outcome(runs, f"{corners} as (positional, symbolic)", first and second, first or second)


def keys_collapse(runs: Runs) -> Outcome:
    """Keys of an Index head in its plane, at the angles that are kept: how far they point one way at the end."""
    table = runs.canonical().vectors
    fast, _ = limits(runs.canonical())
    keys = table[(table["experiment"] == "index") & (table["kind"] == "key") & (table["theta"] >= fast)]
    last = keys[keys["step"] == keys["step"].max()]
    alike = last.groupby("theta").apply(resultant, include_groups=False)
    return _outcome(runs, f"{alike.mean():.2f} (1: all keys point one way)", alike.min() >= 1 - CORNER)


def mixed_heads(runs: Runs) -> Outcome:
    """Trained heads that solve partial induction, by the scores as defined and between equal symbols alone."""
    table = runs.canonical().scores
    accuracy = runs.canonical().table()["induction, two angles"]
    solved = accuracy.index[accuracy >= LEARNED]
    rows = table[(table["experiment"] == "induction, two angles") & table["theta"].isin(solved)]
    if rows.empty:
        return _outcome(runs, "no head solves it", False)
    p, s, equal_p, equal_s = rows[[*SCORES, *(f"equal_symbol_{score}" for score in SCORES)]].mean()
    return _outcome(
        runs,
        f"({p:.2f}, {s:.2f}) as (positional, symbolic); on swaps between equal symbols alone "
        f"({equal_p:.2f}, {equal_s:.2f})",
        max(p, s) < 1 - CORNER,
        s >= 1 - CORNER and equal_p >= 1 - CORNER,
        "at tau = 1e-4 the swaps between equal symbols have no weight; ",
    )


LOOKS: dict[str, Look] = {
    "p1-canonical-index": index_is_fast,
    "p1-canonical-retrieval": retrieval_is_slow,
    "p1-canonical-induction": induction_needs_two,
    "p1-positions-retrieval": retrieval_inverse_u,
    "p1-positions-index": index_u,
    "p1-canonical-scores": toy_scores,
    "p1-canonical-mixed": mixed_heads,
    "p1-canonical-vectors": keys_collapse,
}
CLAIMS = claims({name: BesideModels(look) for name, look in LOOKS.items()})
