"""From scores per prompt to scores per head: means, spread, class."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.scores.classes import CLASSES, COVERED, Scores, purity_classes, purity_codes
from rotoscope.stats.intervals import mean_interval, one_row_per_input

HEAD = ["layer", "head"]
INDEX = [*HEAD, "tau"]

VARIANTS = ["", "renormalised_", "centred_", "equal_symbol_", "input_"]
SCORES = ["positional_score", "symbolic_score"]
INPUT_SCORES = [f"input_{score}" for score in SCORES]
"""The scores with the prompt itself permuted, over the swaps that were run."""
PAIRED_SCORES = [f"paired_{score}" for score in SCORES]
"""The same where every block moves together with the block before it."""
ALL_SCORES = [f"{variant}{score}" for variant in VARIANTS for score in SCORES]
"""The scores as defined, and in every variant."""

AT_TAU = [*ALL_SCORES, "effective_swaps", "renormalised_effective_swaps"]
"""What depends on tau."""

MEASURES = [
    *AT_TAU,
    "covered_share",
    *PAIRED_SCORES,
    "paired_covered_share",
    "entropy",
    "relative_entropy",
    "swapped_mass",
    "block_spread",
    "logit_variance",
    "d_pos",
    "d_sym",
]
"""Every built-in number a head has on a prompt."""
ROW_NAMES = ("null_name", "draw", "prompt", "input_id", "query_position", *INDEX)
"""What a row of scores is about."""


CLASSED_BY = [*SCORES, *INPUT_SCORES, "covered_share"]
"""What a head's class rests on."""

FREQUENCY_INDEX = [*INDEX, "frequency_id"]
FREQUENCY_MEASURES = [
    "positional_score",
    "symbolic_score",
    "effective_swaps",
    "entropy",
    "logit_norm",
    "max_logit",
]
"""Every number a plane of a head has on a prompt."""

ENDS = [f"{score}_{end}" for score in SCORES for end in ("low", "high")]
REPLICATES = 1000
STABLE = 0.95
AGREED = 0.5
"""The share of prompts on which a head must have its class for the class to be called its own."""
COVERED_PROMPTS = 2
"""A prompt-permuted score takes so many prompts whose swaps hold half of the head's weight; one where there is only one."""
LEAST_MASS = 0.05
"""With less attention than this on what is swapped, little is at stake."""


def measure_columns(rows: pd.DataFrame) -> list[str]:
    """The columns with numbers of heads: built-in measures in their order, then a user's own."""
    return [name for name in MEASURES if name in rows] + own_measures(rows)


def own_measures(rows: pd.DataFrame) -> list[str]:
    """The columns that come from a user's own measures."""
    names = [str(name) for name in rows if name not in MEASURES and name not in ROW_NAMES]
    return [name for name in names if pd.api.types.is_float_dtype(rows[name])]


