"""95 % intervals of means over few prompts.

A percentile bootstrap of a few prompts is too narrow, and a plain t-interval is when scores are skewed, as they are near
0 and 1. Hall's transformation of Student's t takes the skewness of the sample into account (P. Hall, *On the removal of
skewness by transformation*, 1992): with T = (mean - mu) / (s / sqrt n) and k = skewness / sqrt n,

    g(T) = T + k T^2 / 3 + k^2 T^3 / 27 + k / 6

is compared with the quantiles of Student's t with n - 1 degrees of freedom. Without skewness this is the t-interval, and where
k is large, as one outlier among few prompts makes it, the t-interval is taken, too: the cubic would end next to the mean. The
sample is the input: queries of one input, and prompts with the same tokens, are averaged first.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

INTERVAL = (0.025, 0.975)
"""The ends of a 95 % interval."""
LARGE_SKEWNESS, NEARLY_ALL = 0.7, 0.95
"""Of k = skewness / sqrt n, and of the most that k can be with n values, which one outlier has: 0.80 with eight, 0.58 with four."""


def mean_interval(
    values: np.ndarray, bounds: tuple[float, float] = (-np.inf, np.inf)
) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the interval of the mean over the first axis, inside the bounds of what a value can be.

    What is not a number does not count; one value alone has no interval: NaN.
    """
    from scipy.special import stdtrit  # t quantiles; not needed to ask a command for help

    known = ~np.isnan(values)
    count = known.sum(0)
    several = count > 1
    n = np.where(several, count, 2)
    mean = np.where(known, values, 0.0).sum(0) / n
    apart = np.where(known, values - mean, 0.0)
    spread = np.sqrt((apart**2).sum(0) / n)
    cubes = (apart**3).sum(0) / n
    skewness = np.divide(cubes, spread**3, out=np.zeros_like(mean), where=spread > 1e-12)
    k = skewness / np.sqrt(n)
    most = (n - 2) / np.sqrt(n * (n - 1))
    k = np.where(np.abs(k) > np.minimum(LARGE_SKEWNESS, NEARLY_ALL * most), 0.0, k)
    error = spread / np.sqrt(n - 1)
    ends = [mean - error * _untransformed(stdtrit(n - 1, q), k) for q in INTERVAL[::-1]]
    low, high = (np.where(several, np.clip(end, *bounds), np.nan) for end in ends)
    return low, high


def _untransformed(y: np.ndarray, k: np.ndarray) -> np.ndarray:
    """The T with g(T) = y: exact, since g is a cube."""
    skewed = np.where(np.abs(k) < 1e-6, 1.0, k)
    ends: np.ndarray = np.where(np.abs(k) < 1e-6, y, 3 * (np.cbrt(1 + skewed * (y - skewed / 6)) - 1) / skewed)
    return ends


def per_input(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """One value per input (first axis) from the sum and the number of its queries: their mean is that over all queries.

    An input with many queries weighs more, and queries of one input vary together: what an input adds to the mean over
    all queries is the sample whose spread says how sure that mean is. Inputs without a query are NaN.
    """
    has_queries = count > 0
    mean = total.sum(0) / np.maximum(count.sum(0), 1)
    weight = has_queries.sum(0) / np.maximum(count.sum(0), 1)
    samples: np.ndarray = np.where(has_queries, mean + (total - count * mean) * weight, np.nan)
    return samples


def one_row_per_input(prompts: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    """Rows of prompts that show the same tokens averaged, so that every input is one sample."""
    if "input_id" not in prompts:
        return prompts
    first = prompts.drop_duplicates("prompt")
    if first["input_id"].is_unique:
        return prompts
    keys = ["input_id", *index]
    numbers = prompts.drop(columns=["prompt", *keys]).select_dtypes("number").columns
    means = prompts.groupby(keys, sort=True)[list(numbers)].mean().reset_index()
    return means.assign(prompt=means["input_id"])
