"""Figures about a whole model, with intervals, and what the null gives for the same figure.

Each statistic is a function of the head scores. It is evaluated on bootstrap resamples of the prompts, of the subject
and of every draw of the null alike; the null's band holds 95 % of its resamples over all draws. A figure of the subject
is "beyond the null" where the two intervals do not meet, and "also in the null" where they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from rotoscope.results.aggregate import FREQUENCY_INDEX, INDEX, resampled_means

__all__ = ["by_position", "statistics"]

Scores = tuple[np.ndarray, np.ndarray]
"""Positional and symbolic scores [replicates, heads]."""


@dataclass(frozen=True)
class Statistic:
    name: str
    meaning: str
    of: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    """From positional, symbolic [replicates, rows] and where each row stands, to [replicates]."""


def _correlation(p: np.ndarray, s: np.ndarray) -> np.ndarray:
    p, s = p - p.mean(1, keepdims=True), s - s.mean(1, keepdims=True)
    size = np.sqrt((p * p).sum(1) * (s * s).sum(1))
    return np.divide((p * s).sum(1), size, out=np.full(len(p), np.nan), where=size > 0)


def _median(scores: np.ndarray) -> np.ndarray:
    return np.median(scores, axis=1) if scores.shape[1] else np.full(len(scores), np.nan)


def _head_statistics(gamma: float) -> list[Statistic]:
    high, low = 1 - gamma, gamma
    return [
        Statistic("correlation", "Pearson r of the two scores over heads", lambda p, s, e: _correlation(p, s)),
        Statistic("early positional", "median positional score, first half of the layers", lambda p, s, e: _median(p[:, e])),
        Statistic("late positional", "median positional score, second half", lambda p, s, e: _median(p[:, ~e])),
        Statistic("early symbolic", "median symbolic score, first half of the layers", lambda p, s, e: _median(s[:, e])),
        Statistic("late symbolic", "median symbolic score, second half", lambda p, s, e: _median(s[:, ~e])),
        Statistic(
            "positional decline",
            "median positional score, first half minus second",
            lambda p, s, e: _median(p[:, e]) - _median(p[:, ~e]),
        ),
        Statistic(
            "symbolic rise",
            "median symbolic score, second half minus first",
            lambda p, s, e: _median(s[:, ~e]) - _median(s[:, e]),
        ),
        Statistic("share positional", "heads that are pure positional", lambda p, s, e: ((p >= high) & (s <= low)).mean(1)),
        Statistic("share symbolic", "heads that are pure symbolic", lambda p, s, e: ((s >= high) & (p <= low)).mean(1)),
        Statistic("share uniform", "heads that are uniform", lambda p, s, e: ((p >= high) & (s >= high)).mean(1)),
    ]  # fmt: skip


def _frequency_statistics(gamma: float) -> list[Statistic]:
    """`place` is where a plane stands among those of its head: 0 the fastest, 1 the slowest."""
    high = 1 - gamma
    return [
        Statistic(
            "fastest plane both",
            "heads whose fastest plane scores high on both",
            lambda p, s, place: ((p >= high) & (s >= high))[:, place == 0].mean(1),
        ),
        Statistic(
            "fast planes positional",
            "median positional score, planes between 1/8 and 1/2 from the fastest",
            lambda p, s, place: _median(p[:, (place >= 1 / 8) & (place < 1 / 2)]),
        ),
        Statistic(
            "slow planes symbolic", "median symbolic score, slowest quarter of planes", lambda p, s, place: _median(s[:, place >= 3 / 4])
        ),
        Statistic(
            "slow planes positional", "median positional score, slowest quarter of planes", lambda p, s, place: _median(p[:, place >= 3 / 4])
        ),
    ]  # fmt: skip


def statistics(tables: dict[str, pd.DataFrame], tau: float, gamma: float) -> pd.DataFrame:
    """One row per statistic: value, interval, the null's value and band, verdict."""
    rows = list(_rows(_head_statistics(gamma), tables, "prompts", INDEX, tau, _first_half))
    if "prompt_frequencies" in tables:
        rows += _rows(_frequency_statistics(gamma), tables, "prompt_frequencies", FREQUENCY_INDEX, tau, _place)
    return pd.DataFrame(rows)


