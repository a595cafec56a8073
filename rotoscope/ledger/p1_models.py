"""P1: language models on binding prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.experiments.ask.result import wilson
from rotoscope.ledger.claim import beside_untrained, by_itself, claims, one_way, rank_correlation
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.language_runs import DEPTH, DRAWS, PAIRS
from rotoscope.ledger.verdicts import Finding, Found, goes_beyond, judged
from rotoscope.runs.record import Proof
from rotoscope.scores.classes import purity_classes
from rotoscope.stats.aggregate import SCORES
from rotoscope.stats.intervals import mean_interval
from rotoscope.stats.verdict import BEYOND

STRONG = 0.8
SHUFFLES, P_VALUE = 20_000, 1e-4
HEAD = ["layer", "head"]


def _asked_of(workshop: Workshop) -> str:
    return workshop.asked_of(PAIRS[workshop.cost])


def banded(row: pd.Series, front: str = "") -> str:
    return f"{row[front + 'value']:.2f} [{row[front + 'low']:.2f}, {row[front + 'high']:.2f}]"


def further(row: pd.Series, sign: int = 1) -> bool:
    """Whether a statistic lies beyond the null, on the side that is said."""
    return bool(row["verdict"] == BEYOND and sign * (row["value"] - row["null_value"]) > 0)


def of_statistic(name: str, as_said: Callable[[pd.Series], bool], sign: int, workshop: Workshop) -> Finding:
    """As said and further so than random models: reproduced. As said only: also in the null."""
    row = workshop.statistics(name).loc[name]
    said = bool(as_said(row))
    verdict = judged(said, null=0 if further(row, sign) else 2)
    return Finding(banded(row), verdict, banded(row, "null_"), _asked_of(workshop))


def with_depth(name: str, workshop: Workshop) -> Finding:
    """A difference between the halves of the layers, in every setting: how many facts, what stands before them."""
    found = {setting: table.loc[name] for setting, table in workshop.depth.items()}
    holds = {setting: bool(row["value"] > 0 and further(row)) for setting, row in found.items()}
    value = "; ".join(
        f"{_setting(setting)}: {banded(row)}, {'' if holds[setting] else 'not '}beyond random models"
        for setting, row in found.items()
    )
    null = "; ".join(banded(row, "null_") for row in found.values())
    verdict = judged(all(holds.values()), in_part=sum(holds.values()) > len(holds) / 2)
    return Finding(value, verdict, null, workshop.asked_of())


def _setting(name: str) -> str:
    prefix, pairs, _ = DEPTH[name]
    return f"{pairs} pairs" + (", start token only" if prefix else "")


def shuffled_p(heads: pd.DataFrame, seed: int = 0) -> float:
    """How often scores dealt to other heads at random are at least as anti-correlated."""
    p, s = (heads[score].to_numpy(dtype=float) for score in SCORES)
    real = np.corrcoef(p, s)[0, 1]
    dealt = np.random.default_rng(seed).permuted(np.tile(s - s.mean(), (SHUFFLES, 1)), axis=1)
    drawn = dealt @ (p - p.mean()) / (len(p) * p.std() * s.std())
    return float((1 + (drawn <= real).sum()) / (1 + SHUFFLES))


def significance(workshop: Workshop) -> Finding:
    run = workshop.scores
    found = shuffled_p(run.at().dropna(subset=SCORES))
    nulls = [shuffled_p(draw.dropna(subset=SCORES)) for _, draw in run.nulls_at().groupby("draw")]
    null = 2 if min(nulls) <= P_VALUE else 0
    return Finding(
        f"p = {found:.0e} ({SHUFFLES:,} shuffles)",
        judged(found <= P_VALUE, null=null),
        f"p = {min(nulls):.0e} to {max(nulls):.0e}",
        _asked_of(workshop),
    )


Tables = dict[str, pd.DataFrame]
"""Scores per prompt: `prompts` of heads, `prompt_frequencies` of their planes."""


def _tables(workshop: Workshop, draw: int | None = None) -> Tables:
    """Of the subject, or of one draw of the null; at the first tau."""
    found = {}
    for name in ("prompts", "prompt_frequencies"):
        table = workshop.profile.tables[name if draw is None else f"null_{name}"]
        table = table if draw is None else table[table["draw"] == draw]
        found[name] = table[table["tau"] == workshop.profile.taus[0]]
    return found


def _leans(tables: Tables) -> pd.DataFrame:
    """By head: its class, its positional minus its symbolic score, and that of its planes, by squared logit norm."""
    heads = tables["prompts"].groupby(HEAD)[SCORES].mean()
    planes = tables["prompt_frequencies"].groupby([*HEAD, "frequency_id"])[[*SCORES, "logit_norm"]].mean()
    weight = planes["logit_norm"] ** 2
    lean = (planes[SCORES[0]] - planes[SCORES[1]]) * weight
    sums = pd.DataFrame({"lean": lean, "weight": weight}).dropna().groupby(HEAD).sum()
    return heads.assign(
        head_class=purity_classes(heads[SCORES[0]], heads[SCORES[1]]),
        own=heads[SCORES[0]] - heads[SCORES[1]],
        planes=sums["lean"] / sums["weight"],
    ).dropna()


def as_their_planes(tables: Tables) -> float:
    """Rank correlation over heads of their positional lean with that of their planes."""
    leans = _leans(tables)
    return rank_correlation(leans["own"], leans["planes"])


def fitting_their_class(tables: Tables) -> float:
    """The share of pure heads whose planes lean the way of their class; without pure heads, none."""
    leans = _leans(tables)
    pure = leans[leans["head_class"].isin(["positional", "symbolic"])]
    return float((np.sign(pure["own"]) == np.sign(pure["planes"])).mean()) if len(pure) else 0.0


def _jackknife(figure: Callable[[Tables], float], tables: Tables) -> float:
    """The standard error of a figure over prompts, leaving out one at a time."""
    prompts = tables["prompts"]["prompt"].unique()
    left = [figure({k: t[t["prompt"] != out] for k, t in tables.items()}) for out in prompts]
    return float(np.sqrt((len(left) - 1) / len(left) * ((np.array(left) - np.mean(left)) ** 2).sum()))


def of_planes(figure: Callable[[Tables], float], least: float, what: str, workshop: Workshop) -> Finding:
    """A figure of heads and their planes, at least so large, beside that of random models."""
    tables = _tables(workshop)
    value = figure(tables)
    draws = [figure(_tables(workshop, draw)) for draw in range(DRAWS)]
    beyond = goes_beyond(value, _jackknife(figure, tables), draws)
    verdict = judged(value >= least, null=0 if beyond else 2)
    return Finding(f"{what} {value:.2f}", verdict, _each(draws), _asked_of(workshop))


def _peak(trace: pd.DataFrame, column: str) -> int:
    """The block that gets most attention."""
    inside = trace[trace["block"] >= 0]
    return int(inside.groupby("block")[column].sum().idxmax())


def _peaks(table: pd.DataFrame, example: str) -> list[str]:
    """What the peak does under the telling swap, by prompt: stay, follow the content, or neither."""
    found = []
    for _, trace in table[table["example"] == example].groupby("prompt"):
        swapped = (int(trace["first_block"].iloc[0]), int(trace["second_block"].iloc[0]))
        before, after = _peak(trace, "attention"), _peak(trace, "attention_swapped")
        if before in swapped:  # otherwise the swap does not touch the peak
            other = swapped[1 - swapped.index(before)]
            found.append("stays" if after == before else "follows" if after == other else "neither")
    return found


def _as_drawn(table: pd.DataFrame) -> tuple[list[str], float, float]:
    """What the peaks of both telling heads do, the smaller share of prompts that is as said, and its standard error."""
    texts, shares = [], []
    for kind, expected in (("positional", "stays"), ("symbolic", "follows")):
        found = _peaks(table, f"most {kind}")
        texts.append(f"{kind} head: {expected} in {found.count(expected)} of {len(found)} prompts")
        shares.append((found.count(expected) / len(found) if found else 0.0, len(found)))
    share, of = min(shares)
    return texts, share, float(np.sqrt(share * (1 - share) / max(of, 1)))


def traces(workshop: Workshop) -> Finding:
    """The most positional head's peak stays through its telling swap; the most symbolic head's moves."""
    subject, *random = (_as_drawn(table) for table in _by_draw(workshop.telling.traces))
    texts, share, error = subject
    draws = [found for _, found, _ in random]
    verdict = judged(share >= 0.9, null=0 if goes_beyond(share, error, draws) else 2)
    null = f"as said in {_each(draws)} of the prompts"
    return Finding("; ".join(texts), verdict, null, workshop.asked_of())


def _by_draw(table: pd.DataFrame) -> list[pd.DataFrame]:
    """The subject's rows, then those of every random model."""
    return [rows for _, rows in table.groupby("draw", sort=True)]