def head_table(prompts: pd.DataFrame, gamma: float, least_mass: float = LEAST_MASS) -> pd.DataFrame:
    """One row per (layer, head, tau): means over prompts, spread, 95 % intervals, class and what it rests on.

    Prompts on which the head sees no swap do not count; a head that never sees one has no score, and
    `missing_reason` says so. `class_share` is the share of prompts on which the head has its class,
    `class_stability` the share of resamples of the prompts in which it keeps it: in the mean, and on at least
    half of the prompts; below 0.95 the head is marked unstable. One prompt tells neither, and has no interval.
    `little_at_stake` marks heads with less than `least_mass` of their attention on what is swapped.

    Where the prompt itself was permuted, too, a head may be carried, and `input_class` is its class by those scores. They
    come from `covered_prompts` prompts, those on which the swaps hold at least half of the head's weight; `covered_share`
    is the share they hold on all prompts. `carried_by` says whether a carried head follows its place or the block before (see `carried_by`).
    """
    wide = WideScores(one_row_per_input(prompts, INDEX), INDEX)
    present = measure_columns(prompts)
    columns = {name: wide.mean(name) for name in present}
    columns |= {f"{score}_std": wide.deviation(score) for score in SCORES}
    columns["prompts"] = wide.count("positional_score")
    for variant in ("centred", "equal_symbol"):  # which not every prompt has
        if f"{variant}_positional_score" in present:
            columns[f"{variant}_prompts"] = wide.count(f"{variant}_positional_score")
    for score in ALL_SCORES:
        if score in present:
            columns[f"{score}_low"], columns[f"{score}_high"] = wide.interval(score)
    heads = wide.rows.assign(**columns)
    permuted = permuted_scores({name: heads[name] for name in present})
    heads["head_class"] = purity_classes(heads["positional_score"], heads["symbolic_score"], gamma, permuted)
    if permuted is not None:
        heads["input_class"] = purity_classes(*permuted, gamma)
        heads["covered_share"] = heads["covered_share"].fillna(0.0)
        heads["covered_prompts"] = wide.count(INPUT_SCORES[0])
        heads["carried_by"] = carried_by(heads, gamma)
    heads["missing_reason"] = None
    heads.loc[heads["prompts"] == 0, "missing_reason"] = "the query sees no block in any prompt"
    heads["little_at_stake"] = little_at_stake(heads, least_mass)
    return _with_agreement(heads, wide, gamma)


def permuted_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Of rows at several depths those of the permuted prompt, under the names a profile has for them."""
    elsewhere = {"own", "depth", "swapped_mass", "block_spread"}
    permuted = rows.loc[~rows["own"] & (rows["depth"] == 0), [name for name in rows if name not in elsewhere]]
    return permuted.rename(columns=dict(zip(SCORES, INPUT_SCORES, strict=True)))


def unpermuted(prompts: pd.DataFrame) -> pd.DataFrame:
    """Scores per prompt of heads for none of which the prompt was permuted, since none could be carried."""
    return prompts.assign(**dict.fromkeys(INPUT_SCORES, np.nan), covered_share=0.0)


def with_permuted(
    prompts: pd.DataFrame, permuted: pd.DataFrame | None, paired: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Scores per prompt with those of the permuted prompt beside them, where the swaps say enough about the head.

    `paired` are the scores with every block moved together with the block before it.
    """
    if permuted is None:
        return prompts
    keys = [name for name in ("null_name", "draw", "prompt", *INDEX) if name in prompts]
    count = prompts["prompt"].nunique()
    tables = {"": (permuted, INPUT_SCORES), "paired_": (paired, PAIRED_SCORES)}
    for prefix, (rows, scores) in tables.items():
        if rows is None:
            continue
        beside = rows[[*keys, *INPUT_SCORES, "covered_share"]].copy()
        names = [*scores, f"{prefix}covered_share"]
        beside.columns = pd.Index([*keys, *names])
        by_head = [name for name in keys if name != "prompt"]
        beside[scores] = beside[scores].where(covered_rows(beside, names[-1], by_head, count))
        prompts = prompts.merge(beside, on=keys, how="left")
    return prompts


def covered_rows(rows: pd.DataFrame, share: str, by_head: list[str], prompts: int) -> pd.Series:
    """Which scores per prompt count: those on whose prompt the swaps hold at least half of the head's weight (`share`).

    None of a head that is left with fewer than two prompts, if there are two.
    """
    covered = rows[share] >= COVERED
    counts = covered.groupby([rows[name] for name in by_head]).transform("sum")
    return covered & (counts >= min(COVERED_PROMPTS, prompts))


