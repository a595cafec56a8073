"""P1: language models on binding prompts."""

from __future__ import annotations

from functools import partial

import pandas as pd

from rotoscope.papers.claim import Claim, Finding, judged, one_way
from rotoscope.papers.workshop import Workshop
from rotoscope.results.record import Proof

__all__ = ["CLAIMS"]

EFFECT = 0.05
"""A difference from the null that is smaller says nothing, however certain it is."""


def _statistic(workshop: Workshop, name: str) -> pd.Series:
    return workshop.statistics.loc[name]


def _banded(row: pd.Series, front: str = "") -> str:
    return f"{row[front + 'value']:.2f} [{row[front + 'low']:.2f}, {row[front + 'high']:.2f}]"


def _beside_null(workshop: Workshop, name: str, as_said: bool, sign: int = 1) -> Finding:
    """As said and further that way than the null: reproduced. As said, but so is the null: with a
    difference."""
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
    """What the peak does, prompt by prompt, under the swap that says most: stay, follow the content, or
    neither."""
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
    """What the model's own attention gives after a permutation of its input, against what was read out of it
    once."""
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
    """Rank correlation over heads of their positional lean with that of their planes, weighted by logit
    norm."""
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


CLAIMS = [
    Claim(
        id="p1-metric",
        paper="p1",
        where="definition of the scores",
        statement=(
            "a head's attention after a swap is what the model gives when the states it attends over are "
            "swapped"
        ),
        paper_value="by definition; measured there by permuting and running again",
        rule=(
            "the model's own attention after a permutation equals, to 1e-5 in every layer, what is read out "
            "of one plain pass"
        ),
        needs="profile",
        compute=rebuilt,
    ),
    Claim(
        id="p1-exclusion-heads",
        paper="p1",
        where="Theorem 1",
        statement=(
            "a head that is nearly positional and nearly symbolic is nearly uniform: the variance of its "
            "logits is at most D_pos + D_sym"
        ),
        paper_value="proved",
        rule="no head of the model breaks it on any prompt",
        needs="profile",
        compute=exclusion_in_heads,
    ),
    Claim(
        id="p1-anticorrelation",
        paper="p1",
        where="Fig. 2",
        statement="the two scores of a model's heads are strongly anti-correlated",
        paper_value="r = -0.91 (gemma-2-2b-it)",
        rule="r at most -.8, and beyond what a random model gives (intervals apart, by at least .05)",
        needs="profile",
        compute=anticorrelation,
    ),
    Claim(
        id="p1-depth-positional",
        paper="p1",
        where="Fig. 2",
        statement="positional heads give way with depth",
        paper_value="median positional score .83 in the first half of the layers, .56 in the second",
        rule=(
            "the median falls from the first to the second half, beyond a random model (intervals apart, by "
            "at least .05)"
        ),
        needs="profile",
        compute=partial(with_depth, "positional decline"),
    ),
    Claim(
        id="p1-depth-symbolic",
        paper="p1",
        where="Fig. 2",
        statement="symbolic heads take over with depth",
        paper_value="the reverse of the positional medians",
        rule=(
            "the median rises from the first to the second half, beyond a random model (intervals apart, by "
            "at least .05)"
        ),
        needs="profile",
        compute=partial(with_depth, "symbolic rise"),
    ),
    Claim(
        id="p1-slow-frequencies",
        paper="p1",
        where="Fig. 3",
        statement="low frequencies act symbolically",
        paper_value="profiles of all heads",
        rule=(
            "median symbolic score of the slowest quarter of planes at least .9, beyond a random model "
            "(intervals apart, by at least .05)"
        ),
        needs="profile",
        compute=partial(of_planes, "slow planes symbolic", 0.9),
    ),
    Claim(
        id="p1-fast-frequencies",
        paper="p1",
        where="Fig. 3",
        statement="medium-high frequencies act positionally",
        paper_value="profiles of all heads",
        rule=(
            "median positional score of planes between 1/8 and 1/2 from the fastest at least .8, beyond a "
            "random model (intervals apart, by at least .05)"
        ),
        needs="profile",
        compute=partial(of_planes, "fast planes positional", 0.8),
    ),
    Claim(
        id="p1-fastest-frequency",
        paper="p1",
        where="Fig. 3",
        statement="the very highest frequencies score high on both",
        paper_value="profiles of all heads",
        rule=(
            "at least half of the heads have a fastest plane with both scores at least .9, beyond a random "
            "model (intervals apart, by at least .05)"
        ),
        needs="profile",
        compute=partial(of_planes, "fastest plane both", 0.5),
    ),
    Claim(
        id="p1-planes",
        paper="p1",
        where="Fig. 3",
        statement="the planes with the largest logit norms decide how a head behaves",
        paper_value="shown for head 12:0",
        rule=(
            "rank correlation over heads between a head's positional minus symbolic score and its planes' "
            "(weighted by squared logit norm) at least .7, and .05 beyond a random model; with a difference "
            "from .3"
        ),
        needs="profile",
        compute=planes_decide,
    ),
    Claim(
        id="p1-traces",
        paper="p1",
        where="Fig. 3",
        statement="under a swap a positional head's peak stays and a symbolic head's moves with the content",
        paper_value="shown for chosen heads",
        rule=(
            "both in nine of ten prompts, for the most positional and the most symbolic head and the swap "
            "that weighs most; with a difference if in more than half"
        ),
        needs="profile",
        compute=traces,
    ),
    Claim(
        id="p1-vectors",
        paper="p1",
        where="Fig. 3C",
        statement="a positional head's keys lie together in its dominant plane, as in the toy model",
        paper_value="shown for head 12:0",
        rule=(
            "resultant of the keys' directions at least .9, and .05 above that of a random model's most "
            "positional head (with a difference from .7)"
        ),
        needs="profile",
        compute=vectors,
    ),
]
