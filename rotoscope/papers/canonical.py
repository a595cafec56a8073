"""P1: what one head can learn at which frequency."""

from __future__ import annotations

import pandas as pd

from rotoscope.papers.claim import Finding, claims, judged, one_way
from rotoscope.papers.workshop import Workshop

SCORES = ["positional_score", "symbolic_score"]


def _final(workshop: Workshop) -> pd.DataFrame:
    return workshop.canonical.table()


def _of_canonical(workshop: Workshop, value: str, verdict: str, note: str = "") -> Finding:
    """With the budget beside it: thresholds move with it."""
    s = workshop.canonical.run.settings
    budget = f"{s['steps']} steps of {s['batch']}, {s['keys']} keys, {s['seeds']} seeds"
    return Finding(value, verdict, note=note + budget)


def _fast_and_slow(workshop: Workshop, experiment: str) -> tuple[float, float]:
    """Mean accuracy at angles of .1 and more, and of .001 and less."""
    table = _final(workshop)[experiment].dropna()
    return table[table.index >= 0.1].mean(), table[table.index <= 0.001].mean()


def index_is_fast(workshop: Workshop) -> Finding:
    fast, slow = _fast_and_slow(workshop, "index")
    value = f"{fast:.2f} at angles of .1 and more, {slow:.2f} at .001 and less"
    return _of_canonical(workshop, value, judged(fast >= 0.8 and slow <= 0.3, in_part=fast > slow + 0.3))


def retrieval_is_slow(workshop: Workshop) -> Finding:
    fast, slow = _fast_and_slow(workshop, "retrieval")
    value = f"{slow:.2f} at angles of .001 and less, {fast:.2f} at .1 and more"
    return _of_canonical(workshop, value, judged(slow >= 0.95 and fast <= 0.4, in_part=slow > fast + 0.3))


def induction_needs_two(workshop: Workshop) -> Finding:
    table = _final(workshop)
    one, two = table["induction"].max(), table["induction, two angles"].max()
    value = f"best single angle {one:.2f}, best pair (0, angle) {two:.2f}"
    return _of_canonical(workshop, value, judged(two >= 0.95 and one <= 0.8, in_part=two > one + 0.1))


def _trend(workshop: Workshop, experiment: str, column: str, low: float, high: float) -> pd.Series:
    table = workshop.canonical.position_trends()
    rows = table[(table["experiment"] == experiment) & table["theta"].between(low, high)]
    return rows[column].dropna().astype(float)


def retrieval_inverse_u(workshop: Workshop) -> Finding:
    found = _trend(workshop, "retrieval", "accuracy_trend", 0.005, 0.15)
    trend = float(found.median())
    value = f"rank correlation with the distance from the middle {trend:.2f} (median over {len(found)} angles)"
    return _of_canonical(workshop, value, judged(trend <= -0.7, in_part=trend < -0.3))


def index_u(workshop: Workshop) -> Finding:
    weight = float(_trend(workshop, "index", "target_weight_trend", 0.003, 0.02).median())
    accuracy = float(_trend(workshop, "index", "accuracy_trend", 0.003, 0.02).median())
    value = (
        f"weight on the target {weight:.2f}, accuracy {accuracy:.2f} (rank correlation with the distance from "
        "the middle)"
    )
    return _of_canonical(workshop, value, judged(weight >= 0.7 and accuracy >= 0.7, in_part=weight >= 0.7))


def toy_scores(workshop: Workshop) -> Finding:
    table = workshop.canonical.scores
    index = table[(table["experiment"] == "index") & (table["theta"] >= 0.1)]
    slow = table[(table["experiment"] == "retrieval") & (table["theta"] <= 0.001)]
    (index_p, index_s), (slow_p, slow_s) = index[SCORES].mean(), slow[SCORES].mean()
    corners = f"Index ({index_p:.2f}, {index_s:.2f}), Retrieval ({slow_p:.2f}, {slow_s:.2f})"
    value = f"{corners} as (positional, symbolic)"
    good = index_p >= 0.9 and index_s <= 0.1 and slow_p <= 0.1 and slow_s >= 0.9
    return _of_canonical(workshop, value, judged(bool(good), in_part=bool(index_p > 0.8 and slow_s > 0.8)))


def keys_collapse(workshop: Workshop) -> Finding:
    """Keys of a trained Index head in its plane: how far they point one way, before and after training."""
    table = workshop.canonical.vectors
    keys = table[(table["experiment"] == "index") & (table["kind"] == "key") & (table["theta"] >= 0.1)]
    by_step = keys.groupby(["theta", "step"]).apply(one_way, include_groups=False).groupby("step").mean()
    first, last = float(by_step.iloc[0]), float(by_step.iloc[-1])
    value = f"{first:.2f} before training, {last:.2f} after (1: all keys point one way)"
    return _of_canonical(workshop, value, judged(last >= 0.9, in_part=last > first + 0.2))


def mixed_heads(workshop: Workshop) -> Finding:
    """Trained heads that solve partial induction, by the scores as defined and between equal symbols alone."""
    table = workshop.canonical.scores
    accuracy = _final(workshop)["induction, two angles"]
    solved = accuracy.index[accuracy >= 0.95]
    rows = table[(table["experiment"] == "induction, two angles") & table["theta"].isin(solved)]
    p, s, equal_p, equal_s = rows[[*SCORES, *(f"equal_symbol_{score}" for score in SCORES)]].mean()
    return _of_canonical(
        workshop,
        f"({p:.2f}, {s:.2f}) as (positional, symbolic); on swaps between equal symbols alone "
        f"({equal_p:.2f}, {equal_s:.2f})",
        judged(bool(max(p, s) < 0.9), in_part=bool(s >= 0.9 and equal_p - equal_s >= 0.5)),
        "at tau = 1e-4 the swaps between equal symbols have no weight; ",
    )


CLAIMS = claims(
    {
        "p1-canonical-index": index_is_fast,
        "p1-canonical-retrieval": retrieval_is_slow,
        "p1-canonical-induction": induction_needs_two,
        "p1-positions-retrieval": retrieval_inverse_u,
        "p1-positions-index": index_u,
        "p1-canonical-scores": toy_scores,
        "p1-canonical-mixed": mixed_heads,
        "p1-canonical-vectors": keys_collapse,
    }
)
