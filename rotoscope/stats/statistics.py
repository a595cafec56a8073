"""A whole model in a few figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.scores.classes import AT_ITS_LAYER, CLASSES, purity_classes, purity_codes
from rotoscope.stats.aggregate import (
    CLASSED_BY,
    FREQUENCY_INDEX,
    INDEX,
    INPUT_SCORES,
    LEAST_MASS,
    SCORES,
    codes_of,
    little_at_stake,
    own_measures,
    permuted_scores,
    resampled,
    resamples,
    wide_scores,
)
from rotoscope.stats.intervals import INTERVAL, one_row_per_input
from rotoscope.stats.verdict import AS_IN, BEYOND, LEAST_EFFECT, NO_VERDICT, UNDECIDED, Figure, verdicts


@dataclass(frozen=True)
class Summary:
    """Figures of P1's section on language models, over all heads that have a score."""

    heads: int
    missing: int
    correlation: float | None
    """Pearson's r between the positional and the symbolic score; None where either does not vary."""
    early_positional: float
    late_positional: float
    early_symbolic: float
    late_symbolic: float
    """Medians over the heads of the first and of the second half of the layers."""
    classes: dict[str, int]
    little_at_stake: dict[str, int]
    """How many of each class put less than `least_mass` of their attention on what is swapped."""
    least_mass: float
    followed: int | None = None
    """How many of the symbolic heads are pure symbolic also with the prompt itself permuted; None where it was not."""

    untested: int = 0
    """How many of the symbolic heads have no verdict in the prompt: the swaps that were run hold too little of their weight."""

    @property
    def counted(self) -> dict[str, str]:
        """Each class with its heads and, in brackets, those of them with little at stake (see `stake_words`)."""
        counts = {name: f"{n} {name} ({self.little_at_stake[name]})" for name, n in self.classes.items()}
        note = "at their layer"
        if self.followed is not None:
            follow = "follows" if self.followed == 1 else "follow"
            note += f": {self.followed} {follow} the word in the prompt, {self.untested} not tested enough"
        return counts | {"symbolic": f"{counts['symbolic']} {note}"}

    @property
    def stake_words(self) -> str:
        """What the brackets hold."""
        return (
            f"in brackets, little at stake: under {self.least_mass:.0%} of their attention on what is swapped"
        )


def class_words(head_class: str, input_class: object = None) -> str:
    """A head's class in words. A pure symbolic head follows the symbol only if it does so with the prompt permuted."""
    followed = head_class != "symbolic" or input_class == "symbolic"
    return head_class if followed else "symbolic at its layer"


def first_half(layers: np.ndarray, count: int) -> np.ndarray:
    """Which rows stand in the first half of so many layers; the middle one of an odd number belongs to it."""
    half: np.ndarray = np.asarray(layers) < count / 2
    return half


def correlation(positional: np.ndarray, symbolic: np.ndarray) -> np.ndarray:
    """Pearson's r of the two scores over heads (last axis); NaN where either does not vary."""
    if not positional.shape[-1]:
        return np.full(positional.shape[:-1], np.nan)
    p, s = (scores - scores.mean(-1, keepdims=True) for scores in (positional, symbolic))
    size = np.sqrt((p * p).sum(-1) * (s * s).sum(-1))
    return np.asarray(np.divide((p * s).sum(-1), size, out=np.full(np.shape(size), np.nan), where=size > 0))


def depth_medians(positional: np.ndarray, symbolic: np.ndarray, early: np.ndarray) -> dict[str, Any]:
    """Medians over the heads (last axis) of either half of the layers, and how far apart they are."""
    medians = {
        f"{half}_{kind}": median(scores[..., mask])
        for kind, scores in (("positional", positional), ("symbolic", symbolic))
        for half, mask in (("early", early), ("late", ~early))
    }
    medians["positional_decline"] = medians["early_positional"] - medians["late_positional"]
    medians["symbolic_rise"] = medians["late_symbolic"] - medians["early_symbolic"]
    return medians


def median(scores: np.ndarray) -> np.ndarray:
    """Over the last axis; of nothing it is NaN."""
    return np.asarray(np.median(scores, axis=-1) if scores.shape[-1] else np.full(scores.shape[:-1], np.nan))