def _each(draws: list[float]) -> str:
    return ", ".join(f"{x:.2f}" for x in draws)


def _keys_alike(vectors: pd.DataFrame) -> np.ndarray:
    """How far the keys of the most positional head point one way in its dominant plane (1: all alike), by prompt."""
    keys = vectors[(vectors["example"] == "most positional") & (vectors["kind"] == "key")]
    return np.array([one_way(rows) for _, rows in keys.groupby("prompt")])


def vectors(workshop: Workshop) -> Finding:
    alike, *random = (_keys_alike(table) for table in _by_draw(workshop.telling.vectors))
    value, error = float(alike.mean()), float(alike.std(ddof=1) / np.sqrt(len(alike)))
    draws = [float(one.mean()) for one in random]
    verdict = judged(value >= 0.9, null=0 if goes_beyond(value, error, draws) else 2)
    return Finding(f"{value:.2f}", verdict, _each(draws), workshop.asked_of())


def rebuilt(workshop: Workshop) -> Found:
    """The model's own attention after a permutation of its input, against what was read out once."""
    proof = workshop.scores.run.proof or Proof()
    worst = proof.largest_difference
    value = f"{proof.layers} layers, largest difference {worst or 0:.0e} in attention"
    return Found(value, proof.layers > 0 and worst is not None and worst <= 1e-5)


