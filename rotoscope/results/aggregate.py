"""From scores per prompt to scores per head: means, spread, class."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from rotoscope.maths.purity import purity_classes, purity_codes

INDEX = ["layer", "head", "tau"]

AT_TAU = [
    "positional_score",
    "symbolic_score",
    "renormalised_positional_score",
    "renormalised_symbolic_score",
    "centred_positional_score",
    "centred_symbolic_score",
    "effective_swaps",
    "renormalised_effective_swaps",
    "equal_symbol_positional_score",
    "equal_symbol_symbolic_score",
]
"""What depends on tau."""

MEASURES = [
    *AT_TAU,
    "entropy",
    "relative_entropy",
    "swapped_mass",
    "block_spread",
    "logit_variance",
    "d_pos",
    "d_sym",
]
"""Every number a head has on a prompt."""


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

SCORES = ["positional_score", "symbolic_score"]
ENDS = [f"{score}_{end}" for score in SCORES for end in ("low", "high")]
REPLICATES = 1000
STABLE = 0.95
INTERVAL = (0.025, 0.975)
"""The ends of a 95 % interval."""


def head_table(prompts: pd.DataFrame, gamma: float) -> pd.DataFrame:
    """One row per (layer, head, tau): means over prompts, spread, 95 % intervals, class and its stability.

    Prompts on which the head sees no swap do not count; a head that never sees one has no score, and
    `missing_reason` says so. `class_stability` is the share of bootstrap resamples of the prompts in which
    the head keeps its class; below 0.95 the head is marked unstable.
    """
    present = [name for name in MEASURES if name in prompts]
    groups = prompts.astype(dict.fromkeys(present, "float64")).groupby(INDEX, sort=True)
    heads = groups[present].mean()
    for score in SCORES:
        heads[f"{score}_std"] = groups[score].std(ddof=1)
    heads["prompts"] = groups["positional_score"].count()
    heads = heads.reset_index()
    heads["head_class"] = purity_classes(heads["positional_score"], heads["symbolic_score"], gamma)
    heads["missing_reason"] = None
    heads.loc[heads["prompts"] == 0, "missing_reason"] = "the query sees no block in any prompt"
    return _with_intervals(heads, prompts, gamma)


def _with_intervals(heads: pd.DataFrame, prompts: pd.DataFrame, gamma: float) -> pd.DataFrame:
    count = prompts["prompt"].nunique()
    heads[[*ENDS, "class_stability"]] = np.nan
    heads["stable"] = pd.array([pd.NA] * len(heads), dtype="boolean")
    if count < 2:
        return heads  # one prompt says nothing about the next
    drawn = {score: resampled_means(prompts, score) for score in SCORES}  # rows as in the head table
    scored = heads["prompts"] > 0
    for score, means in drawn.items():
        ends = np.nanquantile(means[:, scored], INTERVAL, axis=0)
        heads.loc[scored, [f"{score}_low", f"{score}_high"]] = ends.T
    own = purity_codes(heads["positional_score"], heads["symbolic_score"], gamma)
    resampled = purity_codes(drawn["positional_score"], drawn["symbolic_score"], gamma)
    kept = (resampled == own).mean(0)
    heads.loc[scored, "class_stability"] = kept[scored]
    heads.loc[scored, "stable"] = kept[scored] >= STABLE
    return heads


def interval(spread: np.ndarray) -> tuple[float, float]:
    """Where 95 % of resampled values lie; what is not a number does not count."""
    known = spread[~np.isnan(spread)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, INTERVAL)
    return float(low), float(high)


def resampled_means(
    prompts: pd.DataFrame, score: str, index: list[str] = INDEX, replicates: int = REPLICATES
) -> np.ndarray:
    """Bootstrap over prompts: means of a score [replicates, rows], rows ordered as the index sorts them.

    Every call draws the same resamples, so that two scores of one replicate belong together.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        wide = (
            prompts.pivot(index="prompt", columns=index, values=score).sort_index(axis=1).to_numpy(dtype=float)
        )
        count = len(wide)
        times = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=replicates)
        known = ~np.isnan(wide)
        means: np.ndarray = (times @ np.where(known, wide, 0.0)) / (times @ known)
    return means


def frequency_table(prompts: pd.DataFrame) -> pd.DataFrame:
    """One row per (layer, head, tau, frequency_id): means over prompts, and the spread of the two scores."""
    groups = prompts.astype(dict.fromkeys(FREQUENCY_MEASURES, "float64")).groupby(
        [*FREQUENCY_INDEX, "angle"], sort=True
    )
    table = groups[FREQUENCY_MEASURES].mean()
    for score in SCORES:
        table[f"{score}_std"] = groups[score].std(ddof=1)
    return table.reset_index()


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
