"""P1: language models on binding prompts, and canonical tasks."""

from __future__ import annotations

import pandas as pd

from rotoscope.papers.claim import Claim, Finding, judged, one_way
from rotoscope.papers.workshop import Workshop

__all__ = ["CLAIMS"]

EFFECT = 0.05
"""A difference from the null that is smaller says nothing, however certain it is."""


def _statistic(workshop: Workshop, name: str) -> pd.Series:
    return workshop.profile.statistics().set_index("statistic").loc[name]


def _banded(row: pd.Series, front: str = "") -> str:
    return f"{row[front + 'value']:.2f} [{row[front + 'low']:.2f}, {row[front + 'high']:.2f}]"


def _beside_null(workshop: Workshop, name: str, as_said: bool) -> Finding:
    """As said and beyond the null: reproduced. As said, but so is the null: with a difference."""
    row = _statistic(workshop, name)
    beyond = row["verdict"] == "beyond the null" and abs(row["value"] - row["null_value"]) >= EFFECT
    note = (
        workshop.other_model
        if beyond or not as_said
        else f"a random model gives it too; {workshop.other_model}"
    )
    return Finding(
        _banded(row), judged(as_said and beyond, in_part=as_said), _banded(row, "null_"), note.strip("; ")
    )


def anticorrelation(workshop: Workshop) -> Finding:
    return _beside_null(workshop, "correlation", _statistic(workshop, "correlation")["value"] <= -0.8)


def positional_depth(workshop: Workshop) -> Finding:
    return _beside_null(workshop, "positional decline", _statistic(workshop, "positional decline")["low"] > 0)


def symbolic_depth(workshop: Workshop) -> Finding:
    return _beside_null(workshop, "symbolic rise", _statistic(workshop, "symbolic rise")["low"] > 0)


def slow_planes(workshop: Workshop) -> Finding:
    return _beside_null(
        workshop, "slow planes symbolic", _statistic(workshop, "slow planes symbolic")["value"] >= 0.9
    )


def fast_planes(workshop: Workshop) -> Finding:
    positional = _statistic(workshop, "fast planes positional")["value"]
    return _beside_null(workshop, "fast planes positional", positional >= 0.8)


def fastest_plane(workshop: Workshop) -> Finding:
    return _beside_null(
        workshop, "fastest plane both", _statistic(workshop, "fastest plane both")["value"] >= 0.5
    )


def _peak(trace: pd.DataFrame, column: str) -> int:
    """The block that gets most attention."""
    inside = trace[trace["block"] >= 0]
    return int(inside.groupby("block")[column].sum().idxmax())


def traces(workshop: Workshop) -> Finding:
    """The most positional head's peak stays through its telling swap; the most symbolic head's moves with the content."""
    table = workshop.profile.traces
    stays, moves = (
        (_peak(of, "attention"), _peak(of, "attention_swapped"))
        for of in (table[table["example"] == f"most {kind}"] for kind in ("positional", "symbolic"))
    )
    value = f"positional head: block {stays[0]} before, {stays[1]} after; symbolic head: {moves[0]} before, {moves[1]} after"
    right = (stays[0] == stays[1]) + (moves[0] != moves[1])
    return Finding(value, judged(right == 2, in_part=right == 1), note=workshop.other_model)


def vectors(workshop: Workshop) -> Finding:
    """How far the keys of the most positional head point one way in its dominant plane (1: all alike)."""
    table = workshop.profile.vectors
    keys = table[(table["example"] == "most positional") & (table["kind"] == "key")]
    alike = one_way(keys)
    return Finding(f"{alike:.2f}", judged(alike >= 0.9, in_part=alike >= 0.7), note=workshop.other_model)


def _final(workshop: Workshop) -> pd.DataFrame:
    return workshop.canonical.table()


def _budget(workshop: Workshop) -> str:
    settings = workshop.canonical.run["settings"]
    return (
        f"{settings['steps']} steps of {settings['batch']}, {settings['keys']} keys, {settings['seeds']} seeds"
    )


def index_is_fast(workshop: Workshop) -> Finding:
    table = _final(workshop)["index"].dropna()
    fast, slow = table[table.index >= 0.1].mean(), table[table.index <= 0.001].mean()
    return Finding(
        f"{fast:.2f} at angles of .1 and more, {slow:.2f} at .001 and less",
        judged(fast >= 0.8 and slow <= 0.3, in_part=fast > slow + 0.3),
        note=_budget(workshop),
        rests_on=workshop.canonical_where,
    )


def retrieval_is_slow(workshop: Workshop) -> Finding:
    table = _final(workshop)["retrieval"].dropna()
    fast, slow = table[table.index >= 0.1].mean(), table[table.index <= 0.001].mean()
    return Finding(
        f"{slow:.2f} at angles of .001 and less, {fast:.2f} at .1 and more",
        judged(slow >= 0.95 and fast <= 0.4, in_part=slow > fast + 0.3),
        note=_budget(workshop),
        rests_on=workshop.canonical_where,
    )


def induction_needs_two(workshop: Workshop) -> Finding:
    table = _final(workshop)
    one, two = table["induction"].max(), table["induction, two angles"].max()
    return Finding(
        f"best single angle {one:.2f}, best pair (0, angle) {two:.2f}",
        judged(two >= 0.95 and one <= 0.8, in_part=two > one + 0.1),
        note=_budget(workshop),
        rests_on=workshop.canonical_where,
    )


def _trend(workshop: Workshop, experiment: str, column: str, low: float, high: float) -> pd.Series:
    table = workshop.canonical.position_trends()
    of = table[(table["experiment"] == experiment) & table["theta"].between(low, high)]
    return of[column].dropna().astype(float)


