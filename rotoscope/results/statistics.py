"""Figures about a whole model, with intervals, and what the null gives for the same figure.

Each statistic is a function of the head scores. Its standard error comes from bootstrap resamples of the prompts, and its
interval is Student's t with that error; what the null says about it is for `results.verdict` to judge, over all statistics
of one table together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import pandas as pd

from rotoscope.maths.purity import CLASSES, purity_codes
from rotoscope.results.aggregate import (
    CLASSED_BY,
    FREQUENCY_INDEX,
    INDEX,
    LEAST_MASS,
    SCORES,
    codes_of,
    little_at_stake,
    resampled,
    resamples,
    wide_scores,
)
from rotoscope.results.intervals import INTERVAL, one_row_per_input
from rotoscope.results.summary import correlation, depth_medians, first_half, median
from rotoscope.results.verdict import Figure, verdicts

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
CARRIED = {
    "share carried": "heads that are pure symbolic at their layer and stay in place with the prompt permuted"
}
PLANES = {
    "fastest plane both": "heads whose fastest plane scores high on both",
    "fast planes positional": "median positional score, planes between 1/8 and 1/2 from the fastest",
    "slow planes symbolic": "median symbolic score, slowest quarter of planes",
    "slow planes positional": "median positional score, slowest quarter of planes",
}

SIGNED = {"correlation", "positional decline", "symbolic rise"}
"""What may be negative."""
NO_SCORES = {
    "correlation",
    "share positional",
    "share symbolic",
    "share uniform",
    "share carried",
    "fastest plane both",
}
"""What is not in score units."""
AT_ONCE = 10_000_000
"""How many resampled scores are held in memory together."""

Figures = dict[str, np.ndarray]
"""Every statistic by name, one value per replicate."""
Found = dict[str, np.ndarray]
"""Every score by its column [replicates, rows]."""
Evaluate = Callable[[Found, np.ndarray], Figures]
"""From the scores and where each row stands."""


def of_heads(found: Found, early: np.ndarray, gamma: float) -> Figures:
    """The statistics over heads; `early` are those in the first half of the layers."""
    p, s = (found[score] for score in SCORES)
    codes = codes_of(found, gamma)
    depth = {name.replace("_", " "): value for name, value in depth_medians(p, s, early).items()}
    pure = ("positional", "symbolic", "carried", "uniform")
    return {
        "correlation": correlation(p, s),
        **depth,
        **{f"share {name}": (codes == CLASSES.index(name)).mean(-1) for name in pure},
    }


def of_planes(found: Found, place: np.ndarray, gamma: float) -> Figures:
    """The statistics over planes; `place` is where one stands among those of its head: 0 fastest, 1 slowest."""
    p, s = (found[score] for score in SCORES)
    fastest, slow = place == 0, place >= 3 / 4
    both = purity_codes(p[:, fastest], s[:, fastest], gamma) == CLASSES.index("uniform")
    return {
        "fastest plane both": both.mean(-1),
        "fast planes positional": median(p[:, (place >= 1 / 8) & (place < 1 / 2)]),
        "slow planes symbolic": median(s[:, slow]),
        "slow planes positional": median(p[:, slow]),
    }


def statistics(
    tables: dict[str, pd.DataFrame], tau: float, gamma: float, least_mass: float = LEAST_MASS
) -> pd.DataFrame:
    """One row per statistic: value and interval, what the null gives, and the verdict on all of them together.

    `little_at_stake` is the part of a class's share that has less than `least_mass` of its attention on what is swapped.
    """
    evaluate = partial(of_heads, gamma=gamma)
    meanings = HEADS | (CARRIED if "covered_share" in tables["prompts"] else {})
    rows = list(_rows(meanings, evaluate, tables, "prompts", INDEX, tau, _early))
    little = _little_at_stake(tables["prompts"], tau, gamma, least_mass)
    if "prompt_frequencies" in tables:
        planes = partial(of_planes, gamma=gamma)
        rows += _rows(PLANES, planes, tables, "prompt_frequencies", FREQUENCY_INDEX, tau, _place)
    table = pd.DataFrame([row.shown | {"little_at_stake": little.get(row.name)} for row in rows])
    if "null_prompts" not in tables:
        return table
    figures = [Figure(row.value, row.error, row.draws, row.name not in NO_SCORES) for row in rows]
    beside = pd.DataFrame([asdict(found) for found in verdicts(figures)])
    ends = np.array([row.bounds for row in rows]).T
    beside["null_low"], beside["null_high"] = (beside[end].clip(*ends) for end in ("null_low", "null_high"))
    return pd.concat([table, beside], axis=1)


@dataclass(frozen=True)
class _Row:
    """A statistic of the subject and of every draw of the null."""

    name: str
    meaning: str
    value: float
    error: float
    inputs: int
    draws: list[float]

    @property
    def bounds(self) -> tuple[float, float]:
        return (-1.0 if self.name in SIGNED else 0.0), 1.0

    @property
    def shown(self) -> dict[str, object]:
        from scipy.special import stdtrit  # t quantiles; not needed to ask a command for help

        reach = float("nan") if np.isnan(self.error) else self.error * stdtrit(self.inputs - 1, INTERVAL[1])
        low, high = np.clip([self.value - reach, self.value + reach], *self.bounds)
        return {
            "statistic": self.name,
            "meaning": self.meaning,
            "value": self.value,
            "low": float(low),
            "high": float(high),
            "prompts": self.inputs,
        }


Where = Callable[[pd.DataFrame, pd.DataFrame], np.ndarray]
"""Where each row of the head scores stands: its half of the layers, or its place among the planes."""


def _rows(
    meanings: dict[str, str],
    evaluate: Evaluate,
    tables: dict[str, pd.DataFrame],
    name: str,
    index: list[str],
    tau: float,
    where: Where,
) -> Iterator[_Row]:
    null, shown = tables.get(f"null_{name}", pd.DataFrame()), set(tables[name]["prompt"])
    draws = [rows for _, rows in null.groupby(["null_name", "draw"])] if len(null) else []
    whole = [rows for rows in draws if shown <= set(rows["prompt"])]  # others are still being made
    beside = [_values(evaluate, draw, tau, index, where) for draw in whole]
    values = _values(evaluate, tables[name], tau, index, where)
    errors, inputs = _errors(evaluate, tables[name], tau, index, where)
    for statistic, meaning in meanings.items():
        value, error = (found.get(statistic, float("nan")) for found in (values, errors))
        drawn = [draw.get(statistic, float("nan")) for draw in beside]
        yield _Row(statistic, meaning, value, error, inputs, drawn)


def _scored(table: pd.DataFrame, tau: float, index: list[str]) -> pd.DataFrame:
    return one_row_per_input(table[(table["tau"] == tau) & table["positional_score"].notna()], index)


def _values(
    evaluate: Evaluate, table: pd.DataFrame, tau: float, index: list[str], where: Where
) -> dict[str, float]:
    """Every statistic on all prompts."""
    rows = _scored(table, tau, index)
    if rows.empty:
        return {}
    groups = rows.groupby(index, sort=True)[_columns(rows)].mean()
    found = {name: groups[name].to_numpy(dtype=float)[None] for name in groups}
    figures = evaluate(found, where(groups.reset_index(), table))
    return {name: float(value[0]) for name, value in figures.items()}


def _columns(rows: pd.DataFrame) -> list[str]:
    return [name for name in CLASSED_BY if name in rows]


def _errors(
    evaluate: Evaluate, table: pd.DataFrame, tau: float, index: list[str], where: Where
) -> tuple[dict[str, float], int]:
    """The standard error of every statistic over prompts, and how many there were; one prompt has none."""
    rows = _scored(table, tau, index)
    inputs = rows["prompt"].nunique()
    if inputs < 2:
        return {}, inputs
    wide = {name: wide_scores(rows, name, index) for name in _columns(rows)}
    times = resamples(inputs)
    complete = (times @ ~np.isnan(wide["positional_score"]) > 0).all(
        0
    )  # heads that every resample has a score for
    wide = {name: scores[:, complete] for name, scores in wide.items()}
    place = where(rows[index].drop_duplicates().sort_values(index).reset_index(drop=True), table)[complete]
    parts = np.array_split(times, max(1, min(len(times), len(times) * complete.sum() // AT_ONCE)))
    found = [
        evaluate({name: resampled(scores, part) for name, scores in wide.items()}, place) for part in parts
    ]
    small = np.sqrt(inputs / (inputs - 1))  # resamples vary less than samples do
    spread = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    return {name: small * _deviation(values) for name, values in spread.items()}, inputs


def _deviation(values: np.ndarray) -> float:
    """The standard deviation over resamples; those in which the statistic is undefined do not count."""
    known = values[~np.isnan(values)]
    return float(known.std()) if len(known) else float("nan")


def _little_at_stake(prompts: pd.DataFrame, tau: float, gamma: float, least_mass: float) -> dict[str, float]:
    """Of the share of every class, the part with little at stake; nothing where attention was not noted."""
    rows = _scored(prompts, tau, INDEX)
    if rows.empty or "swapped_mass" not in rows:
        return {}
    heads = rows.groupby(INDEX)[[*_columns(rows), "swapped_mass"]].mean()
    codes = codes_of({name: heads[name] for name in _columns(rows)}, gamma)
    heads["head_class"] = [CLASSES[code] for code in codes]
    little = little_at_stake(heads, least_mass).fillna(False)
    return {f"share {name}": float((little & (heads["head_class"] == name)).mean()) for name in CLASSES}


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