def summarise(heads: pd.DataFrame, least_mass: float = LEAST_MASS) -> Summary:
    """Summarise a head table at one tau."""
    scored = heads.dropna(subset=SCORES)
    positional, symbolic = (scored[score].to_numpy(dtype=float)[None] for score in SCORES)
    early = first_half(scored["layer"].to_numpy(), int(heads["layer"].max()) + 1)
    measured = {"correlation": correlation(positional, symbolic), **depth_medians(positional, symbolic, early)}
    measured_values = {name: float(value[0]) for name, value in measured.items()}
    little = little_at_stake(scored, least_mass).fillna(False)
    permuted = "input_class" in heads
    told_apart = CLASSES if permuted else AT_ITS_LAYER
    symbolic = scored[scored["head_class"] == "symbolic"]
    known = len(scored) > 2 and not np.isnan(measured_values["correlation"])
    return Summary(
        heads=len(heads),
        missing=len(heads) - len(scored),
        correlation=measured_values["correlation"] if known else None,
        **{name: value for name, value in measured_values.items() if name.startswith(("early", "late"))},
        classes={name: int((scored["head_class"] == name).sum()) for name in told_apart},
        little_at_stake={name: int(little[scored["head_class"] == name].sum()) for name in told_apart},
        least_mass=least_mass,
        followed=int((symbolic["input_class"] == "symbolic").sum()) if permuted else None,
        untested=int(symbolic["input_class"].isna().sum()) if permuted else 0,
    )


# Figures about a whole model, with intervals, and what the null gives for the same figure.
#
# Each statistic is a function of the head scores. Its standard error comes from bootstrap resamples of the prompts, and its
# interval is Student's t with that error; what the null says about it is for `stats.verdict` to judge, over all statistics
# of one table together.


HEADS = {
    "correlation": "Pearson r of the two scores over heads",
    "early positional": "median positional score, first half of the layers",
    "late positional": "median positional score, second half",
    "early symbolic": "median symbolic score, first half of the layers",
    "late symbolic": "median symbolic score, second half",
    "positional decline": "median positional score, first half minus second",
    "symbolic rise": "median symbolic score, second half minus first",
    "share positional": "heads that are pure positional",
    "share symbolic": "heads that are pure symbolic at their own layer",
    "share uniform": "heads that are uniform",
}
CARRIED = {
    "carried of symbolic": "of the heads that are pure symbolic at their layer, those that stay with the prompt permuted"
}
PLANES = {
    "fastest plane both": "heads whose fastest plane scores high on both",
    "fast planes positional": "median positional score, planes between 1/8 and 1/2 from the fastest",
    "slow planes symbolic": "median symbolic score, slowest quarter of planes",
    "slow planes positional": "median positional score, slowest quarter of planes",
}

SIGNED = {"correlation", "positional decline", "symbolic rise"}
"""What may be negative."""
ANSWERS = [AS_IN, UNDECIDED, BEYOND, NO_VERDICT]
"""From the null that a figure is least beyond."""
SUBJECT = ["statistic", "meaning", "value", "low", "high", "error", "prompts", "little_at_stake"]
"""The columns of a statistic that no null is needed for."""
ENDS = ["value", "low", "high"]
AT_ONCE = 10_000_000
"""How many resampled scores are held in memory together."""

Figures = dict[str, np.ndarray]
"""Every statistic by name, one value per replicate."""
Found = dict[str, np.ndarray]
"""Every score by its column [replicates, rows]."""
Evaluate = Callable[[Found, np.ndarray], Figures]
"""From the scores and where each row stands."""


def of_heads(scores: Found, early: np.ndarray, gamma: float) -> Figures:
    """The statistics over heads; `early` are those in the first half of the layers."""
    p, s = (scores[score] for score in SCORES)
    codes = codes_of(scores, gamma)
    depth = {name.replace("_", " "): value for name, value in depth_medians(p, s, early).items()}
    at_their_layer = purity_codes(p, s, gamma)
    pure = ("positional", "symbolic", "uniform")
    return {
        "correlation": correlation(p, s),
        **depth,
        **{f"share {name}": (at_their_layer == CLASSES.index(name)).mean(-1) for name in pure},
        **{f"mean {name}": values.mean(-1) for name, values in scores.items() if name not in CLASSED_BY},
        "carried of symbolic": carried_of_symbolic(scores, codes),
    }


