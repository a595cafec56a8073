"""Figures about a whole model, with intervals, and what the null gives for the same figure.

Each statistic is a function of the head scores. It is evaluated on bootstrap resamples of the prompts, of the
subject and of every draw of the null alike; the null's band holds 95 % of its resamples over all draws. A
figure of the subject is "beyond the null" where the two intervals do not meet, and "also in the null" where
they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.maths.purity import CLASSES, purity_codes
from rotoscope.results.aggregate import FREQUENCY_INDEX, INDEX, SCORES, interval, resampled_means
from rotoscope.results.intervals import one_row_per_input
from rotoscope.results.summary import correlation, depth_medians, first_half, median

HEADS = {
    "correlation": "Pearson r of the two scores over heads",
    "early positional": "median positional score, first half of the layers",
    "late positional": "median positional score, second half",
    "early symbolic": "median symbolic score, first half of the layers",
    "late symbolic": "median symbolic score, second half",
    "positional decline": "median positional score, first half minus second",
    "symbolic rise": "median symbolic score, second half minus first",
    "share positional": "heads that are pure positional",
    "share symbolic": "heads that are pure symbolic",
    "share uniform": "heads that are uniform",
}
PLANES = {
    "fastest plane both": "heads whose fastest plane scores high on both",
    "fast planes positional": "median positional score, planes between 1/8 and 1/2 from the fastest",
    "slow planes symbolic": "median symbolic score, slowest quarter of planes",
    "slow planes positional": "median positional score, slowest quarter of planes",
}

Figures = dict[str, np.ndarray]
"""Every statistic by name, one value per replicate."""
Evaluate = Callable[[np.ndarray, np.ndarray, np.ndarray], Figures]
"""From positional, symbolic [replicates, rows] and where each row stands."""


def of_heads(p: np.ndarray, s: np.ndarray, early: np.ndarray, gamma: float) -> Figures:
    """The statistics over heads; `early` are those in the first half of the layers."""
    codes = purity_codes(p, s, gamma)
    depth = {name.replace("_", " "): value for name, value in depth_medians(p, s, early).items()}
    pure = ("positional", "symbolic", "uniform")
    return {
        "correlation": correlation(p, s),
        **depth,
        **{f"share {name}": (codes == CLASSES.index(name)).mean(-1) for name in pure},
    }


def of_planes(p: np.ndarray, s: np.ndarray, place: np.ndarray, gamma: float) -> Figures:
    """The statistics over planes; `place` is where one stands among those of its head: 0 fastest, 1 slowest."""
    fastest, slow = place == 0, place >= 3 / 4
    both = purity_codes(p[:, fastest], s[:, fastest], gamma) == CLASSES.index("uniform")
    return {
        "fastest plane both": both.mean(-1),
        "fast planes positional": median(p[:, (place >= 1 / 8) & (place < 1 / 2)]),
        "slow planes symbolic": median(s[:, slow]),
        "slow planes positional": median(p[:, slow]),
    }


def statistics(tables: dict[str, pd.DataFrame], tau: float, gamma: float) -> pd.DataFrame:
    """One row per statistic: value, interval, the null's value and band, verdict."""
    rows = list(_rows(HEADS, partial(of_heads, gamma=gamma), tables, "prompts", INDEX, tau, _early))
    if "prompt_frequencies" in tables:
        planes = partial(of_planes, gamma=gamma)
        rows += _rows(PLANES, planes, tables, "prompt_frequencies", FREQUENCY_INDEX, tau, _place)
    return pd.DataFrame(rows)


def _rows(
    meanings: dict[str, str],
    evaluate: Evaluate,
    tables: dict[str, pd.DataFrame],
    name: str,
    index: list[str],
    tau: float,
    where: Callable[[pd.DataFrame, pd.DataFrame], np.ndarray],
) -> Iterator[dict[str, object]]:
    null = tables.get(f"null_{name}")
    draws = [] if null is None else [rows for _, rows in null.groupby(["null_name", "draw"])]
    found = _evaluated(evaluate, tables[name], tau, index, where)
    beside = [_evaluated(evaluate, draw, tau, index, where) for draw in draws]
    for statistic, meaning in meanings.items():
        value, spread = found(statistic)
        low, high = interval(spread)
        row: dict[str, object] = {"statistic": statistic, "meaning": meaning}
        row |= {"value": value, "low": low, "high": high}
        if beside:
            band = interval(np.concatenate([draw(statistic)[1] for draw in beside]))
            row |= {
                "null_value": float(np.mean([draw(statistic)[0] for draw in beside])),
                "null_low": band[0],
                "null_high": band[1],
                "verdict": _verdict(low, high, *band),
            }
        yield row


def _evaluated(
    evaluate: Evaluate,
    table: pd.DataFrame,
    tau: float,
    index: list[str],
    where: Callable[[pd.DataFrame, pd.DataFrame], np.ndarray],
) -> Callable[[str], tuple[float, np.ndarray]]:
    """Looks a statistic up by name: on all prompts, and on resamples of them."""
    rows = table[(table["tau"] == tau) & table["positional_score"].notna()]
    if rows.empty:
        return lambda _: (float("nan"), np.array([np.nan]))
    rows = one_row_per_input(rows, index)
    groups = rows.groupby(index, sort=True)[SCORES].mean()
    place = where(groups.reset_index(), table)
    p, s = (groups[score].to_numpy(dtype=float)[None] for score in SCORES)
    value = evaluate(p, s, place)
    p, s = (resampled_means(rows, score, index) for score in SCORES)
    complete = ~np.isnan(p).any(0)  # heads that every resample has a score for
    spread = evaluate(p[:, complete], s[:, complete], place[complete])
    return lambda statistic: (float(value[statistic][0]), spread[statistic])


def _verdict(low: float, high: float, null_low: float, null_high: float) -> str | None:
    if any(np.isnan(x) for x in (low, high, null_low, null_high)):
        return None
    return "beyond the null" if low > null_high or high < null_low else "also in the null"


def _early(heads: pd.DataFrame, table: pd.DataFrame) -> np.ndarray:
    return first_half(heads["layer"].to_numpy(), int(table["layer"].max()) + 1)


def _place(rows: pd.DataFrame, _: pd.DataFrame) -> np.ndarray:
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
