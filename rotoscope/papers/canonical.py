"""P1: what one head can learn at which frequency."""

from __future__ import annotations

import pandas as pd

from rotoscope.papers.claim import Claim, Finding, judged, one_way
from rotoscope.papers.workshop import Workshop

__all__ = ["CLAIMS"]


def _final(workshop: Workshop) -> pd.DataFrame:
    return workshop.canonical.table()


def _budget(workshop: Workshop) -> str:
    settings = workshop.canonical.run.settings
    return (
        f"{settings['steps']} steps of {settings['batch']}, {settings['keys']} keys, {settings['seeds']} seeds"
    )


def _of_canonical(workshop: Workshop, value: str, verdict: str, note: str = "") -> Finding:
    """With the budget beside it: thresholds move with it."""
    return Finding(value, verdict, note=note + _budget(workshop), rests_on=workshop.canonical_where)


def index_is_fast(workshop: Workshop) -> Finding:
    table = _final(workshop)["index"].dropna()
    fast, slow = table[table.index >= 0.1].mean(), table[table.index <= 0.001].mean()
    return _of_canonical(
        workshop,
        f"{fast:.2f} at angles of .1 and more, {slow:.2f} at .001 and less",
        judged(fast >= 0.8 and slow <= 0.3, in_part=fast > slow + 0.3),
    )


def retrieval_is_slow(workshop: Workshop) -> Finding:
    table = _final(workshop)["retrieval"].dropna()
    fast, slow = table[table.index >= 0.1].mean(), table[table.index <= 0.001].mean()
    return _of_canonical(
        workshop,
        f"{slow:.2f} at angles of .001 and less, {fast:.2f} at .1 and more",
        judged(slow >= 0.95 and fast <= 0.4, in_part=slow > fast + 0.3),
    )


def induction_needs_two(workshop: Workshop) -> Finding:
    table = _final(workshop)
    one, two = table["induction"].max(), table["induction, two angles"].max()
    return _of_canonical(
        workshop,
        f"best single angle {one:.2f}, best pair (0, angle) {two:.2f}",
        judged(two >= 0.95 and one <= 0.8, in_part=two > one + 0.1),
    )


def _trend(workshop: Workshop, experiment: str, column: str, low: float, high: float) -> pd.Series:
    table = workshop.canonical.position_trends()
    of = table[(table["experiment"] == experiment) & table["theta"].between(low, high)]
    return of[column].dropna().astype(float)


def retrieval_inverse_u(workshop: Workshop) -> Finding:
    found = _trend(workshop, "retrieval", "accuracy_trend", 0.005, 0.15)
    value = float(found.median())
    return _of_canonical(
        workshop,
        f"rank correlation with the distance from the middle {value:.2f} (median over {len(found)} angles)",
        judged(value <= -0.7, in_part=value < -0.3),
    )


def index_u(workshop: Workshop) -> Finding:
    weight = float(_trend(workshop, "index", "target_weight_trend", 0.003, 0.02).median())
    accuracy = float(_trend(workshop, "index", "accuracy_trend", 0.003, 0.02).median())
    value = f"weight on the target {weight:.2f}, accuracy {accuracy:.2f} (rank correlation with the distance from the middle)"
    return _of_canonical(
        workshop,
        value,
        judged(weight >= 0.7 and accuracy >= 0.7, in_part=weight >= 0.7),
    )


def toy_scores(workshop: Workshop) -> Finding:
    table = workshop.canonical.scores
    index = table[(table["experiment"] == "index") & (table["theta"] >= 0.1)][
        ["positional_score", "symbolic_score"]
    ].mean()
    slow = table[(table["experiment"] == "retrieval") & (table["theta"] <= 0.001)][
        ["positional_score", "symbolic_score"]
    ].mean()
    value = f"Index ({index.iloc[0]:.2f}, {index.iloc[1]:.2f}), Retrieval ({slow.iloc[0]:.2f}, {slow.iloc[1]:.2f}) as (positional, symbolic)"
    good = index.iloc[0] >= 0.9 and index.iloc[1] <= 0.1 and slow.iloc[0] <= 0.1 and slow.iloc[1] >= 0.9
    return _of_canonical(
        workshop,
        value,
        judged(bool(good), in_part=bool(index.iloc[0] > 0.8 and slow.iloc[1] > 0.8)),
    )