def carried_by(heads: pd.DataFrame, gamma: float) -> pd.Series:
    """Of every carried head what it follows: "place", "context" (the block before), or None where nobody asked or neither.

    It is its place where the head still stays, pure positional, when every block moves with the block before it; context
    where the head then follows more than it stays.
    """
    follows = pd.Series(None, index=heads.index, dtype=object)
    if PAIRED_SCORES[0] not in heads:
        return follows
    positional, symbolic = (heads[score] for score in PAIRED_SCORES)
    carried = heads["head_class"] == "carried"
    follows[carried & (positional < symbolic)] = "context"
    stays = purity_codes(positional, symbolic, gamma) == CLASSES.index("positional")
    follows[carried & stays] = "place"
    return follows


def permuted_scores(scores: Mapping[str, Any]) -> Scores | None:
    """The scores with the prompt itself permuted, where the swaps run say enough; None where none were run."""
    if "covered_share" not in scores:
        return None
    positional, symbolic = (np.asarray(scores[score], dtype=float) for score in INPUT_SCORES)
    return positional, symbolic


def little_at_stake(heads: pd.DataFrame, least_mass: float = LEAST_MASS) -> pd.Series:
    """Which heads with a class look so little at what is swapped that it says next to nothing about them."""
    little = pd.Series(pd.NA, index=heads.index, dtype="boolean")
    if "swapped_mass" in heads:
        known = heads["head_class"].notna() & heads["swapped_mass"].notna()
        little[known] = (heads["swapped_mass"] < least_mass)[known]
    return little