def carried_of_symbolic(scores: Found, codes: np.ndarray) -> np.ndarray:
    """Of the heads pure symbolic at their layer whose prompt-permuted score is known, the share that stays; NaN of none."""
    permuted = permuted_scores(scores)
    if permuted is None:
        return np.full(codes.shape[:-1], np.nan)
    carried = codes == CLASSES.index("carried")
    tested = carried | ((codes == CLASSES.index("symbolic")) & ~np.isnan(permuted[0]))
    count = tested.sum(-1)
    return np.divide(carried.sum(-1), count, out=np.full(count.shape, np.nan), where=count > 0)


def of_planes(scores: Found, place: np.ndarray, gamma: float) -> Figures:
    """The statistics over planes; `place` is where one stands among those of its head: 0 fastest, 1 slowest."""
    p, s = (scores[score] for score in SCORES)
    fastest, slow = place == 0, place >= 3 / 4
    uniform = purity_codes(p[:, fastest], s[:, fastest], gamma) == CLASSES.index("uniform")
    return {
        "fastest plane both": uniform.mean(-1),
        "fast planes positional": median(p[:, (place >= 1 / 8) & (place < 1 / 2)]),
        "slow planes symbolic": median(s[:, slow]),
        "slow planes positional": median(p[:, slow]),
    }


def statistics(
    tables: dict[str, pd.DataFrame], tau: float, gamma: float, least_mass: float = LEAST_MASS
) -> pd.DataFrame:
    """One row per statistic: value and interval, what the null gives, and the verdict on all of them together.

    `little_at_stake` is the part of a class's share that has less than `least_mass` of its attention on what is swapped.
    Beside several nulls a figure has the verdict of the null that it is least beyond (`null_name`), and columns for each.
    """
    null = tables.get("null_prompts", pd.DataFrame(columns=["null_name"]))
    names = sorted(null["null_name"].unique(), reverse=True)  # random, then gaussian
    if len(names) < 2:
        return _beside_null(tables, tau, gamma, least_mass)
    return least_beyond({name: _beside_null(_of_null(tables, name), tau, gamma, least_mass) for name in names})