def retrieval_inverse_u(workshop: Workshop) -> Finding:
    found = _trend(workshop, "retrieval", "accuracy_trend", 0.005, 0.15)
    value = float(found.median())
    return Finding(
        f"rank correlation with the distance from the middle {value:.2f} (median over {len(found)} angles)",
        judged(value <= -0.7, in_part=value < -0.3),
        note=_budget(workshop),
        rests_on=workshop.canonical_where,
    )


def index_u(workshop: Workshop) -> Finding:
    weight = float(_trend(workshop, "index", "target_weight_trend", 0.003, 0.02).median())
    accuracy = float(_trend(workshop, "index", "accuracy_trend", 0.003, 0.02).median())
    value = f"weight on the target {weight:.2f}, accuracy {accuracy:.2f} (rank correlation with the distance from the middle)"
    return Finding(
        value,
        judged(weight >= 0.7 and accuracy >= 0.7, in_part=weight >= 0.7),
        note=_budget(workshop),
        rests_on=workshop.canonical_where,
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
    return Finding(
        value,
        judged(bool(good), in_part=bool(index.iloc[0] > 0.8 and slow.iloc[1] > 0.8)),
        note=_budget(workshop),
        rests_on=workshop.canonical_where,
    )


def keys_collapse(workshop: Workshop) -> Finding:
    """Keys of a trained Index head in its plane: how far they point one way, before and after training."""
    table = workshop.canonical.vectors
    keys = table[(table["experiment"] == "index") & (table["kind"] == "key") & (table["theta"] >= 0.1)]
    by_step = keys.groupby(["theta", "step"]).apply(one_way, include_groups=False).groupby("step").mean()
    first, last = float(by_step.iloc[0]), float(by_step.iloc[-1])
    return Finding(
        f"{first:.2f} before training, {last:.2f} after (1: all keys point one way)",
        judged(last >= 0.9, in_part=last > first + 0.2),
        note=_budget(workshop),
        rests_on=workshop.canonical_where,
    )


CLAIMS = [
    Claim("p1-anticorrelation", "p1", "Fig. 2", "the two scores of a model's heads are strongly anti-correlated", "r = -0.91 (gemma-2-2b-it)", "r at most -.8, and beyond what a random model gives (intervals apart, by at least .05)", anticorrelation),
    Claim("p1-depth-positional", "p1", "Fig. 2", "positional heads give way with depth", "median positional score .83 in the first half of the layers, .56 in the second", "the median falls from the first to the second half, beyond a random model (intervals apart, by at least .05)", positional_depth),
    Claim("p1-depth-symbolic", "p1", "Fig. 2", "symbolic heads take over with depth", "the reverse of the positional medians", "the median rises from the first to the second half, beyond a random model (intervals apart, by at least .05)", symbolic_depth),
    Claim("p1-slow-frequencies", "p1", "Fig. 3", "low frequencies act symbolically", "profiles of all heads", "median symbolic score of the slowest quarter of planes at least .9, beyond a random model (intervals apart, by at least .05)", slow_planes),
    Claim("p1-fast-frequencies", "p1", "Fig. 3", "medium-high frequencies act positionally", "profiles of all heads", "median positional score of planes between 1/8 and 1/2 from the fastest at least .8, beyond a random model (intervals apart, by at least .05)", fast_planes),
    Claim("p1-fastest-frequency", "p1", "Fig. 3", "the very highest frequencies score high on both", "profiles of all heads", "at least half of the heads have a fastest plane with both scores at least .9, beyond a random model (intervals apart, by at least .05)", fastest_plane),
    Claim("p1-traces", "p1", "Fig. 3", "under a swap a positional head's peak stays and a symbolic head's moves with the content", "shown for chosen heads", "both, for the most positional and the most symbolic head", traces),
    Claim("p1-vectors", "p1", "Fig. 3C", "a positional head's keys lie together in its dominant plane, as in the toy model", "shown for head 12:0", "resultant of the keys' directions at least .9 (with a difference from .7)", vectors),
    Claim("p1-canonical-index", "p1", "canonical tasks", "Index is learned at high frequencies only", "accuracy against frequency", "mean accuracy at least .8 at angles of .1 and more, at most .3 at .001 and less", index_is_fast, "cpu"),
    Claim("p1-canonical-retrieval", "p1", "canonical tasks", "Retrieval is learned at low frequencies only", "accuracy against frequency", "mean accuracy at least .95 at angles of .001 and less, at most .4 at .1 and more", retrieval_is_slow, "cpu"),
    Claim("p1-canonical-induction", "p1", "canonical tasks", "partial induction needs two angles", "one angle fails, (0, angle) succeeds", "best pair at least .95, best single angle at most .8", induction_needs_two, "cpu"),
    Claim("p1-positions-retrieval", "p1", "canonical tasks", "at too high a frequency Retrieval's accuracy over positions is an inverse U", "shown", "rank correlation with the distance from the middle at most -.7", retrieval_inverse_u, "cpu"),
    Claim("p1-positions-index", "p1", "canonical tasks", "at too low a frequency Index's accuracy over positions is a U", "shown", "rank correlations of accuracy and of the weight on the target at least .7; the weight alone: with a difference", index_u, "cpu"),
    Claim("p1-canonical-scores", "p1", "canonical tasks", "trained Index heads score as positional and Retrieval heads as symbolic", "(1, 0) and (0, 1)", "within .1 of the corners", toy_scores, "cpu"),
    Claim("p1-canonical-vectors", "p1", "canonical tasks", "in training the keys of an Index head collapse to one direction", "shown", "resultant of the keys' directions at least .9 after training", keys_collapse, "cpu"),
]  # fmt: skip
