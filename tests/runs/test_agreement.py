"""Classes on several tasks beside shuffled labels, and variances whose sizes are known."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from rotoscope.experiments.profile.across_tasks import (
    COMPONENTS,
    class_agreement,
    shuffled_within,
    variance_components,
)

SIZES = {"head": 4.0, "task": 1.0, "head x task": 2.0, "prompt": 0.5, "rest": 1.5}


def drawn(sizes: dict[str, float], shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Scores [heads, tasks, prompts] that are sums of parts with these variances."""
    dice = np.random.default_rng(seed)
    heads, tasks, prompts = shape
    shapes = [(heads, 1, 1), (1, tasks, 1), (heads, tasks, 1), (1, tasks, prompts), (heads, tasks, prompts)]
    return sum(
        np.sqrt(sizes[name]) * dice.standard_normal(size) for name, size in zip(COMPONENTS, shapes, strict=True)
    )


def test_components_of_known_size_are_found() -> None:
    found = variance_components(drawn(SIZES, (400, 60, 20)))
    for name, size in SIZES.items():
        assert found[name] == pytest.approx(size, rel=0.25), name


def test_estimates_are_right_on_average() -> None:
    """Few tasks say little about a variance, but nothing is over- or underestimated."""
    each = pd.DataFrame([variance_components(drawn(SIZES, (12, 3, 4), seed)) for seed in range(600)])
    error = each.std() / np.sqrt(len(each))
    assert ((each.mean() - pd.Series(SIZES)).abs() <= 4 * error).all()


def test_shuffled_heads_have_no_component_of_their_own() -> None:
    scores, dice = drawn(SIZES, (300, 5, 6)), np.random.default_rng(1)
    alone = np.stack([scores[dice.permutation(300), task] for task in range(5)], axis=1)
    found = variance_components(alone)
    assert abs(found["head"]) < 0.1 * SIZES["head"]
    assert found["head x task"] == pytest.approx(SIZES["head"] + SIZES["head x task"], rel=0.2)


def test_components_against_plain_sums() -> None:
    """Mean squares by loops over cells, as textbooks write them."""
    y = drawn(SIZES, (4, 3, 5), 3)
    head = sum((y[h].mean() - y.mean()) ** 2 for h in range(4)) * 15 / 3
    both = sum(
        (y[h, t].mean() - y[h].mean() - y[:, t].mean() + y.mean()) ** 2
        for h, t in itertools.product(range(4), range(3))
    ) * 5 / 6  # fmt: skip
    prompt = sum((y[:, t, p].mean() - y[:, t].mean()) ** 2 for t in range(3) for p in range(5)) * 4 / 12
    found = variance_components(y)
    assert found["head"] == pytest.approx((head - both) / 15)
    assert found["prompt"] == pytest.approx((prompt - found["rest"]) / 4)
    with pytest.raises(ValueError, match="two heads, tasks and prompts"):
        variance_components(y[:, :1])


def labelled(**tasks: str) -> pd.DataFrame:
    """Heads of layers with five heads each, one letter a class."""
    names = {"p": "positional", "s": "symbolic", "u": "uniform", "m": "mixed", "-": None}
    rows = [
        {"task": task, "layer": k // 5, "head": k % 5, "head_class": names[letter]}
        for task, letters in tasks.items()
        for k, letter in enumerate(letters)
    ]
    return pd.DataFrame(rows)


def test_share_of_heads_with_the_same_class() -> None:
    found = class_agreement(labelled(one="pspspsmups", two="pspspsmups", three="ppppp-ssss")).set_index(
        ["task", "other_task"]
    )
    assert found.loc[("one", "two"), "share"] == 1
    assert found.loc[("one", "three"), ["heads", "agreed"]].tolist() == [9, 3 + 1]
    # layer by layer: three positional and two symbolic labels meet themselves in 13 of 25 cases, two symbolic, one each in 7 of 25
    expected = (5 * 13 / 25 + 5 * 7 / 25) / 10
    assert found.loc[("one", "two"), "null_share"] == pytest.approx(expected, abs=0.02)
    assert found.loc[("one", "two"), "p_value"] < 0.05 < found.loc[("one", "three"), "p_value"]


def test_labels_that_only_follow_the_layer_do_not_count() -> None:
    found = class_agreement(labelled(one="pppppsssss", two="pppppsssss")).iloc[0]
    assert (found["share"], found["null_share"], found["p_value"]) == (1, 1, 1)


def test_nothing_to_shuffle_is_no_null() -> None:
    found = class_agreement(labelled(one="psmpp", two="psmps").assign(layer=lambda t: t["head"])).iloc[0]
    assert found["share"] == 0.8
    assert found[["null_share", "p_value"]].isna().all()


def test_heads_are_shuffled_within_their_layer() -> None:
    layers = np.array([1, 0, 0, 1, 1, 0])
    seen = np.array([shuffled_within(layers, np.random.default_rng(seed)) for seed in range(40)])
    assert (layers[seen] == layers).all()
    assert (np.sort(seen) == np.arange(6)).all()
    assert all(set(seen[:, k]) == set(np.flatnonzero(layers == layers[k])) for k in range(6))