def least_beyond(judged: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The statistics beside each null in one table: beyond the null is what lies beyond every one of them, on the same side."""
    first, *_ = judged.values()
    rows = []
    for k, statistic in enumerate(first["statistic"]):
        beside = {name: table[table["statistic"] == statistic] for name, table in judged.items()}
        beside = {name: table.iloc[0] for name, table in beside.items() if len(table)}
        strictest = min(
            beside,
            key=lambda name: (
                ANSWERS.index(beside[name]["verdict"]),
                -np.nan_to_num(beside[name]["p_value"], nan=1.0),
            ),
        )
        chosen = beside[strictest][[column for column in first if column not in SUBJECT]]
        if chosen["verdict"] == BEYOND and (reason := _not_beyond_all(beside)):
            chosen = chosen.replace([BEYOND], UNDECIDED).to_dict() | {"reason": reason}
        columns = {f"{name}_{column}": row[f"null_{column}"] for name, row in beside.items() for column in ENDS}
        columns |= {
            f"{name}_{column}": row[column] for name, row in beside.items() for column in ("p_value", "verdict")
        }
        rows.append({**first.iloc[k][SUBJECT], **chosen, "null_name": strictest, **columns})
    return pd.DataFrame(rows)


def _not_beyond_all(beside: dict[str, pd.Series]) -> str:
    """Why a figure that is beyond one null is not beyond all of them; empty where it is, on one side."""
    silent = [name for name, row in beside.items() if row["verdict"] != BEYOND]
    if silent:
        return f"no verdict against the {silent[0]} null: {beside[silent[0]]['reason']}"
    above = {row["value"] > row["null_value"] for row in beside.values()}
    return "between the two nulls" if len(above) > 1 else ""


def _of_null(tables: dict[str, pd.DataFrame], name: str) -> dict[str, pd.DataFrame]:
    """The tables with one null alone; with Gaussian keys no prompt is permuted, so classes are those at the own layer."""
    own = {k: t[t["null_name"] == name] if k.startswith("null_") else t for k, t in tables.items()}
    if name == "gaussian":
        permuted = ["covered_share", *INPUT_SCORES]
        own |= {k: own[k].drop(columns=permuted, errors="ignore") for k in ("prompts", "null_prompts")}
    return own


def _beside_null(tables: dict[str, pd.DataFrame], tau: float, gamma: float, least_mass: float) -> pd.DataFrame:
    evaluate = partial(of_heads, gamma=gamma)
    own = {f"mean {name}": f"mean of {name} over heads" for name in own_measures(tables["prompts"])}
    meanings = HEADS | (CARRIED if "covered_share" in tables["prompts"] else {}) | own
    rows = list(_rows(meanings, evaluate, tables, "prompts", INDEX, tau, _early))
    little = _little_at_stake(tables["prompts"], tau, gamma, least_mass)
    if "prompt_frequencies" in tables:
        planes = partial(of_planes, gamma=gamma)
        rows += _rows(PLANES, planes, tables, "prompt_frequencies", FREQUENCY_INDEX, tau, _place)
    table = pd.DataFrame([row.shown | {"little_at_stake": little.get(row.name)} for row in rows])
    if "null_prompts" not in tables:
        return table
    figures = [
        Figure(row.value, row.error, row.draws, least_effect=0.0 if row.name in own else LEAST_EFFECT)
        for row in rows
    ]
    beside = pd.DataFrame([asdict(verdict) for verdict in verdicts(figures)])
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
        if self.name.startswith("mean "):  # of a user's own measure
            return -np.inf, np.inf
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
            "error": self.error,
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
    locate: Where,
) -> Iterator[_Row]:
    null, shown = tables.get(f"null_{name}", pd.DataFrame()), set(tables[name]["prompt"])
    draws = [rows for _, rows in null.groupby(["null_name", "draw"])] if len(null) else []
    complete = [rows for rows in draws if shown <= set(rows["prompt"])]  # others are still being made
    beside = [_values(evaluate, draw, tau, index, locate) for draw in complete]
    values = _values(evaluate, tables[name], tau, index, locate)
    errors, inputs = _errors(evaluate, tables[name], tau, index, locate)
    for statistic, meaning in meanings.items():
        value, error = (figures.get(statistic, float("nan")) for figures in (values, errors))
        drawn = [draw.get(statistic, float("nan")) for draw in beside]
        yield _Row(statistic, meaning, value, error, inputs, drawn)


def _scored(table: pd.DataFrame, tau: float, index: list[str]) -> pd.DataFrame:
    return one_row_per_input(table[(table["tau"] == tau) & table["positional_score"].notna()], index)


def _values(
    evaluate: Evaluate, table: pd.DataFrame, tau: float, index: list[str], locate: Where
) -> dict[str, float]:
    """Every statistic on all prompts."""
    rows = _scored(table, tau, index)
    if rows.empty:
        return {}
    groups = rows.groupby(index, sort=True)[_columns(rows)].mean()
    scores = {name: groups[name].to_numpy(dtype=float)[None] for name in groups}
    figures = evaluate(scores, locate(groups.reset_index(), table))
    return {name: float(value[0]) for name, value in figures.items()}


def _columns(rows: pd.DataFrame) -> list[str]:
    return [name for name in CLASSED_BY if name in rows] + own_measures(rows)


def _errors(
    evaluate: Evaluate, table: pd.DataFrame, tau: float, index: list[str], locate: Where
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
    place = locate(rows[index].drop_duplicates().sort_values(index).reset_index(drop=True), table)[complete]
    parts = np.array_split(times, max(1, min(len(times), len(times) * complete.sum() // AT_ONCE)))
    replicates = [
        evaluate({name: resampled(scores, part) for name, scores in wide.items()}, place) for part in parts
    ]
    small = np.sqrt(inputs / (inputs - 1))  # resamples vary less than samples do
    spread = {name: np.concatenate([part[name] for part in replicates]) for name in replicates[0]}
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
    heads = rows.groupby(INDEX)[[*SCORES, "swapped_mass"]].mean()
    heads["head_class"] = purity_classes(heads[SCORES[0]], heads[SCORES[1]], gamma)
    little = little_at_stake(heads, least_mass).fillna(False)
    return {f"share {name}": float((little & (heads["head_class"] == name)).mean()) for name in AT_ITS_LAYER}


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
