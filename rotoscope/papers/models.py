"""P1: language models on binding prompts."""

from __future__ import annotations

from functools import partial

import pandas as pd

from rotoscope.papers.claim import Finding, claims, judged, one_way
from rotoscope.papers.workshop import Workshop
from rotoscope.results.record import Proof

EFFECT = 0.05
"""A difference from the null that is smaller says nothing, however certain it is."""


def _statistic(workshop: Workshop, name: str) -> pd.Series:
    return workshop.statistics.loc[name]


def _banded(row: pd.Series, front: str = "") -> str:
    return f"{row[front + 'value']:.2f} [{row[front + 'low']:.2f}, {row[front + 'high']:.2f}]"


def _beside_null(workshop: Workshop, name: str, as_said: bool, sign: int = 1) -> Finding:
    """As said, and further so than the null: reproduced. As said, but the null too: with a difference."""
    row = _statistic(workshop, name)
    beyond = row["verdict"] == "beyond the null" and sign * (row["value"] - row["null_value"]) >= EFFECT
    note = workshop.asked_of if beyond or not as_said else f"a random model gives it too; {workshop.asked_of}"
    return Finding(_banded(row), judged(as_said and beyond, in_part=as_said), _banded(row, "null_"), note)


def anticorrelation(workshop: Workshop) -> Finding:
    strong = _statistic(workshop, "correlation")["value"] <= -0.8
    return _beside_null(workshop, "correlation", strong, sign=-1)


def with_depth(name: str, workshop: Workshop) -> Finding:
    """A difference between the halves of the layers whose interval lies above zero."""
    return _beside_null(workshop, name, _statistic(workshop, name)["low"] > 0)


def of_planes(name: str, least: float, workshop: Workshop) -> Finding:
    return _beside_null(workshop, name, _statistic(workshop, name)["value"] >= least)


def _peak(trace: pd.DataFrame, column: str) -> int:
    """The block that gets most attention."""
    inside = trace[trace["block"] >= 0]
    return int(inside.groupby("block")[column].sum().idxmax())


def _peaks(workshop: Workshop, example: str) -> list[str]:
    """What the peak does under the telling swap, by prompt: stay, follow the content, or neither."""
    table = workshop.traces
    found = []
    for _, trace in table[table["example"] == example].groupby("prompt"):
        swapped = (int(trace["first_block"].iloc[0]), int(trace["second_block"].iloc[0]))
        before, after = _peak(trace, "attention"), _peak(trace, "attention_swapped")
        if before in swapped:  # otherwise the swap does not touch the peak
            other = swapped[1 - swapped.index(before)]
            found.append("stays" if after == before else "follows" if after == other else "neither")
    return found


def traces(workshop: Workshop) -> Finding:
    """The most positional head's peak stays through its telling swap; the most symbolic head's moves."""
    texts, shares = [], []
    for kind, expected in (("positional", "stays"), ("symbolic", "follows")):
        found = _peaks(workshop, f"most {kind}")
        texts.append(f"{kind} head: {expected} in {found.count(expected)} of {len(found)} prompts")
        shares.append(found.count(expected) / len(found) if found else 0.0)
    verdict = judged(min(shares) >= 0.9, in_part=min(shares) > 0.5)
    return Finding("; ".join(texts), verdict, note=workshop.asked_of)


def _keys_alike(vectors: pd.DataFrame) -> float:
    return one_way(vectors[(vectors["example"] == "most positional") & (vectors["kind"] == "key")])


def vectors(workshop: Workshop) -> Finding:
    """How far the keys of the most positional head point one way in its dominant plane (1: all alike)."""
    alike, null = _keys_alike(workshop.profile.vectors), _keys_alike(workshop.null_vectors)
    beyond = alike >= null + EFFECT
    note = workshop.asked_of if beyond else f"a random model gives it too; {workshop.asked_of}"
    verdict = judged(alike >= 0.9 and beyond, in_part=alike >= 0.7)
    return Finding(f"{alike:.2f}", verdict, f"{null:.2f}", note)


def rebuilt(workshop: Workshop) -> Finding:
    """The model's own attention after a permutation of its input, against what was read out once."""
    proof = workshop.profile.run.proof or Proof()
    worst = proof.largest_difference
    value = f"{proof.layers} layers, largest difference {worst or 0:.0e} in attention"
    return Finding(value, judged(proof.layers > 0 and worst is not None and worst <= 1e-5))


def exclusion_in_heads(workshop: Workshop) -> Finding:
    """Both sides of Theorem 1, on every head and prompt."""
    heads = workshop.profile.prompts.dropna(subset=["logit_variance", "d_pos", "d_sym"])
    share = heads["logit_variance"] / (heads["d_pos"] + heads["d_sym"]).clip(lower=1e-12)
    value = (
        f"largest share of the bound {share.max():.2f}, median {share.median():.2f}, {len(share):,} heads and "
        "prompts"
    )
    return Finding(value, judged(bool((share <= 1 + 1e-5).all())), note=workshop.asked_of)


def _as_their_planes(heads: pd.DataFrame, planes: pd.DataFrame) -> float:
    """Rank correlation over heads of their positional lean with that of their planes, by logit norm."""
    planes = planes.assign(
        weight=planes["logit_norm"] ** 2,
        lean=(planes["positional_score"] - planes["symbolic_score"]) * planes["logit_norm"] ** 2,
    )
    sums = planes.groupby(["layer", "head"])[["lean", "weight"]].sum()
    whole = heads.set_index(["layer", "head"])
    lean = whole["positional_score"] - whole["symbolic_score"]
    return float((sums["lean"] / sums["weight"]).corr(lean, method="spearman"))


def planes_decide(workshop: Workshop) -> Finding:
    run = workshop.profile
    found = _as_their_planes(run.at(), run.frequencies)
    null = _as_their_planes(run.nulls, run.null_frequencies)
    verdict = judged(found >= 0.7 and found >= null + EFFECT, in_part=found >= 0.3)
    return Finding(f"rank correlation {found:.2f}", verdict, f"{null:.2f}", workshop.asked_of)


CLAIMS = claims(
    {
        "p1-metric": rebuilt,
        "p1-exclusion-heads": exclusion_in_heads,
        "p1-anticorrelation": anticorrelation,
        "p1-depth-positional": partial(with_depth, "positional decline"),
        "p1-depth-symbolic": partial(with_depth, "symbolic rise"),
        "p1-slow-frequencies": partial(of_planes, "slow planes symbolic", 0.9),
        "p1-fast-frequencies": partial(of_planes, "fast planes positional", 0.8),
        "p1-fastest-frequency": partial(of_planes, "fastest plane both", 0.5),
        "p1-planes": planes_decide,
        "p1-traces": traces,
        "p1-vectors": vectors,
    }
)