def _rows(
    wanted: list[Statistic],
    tables: dict[str, pd.DataFrame],
    name: str,
    index: list[str],
    tau: float,
    where: Callable[[pd.DataFrame], np.ndarray],
) -> Iterator[dict[str, object]]:
    real = _at(tables[name], tau)
    null = _at(tables[f"null_{name}"], tau) if f"null_{name}" in tables else None
    draws = [] if null is None else [rows for _, rows in null.groupby(["null_name", "draw"])]
    found = _evaluate(wanted, real, index, where)
    beside = [_evaluate(wanted, draw, index, where) for draw in draws]
    for k, statistic in enumerate(wanted):
        value, spread = found[k]
        low, high = _interval(spread)
        row: dict[str, object] = {
            "statistic": statistic.name,
            "meaning": statistic.meaning,
            "value": value,
            "low": low,
            "high": high,
        }
        if beside:
            band = _interval(np.concatenate([draw[k][1] for draw in beside]))
            row |= {
                "null_value": float(np.mean([draw[k][0] for draw in beside])),
                "null_low": band[0],
                "null_high": band[1],
                "verdict": _verdict(low, high, *band),
            }
        yield row


def _at(table: pd.DataFrame, tau: float) -> pd.DataFrame:
    return table[(table["tau"] == tau) & table["positional_score"].notna()]


def _evaluate(
    wanted: list[Statistic], rows: pd.DataFrame, index: list[str], where: Callable[[pd.DataFrame], np.ndarray]
) -> list[tuple[float, np.ndarray]]:
    """Each statistic on all prompts, and on resamples of them."""
    if rows.empty:
        return [(float("nan"), np.array([np.nan]))] * len(wanted)
    groups = rows.groupby(index, sort=True)[["positional_score", "symbolic_score"]].mean()
    place = where(groups.reset_index())
    whole = [groups[score].to_numpy(dtype=float)[None] for score in groups]
    drawn = [resampled_means(rows, score, index) for score in groups]
    complete = ~np.isnan(drawn[0]).any(0)  # heads that every resample has a score for
    drawn = [means[:, complete] for means in drawn]
    return [
        (float(s.of(whole[0], whole[1], place)[0]), s.of(drawn[0], drawn[1], place[complete])) for s in wanted
    ]


def _interval(spread: np.ndarray) -> tuple[float, float]:
    known = spread[~np.isnan(spread)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def _verdict(low: float, high: float, null_low: float, null_high: float) -> str | None:
    if any(np.isnan(x) for x in (low, high, null_low, null_high)):
        return None
    return "beyond the null" if low > null_high or high < null_low else "also in the null"


def _first_half(rows: pd.DataFrame) -> np.ndarray:
    half: np.ndarray = (rows["layer"] < (rows["layer"].max() + 1) / 2).to_numpy()
    return half


def _place(rows: pd.DataFrame) -> np.ndarray:
    """Relative place of a plane, 0 fastest to 1 slowest; what does not rotate stands nowhere (-1)."""
    last = rows.groupby(["layer", "head"])["frequency_id"].transform("max").to_numpy()
    ids = rows["frequency_id"].to_numpy()
    return np.where(ids == 0, -1.0, (ids - 1) / np.maximum(last - 1, 1))


def by_position(answers: pd.DataFrame, bins: int) -> pd.DataFrame:
    """Answers grouped by where the asked block stands: 0 the first block, 1 the last."""
    if not len(answers) or answers["asked_block"].isna().all():
        return pd.DataFrame()
    known = answers.dropna(subset=["asked_block"])
    place = known["asked_block"] / max(float(known["asked_block"].max()), 1.0)
    groups = known.groupby(np.minimum((place * bins).astype(int), bins - 1))
    table = groups.agg(
        answers=("correct", "size"),
        accuracy=("correct", "mean"),
        log_likelihood=("log_likelihood", "mean"),
        log_likelihood_sem=("log_likelihood", "sem"),
        asked_attention=("asked_attention", "mean"),
        asked_attention_sem=("asked_attention", "sem"),
    )
    table.insert(0, "place", (table.index + 0.5) / bins)
    return table.reset_index(drop=True)