class WideScores:
    """Scores as arrays [prompts, rows], rows ordered as the index sorts them; NaN where a prompt has no such row."""

    def __init__(self, prompts: pd.DataFrame, index: list[str]) -> None:
        self.prompts = prompts
        self.rows = prompts[index].drop_duplicates().sort_values(index, ignore_index=True)
        self.inputs, self._prompt = np.unique(prompts["prompt"].to_numpy(), return_inverse=True)
        self._row = prompts.groupby(index, sort=True).ngroup().to_numpy()

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        return {}

    def __contains__(self, name: str) -> bool:
        return name in self.prompts

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            array = np.full((len(self.inputs), len(self.rows)), np.nan)
            array[self._prompt, self._row] = self.prompts[name].to_numpy(dtype=float)
            self._arrays[name] = array
        return self._arrays[name]

    def count(self, name: str) -> np.ndarray:
        """On how many prompts each row has a value."""
        return np.asarray((~np.isnan(self[name])).sum(0))

    def mean(self, name: str) -> np.ndarray:
        """Over the prompts with a value; NaN where there is none."""
        count = self.count(name)
        total = np.where(np.isnan(self[name]), 0.0, self[name]).sum(0)
        return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)

    def deviation(self, name: str) -> np.ndarray:
        """The standard deviation over prompts; NaN with fewer than two."""
        count, apart = self.count(name), self[name] - self.mean(name)
        squares = np.where(np.isnan(apart), 0.0, apart**2).sum(0)
        return np.sqrt(np.divide(squares, count - 1, out=np.full(len(count), np.nan), where=count > 1))

    def interval(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The 95 % interval of a score's mean over prompts."""
        return mean_interval(self[name], (-1.0 if name.startswith("centred") else 0.0, 1.0))


def score_interval(prompts: pd.DataFrame, score: str, index: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of a score's mean over prompts, for rows ordered as the index sorts them."""
    return WideScores(prompts, index).interval(score)


def wide_scores(prompts: pd.DataFrame, score: str, index: list[str]) -> np.ndarray:
    """[prompts, rows], rows ordered as the index sorts them."""
    return WideScores(prompts, index)[score]


def _with_agreement(heads: pd.DataFrame, wide: WideScores, gamma: float) -> pd.DataFrame:
    """On how many prompts a head has its class, and how often it keeps it when they are resampled."""
    heads[["class_share", "class_stability"]] = np.nan
    heads["stable"] = pd.array([pd.NA] * len(heads), dtype="boolean")
    if len(wide.inputs) < 2:
        return heads  # one prompt says nothing about the next
    scored = heads["prompts"] > 1
    scores = {name: wide[name] for name in CLASSED_BY if name in wide}
    own = codes_of({name: heads[name] for name in scores}, gamma)
    known = ~np.isnan(scores["positional_score"])
    alike = (codes_of(scores, gamma) == own) & known
    heads.loc[scored, "class_share"] = (alike.sum(0) / np.maximum(known.sum(0), 1))[scored]
    times = resamples(len(known))
    drawn = {name: resampled(values, times) for name, values in scores.items()}
    kept = (codes_of(drawn, gamma) == own) & (times @ alike >= AGREED * (times @ known))
    stability = kept.mean(0)
    heads.loc[scored, "class_stability"] = stability[scored]
    heads.loc[scored, "stable"] = stability[scored] >= STABLE
    return heads


def codes_of(scores: Mapping[str, Any], gamma: float) -> np.ndarray:
    """The class codes of heads from all scores that a class rests on."""
    return purity_codes(scores["positional_score"], scores["symbolic_score"], gamma, permuted_scores(scores))


def resamples(count: int, replicates: int = REPLICATES) -> np.ndarray:
    """How often each of so many prompts is drawn [replicates, prompts]; the same every time."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=replicates).astype(float)


def resampled(wide: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Means of scores [prompts, rows] over every resample [replicates, rows]; NaN where none of a row's prompts is drawn."""
    known = ~np.isnan(wide)
    drawn = times @ known
    return np.divide(
        times @ np.where(known, wide, 0.0), drawn, out=np.full(drawn.shape, np.nan), where=drawn > 0
    )


def frequency_table(prompts: pd.DataFrame) -> pd.DataFrame:
    """One row per (layer, head, tau, frequency_id): means over prompts; of the two scores also spread and interval."""
    index = [*FREQUENCY_INDEX, "angle"]
    wide = WideScores(one_row_per_input(prompts, index), index)
    columns = {name: wide.mean(name) for name in FREQUENCY_MEASURES}
    for score in SCORES:
        columns[f"{score}_std"] = wide.deviation(score)
        columns[f"{score}_low"], columns[f"{score}_high"] = wide.interval(score)
    columns["prompts"] = wide.count("positional_score")
    return wide.rows.assign(**columns)


def plane_weights(planes: pd.DataFrame, by: list[str], scaling: float = 1.0) -> pd.Series:
    """How much each head uses each plane: the softmax over its planes of their largest logit over keys.

    `scaling` is what the logits were multiplied by; divided by it they are plain products of query and key.
    """
    above = planes["max_logit"] - planes.groupby(by)["max_logit"].transform("max")
    raw = np.exp(above / scaling)
    weights: pd.Series = raw / raw.groupby([planes[name] for name in by]).transform("sum")
    return weights


def weighted_id(planes: pd.DataFrame, by: list[str], weights: pd.Series) -> pd.Series:
    """The weighted-average frequency id of every head."""
    return (weights * planes["frequency_id"]).groupby([planes[name] for name in by]).sum()


def dominant_planes(planes: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Of every head the plane with the largest logit, indexed by the head."""
    return planes.loc[planes.groupby(by)["max_logit"].idxmax()].set_index(by)


def frequency_use(frequencies: pd.DataFrame) -> pd.DataFrame:
    """Which frequencies a head uses: weighted-average and dominant id, one row per (layer, head, tau).

    Weights are the softmax over planes of the plane's largest logit, averaged over prompts (what fits P2's
    Table 1). The un-rotated remainder has no frequency and does not take part; a head without planes has no
    row.
    """
    planes = frequencies[(frequencies["frequency_id"] > 0) & frequencies["max_logit"].notna()]
    used = {
        "weighted_frequency_id": weighted_id(planes, INDEX, plane_weights(planes, INDEX)),
        "dominant_frequency_id": dominant_planes(planes, INDEX)["frequency_id"],
    }
    return pd.DataFrame(used).rename_axis(INDEX).reset_index()