def exclusion_in_heads(workshop: Workshop) -> Found:
    """Both sides of Theorem 1, on every head and prompt."""
    heads = workshop.scores.prompts.dropna(subset=["logit_variance", "d_pos", "d_sym"])
    share = heads["logit_variance"] / (heads["d_pos"] + heads["d_sym"]).clip(lower=1e-12)
    value = (
        f"largest share of the bound {share.max():.2f}, median {share.median():.2f}, {len(share):,} heads and "
        "prompts"
    )
    return Found(value, bool((share <= 1 + 1e-5).all()), note=_asked_of(workshop))


def middle_is_lost(workshop: Workshop) -> Found:
    """Whether answers about facts near the ends are likelier, of a model that answers at all."""
    answers = workshop.places.answers.dropna(subset=["asked_block"])
    pairs = int(workshop.places.run.settings["task_settings"]["pairs"])
    right = int(answers["correct"].sum())
    low, _ = wilson(right, len(answers))
    place = answers["asked_block"] / (pairs - 1)
    trend, ends = _rank_interval((place - 0.5).abs(), answers["log_likelihood"])
    attended, _ = _rank_interval((place - 0.5).abs(), answers["asked_attention"])
    value = (
        f"rank correlation of the answer's likelihood with the distance from the middle {trend:.2f} "
        f"[{ends[0]:.2f}, {ends[1]:.2f}], of the attention on the asked fact {attended:.2f}; {right} of "
        f"{len(answers)} answers right"
    )
    return Found(value, low > 1 / pairs and ends[0] > 0, note=workshop.asked_of(pairs))


def _rank_interval(x: pd.Series, y: pd.Series) -> tuple[float, tuple[float, float]]:
    """A rank correlation with its 95 % interval (Fisher's z)."""
    found = rank_correlation(x, y)
    reach = 1.96 / np.sqrt(max(len(x) - 3, 1))
    low, high = np.tanh(np.arctanh(np.clip(found, -0.9999, 0.9999)) + np.array([-reach, reach]))
    return found, (float(low), float(high))


def slow_half_matters(workshop: Workshop) -> Found:
    """What a symbolic head's two halves of frequencies are worth, in loss on repeated tokens."""
    table = workshop.gating.conditions.query("source == 'task' and not control")
    loss = {name: rows.set_index("prompt")["loss"] for name, rows in table.groupby("condition", sort=False)}
    accuracy = float(table.loc[table["condition"] == "nothing gated", "accuracy"].mean())
    removed = [name for name in loss if name.startswith("remove") and name != "remove all"]
    if len(removed) != 2:
        return Found(f"no symbolic head; {accuracy:.2f} right with nothing gated", False)
    none, everything = loss["nothing gated"], loss["remove all"]
    fast, slow = (loss[name] for name in removed)  # fastest first
    [low], [high] = mean_interval((slow - fast).to_numpy(dtype=float)[:, None], (-np.inf, np.inf))
    half = (none.mean() + everything.mean()) / 2
    value = (
        f"loss {none.mean():.1f} with nothing gated, {slow.mean():.1f} without the slow half, {fast.mean():.1f} without "
        f"the fast half (slow minus fast [{low:.1f}, {high:.1f}]), {everything.mean():.1f} without all; {accuracy:.2f} right"
    )
    does_it, costs_more = accuracy >= 0.5, low > 0
    as_said = does_it and costs_more and slow.mean() >= half > fast.mean()
    return Found(value, bool(as_said), bool(does_it and costs_more), note=workshop.asked_of())


def _large(least: float) -> Callable[[pd.Series], bool]:
    return lambda row: bool(row["value"] >= least)


def _made() -> Iterator[tuple[str, Callable[[Workshop], Finding]]]:
    strongly = partial(of_statistic, "correlation", lambda row: bool(row["value"] <= -STRONG), -1)
    yield "p1-anticorrelation", strongly
    yield "p1-correlation-p", significance
    yield "p1-depth-positional", partial(with_depth, "positional decline")
    yield "p1-depth-symbolic", partial(with_depth, "symbolic rise")
    for name, statistic, least in (
        ("p1-slow-frequencies", "slow planes symbolic", 0.9),
        ("p1-fast-frequencies", "fast planes positional", 0.9),
        ("p1-fastest-frequency", "fastest plane both", 0.5),
    ):
        yield name, partial(of_statistic, statistic, _large(least), 1)
    yield "p1-planes", partial(of_planes, as_their_planes, 0.7, "rank correlation")
    yield "p1-profiles", partial(of_planes, fitting_their_class, 0.9, "share of pure heads")
    yield "p1-traces", traces
    yield "p1-vectors", vectors
    yield "p1-middle", beside_untrained(middle_is_lost)
    yield "p1-gating", beside_untrained(slow_half_matters)


METHOD = claims(
    {"p1-metric": by_itself(rebuilt), "p1-exclusion-heads": by_itself(exclusion_in_heads)}, learned=False
)
CLAIMS = [*METHOD, *claims(dict(_made()), learned=True)]