def keys_collapse(workshop: Workshop) -> Finding:
    """Keys of a trained Index head in its plane: how far they point one way, before and after training."""
    table = workshop.canonical.vectors
    keys = table[(table["experiment"] == "index") & (table["kind"] == "key") & (table["theta"] >= 0.1)]
    by_step = keys.groupby(["theta", "step"]).apply(one_way, include_groups=False).groupby("step").mean()
    first, last = float(by_step.iloc[0]), float(by_step.iloc[-1])
    return _of_canonical(
        workshop,
        f"{first:.2f} before training, {last:.2f} after (1: all keys point one way)",
        judged(last >= 0.9, in_part=last > first + 0.2),
    )


def mixed_heads(workshop: Workshop) -> Finding:
    """Trained heads that solve partial induction, by the scores as defined and on swaps between equal symbols alone."""
    table = workshop.canonical.scores
    accuracy = _final(workshop)["induction, two angles"]
    solved = accuracy.index[accuracy >= 0.95]
    of = table[(table["experiment"] == "induction, two angles") & table["theta"].isin(solved)]
    columns = [
        "positional_score",
        "symbolic_score",
        "equal_symbol_positional_score",
        "equal_symbol_symbolic_score",
    ]
    p, s, equal_p, equal_s = of[columns].mean()
    return _of_canonical(
        workshop,
        f"({p:.2f}, {s:.2f}) as (positional, symbolic); on swaps between equal symbols alone ({equal_p:.2f}, {equal_s:.2f})",
        judged(bool(max(p, s) < 0.9), in_part=bool(s >= 0.9 and equal_p - equal_s >= 0.5)),
        "at tau = 1e-4 the swaps between equal symbols carry no weight; ",
    )


CLAIMS = [
    Claim("p1-canonical-index", "p1", "canonical tasks", "Index is learned at high frequencies only", "accuracy against frequency", "mean accuracy at least .8 at angles of .1 and more, at most .3 at .001 and less", index_is_fast, "cpu"),
    Claim("p1-canonical-retrieval", "p1", "canonical tasks", "Retrieval is learned at low frequencies only", "accuracy against frequency", "mean accuracy at least .95 at angles of .001 and less, at most .4 at .1 and more", retrieval_is_slow, "cpu"),
    Claim("p1-canonical-induction", "p1", "canonical tasks", "partial induction needs two angles", "one angle fails, (0, angle) succeeds", "best pair at least .95, best single angle at most .8", induction_needs_two, "cpu"),
    Claim("p1-positions-retrieval", "p1", "canonical tasks", "at too high a frequency Retrieval's accuracy over positions is an inverse U", "shown", "rank correlation with the distance from the middle at most -.7", retrieval_inverse_u, "cpu"),
    Claim("p1-positions-index", "p1", "canonical tasks", "at too low a frequency Index's accuracy over positions is a U", "shown", "rank correlations of accuracy and of the weight on the target at least .7; the weight alone: with a difference", index_u, "cpu"),
    Claim("p1-canonical-scores", "p1", "canonical tasks", "trained Index heads score as positional and Retrieval heads as symbolic", "(1, 0) and (0, 1)", "within .1 of the corners", toy_scores, "cpu"),
    Claim("p1-canonical-mixed", "p1", "canonical tasks", "a head that solves partial induction acts by neither kind alone", "mixed", "neither mean score reaches .9 at angles that are solved; with a difference if it scores as symbolic but is positional (by .5) between equal symbols", mixed_heads, "cpu"),
    Claim("p1-canonical-vectors", "p1", "canonical tasks", "in training the keys of an Index head collapse to one direction", "shown", "resultant of the keys' directions at least .9 after training", keys_collapse, "cpu"),
]  # fmt: skip
