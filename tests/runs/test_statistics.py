"""Figures about a whole model, by hand on made-up scores: intervals, classes, halves, planes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rotoscope.errors import RotoscopeError, RunError
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.runs.record import RunRecord
from rotoscope.scores.classes import CLASSES, pure_regions, purity_class, purity_classes, purity_codes
from rotoscope.stats.aggregate import dominant_planes, frequency_use, head_table, plane_weights, weighted_id
from rotoscope.stats.statistics import correlation, depth_medians, first_half, statistics, summarise

SETTINGS = {"tau": [1e-4], "gamma": 0.1}


def prompts(positional: np.ndarray, symbolic: np.ndarray, layers: int) -> pd.DataFrame:
    """Scores [prompts, heads] as a profile stores them, the heads spread evenly over the layers."""
    count, heads = positional.shape
    wide = heads // layers
    rows = [
        {
            "prompt": p,
            "layer": h // wide,
            "head": h % wide,
            "tau": 1e-4,
            "positional_score": positional[p, h],
            "symbolic_score": symbolic[p, h],
        }
        for p in range(count)
        for h in range(heads)
    ]
    return pd.DataFrame(rows)


def test_classes_of_many_heads_are_those_of_each() -> None:
    scores = np.linspace(0, 1, 21)
    p, s = np.meshgrid(scores, scores)
    codes = purity_codes(p, s, 0.2)
    assert codes.shape == p.shape
    for k in np.ndindex(p.shape):
        assert CLASSES[codes[k]] == purity_class(p[k], s[k], 0.2)
    assert purity_classes([0.95, np.nan, 0.5], [0.0, 0.5, np.nan]) == ["positional", None, None]
    assert purity_codes([np.nan], [1.0]).tolist() == [-1]


@pytest.mark.parametrize("gamma", [0.05, 0.3])
def test_regions_hold_what_is_pure(gamma: float) -> None:
    for name, (x, y) in pure_regions(gamma).items():
        assert purity_class(x + gamma / 2, y + gamma / 2, gamma) == name
        assert purity_class(min(x, 1 - 2 * gamma), y + gamma / 2, gamma) != name or name == "symbolic"


def test_intervals_hold_nineteen_of_twenty_resampled_means() -> None:
    """Of many prompts the mean is nearly normal: the interval reaches 1.96 standard errors either way."""
    dice = np.random.default_rng(0)
    scores = dice.uniform(0.3, 0.7, (400, 2))
    table = prompts(scores, 1 - scores, 1)
    heads = head_table(table, 0.1)
    error = scores.std(0, ddof=0) / 20
    for score, values in (("positional_score", scores), ("symbolic_score", 1 - scores)):
        np.testing.assert_allclose(
            heads[f"{score}_low"], values.mean(0) - 1.96 * error, atol=0.15 * error.max()
        )
        np.testing.assert_allclose(
            heads[f"{score}_high"], values.mean(0) + 1.96 * error, atol=0.15 * error.max()
        )
    found = statistics({"prompts": table}, 1e-4, 0.1).set_index("statistic").loc["early positional"]
    assert found["value"] == pytest.approx(scores.mean())
    spread = scores.mean(1).std() / 20
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * spread, rel=0.1)


def test_stability_is_the_share_of_resamples_that_keep_the_class() -> None:
    """Two prompts: the mean of a resample is one of the two scores (a quarter each) or their mean (half)."""
    positional = np.array([[1.0, 1.0, 0.95], [1.0, 0.84, 0.0]])
    symbolic = np.zeros((2, 3))
    heads = head_table(prompts(positional, symbolic, 1), 0.1)
    assert heads["head_class"].tolist() == ["positional", "positional", "mixed"]
    assert heads["class_stability"].tolist() == pytest.approx([1.0, 0.75, 0.75], abs=0.05)
    assert heads["stable"].tolist() == [True, False, False]
    alone = head_table(prompts(positional[:1], symbolic[:1], 1), 0.1)
    assert alone["class_stability"].isna().all()
    assert alone["stable"].isna().all()


def test_halves_of_an_odd_number_of_layers_and_their_medians() -> None:
    layers = np.repeat(np.arange(3), 2)
    early = first_half(layers, 3)
    assert early.tolist() == [True] * 4 + [False] * 2
    p, s = np.array([1.0, 0.9, 0.8, 0.7, 0.2, 0.1]), np.array([0.0, 0.1, 0.2, 0.3, 0.8, 0.7])
    found = depth_medians(p[None], s[None], early)
    assert {name: round(float(value[0]), 6) for name, value in found.items()} == {
        "early_positional": 0.85,
        "late_positional": 0.15,
        "early_symbolic": 0.15,
        "late_symbolic": 0.75,
        "positional_decline": 0.7,
        "symbolic_rise": 0.6,
    }
    whole = summarise(head_table(prompts(p[None], s[None], 3), 0.1))
    assert (whole.early_positional, whole.late_symbolic) == pytest.approx((0.85, 0.75))
    assert whole.correlation == pytest.approx(np.corrcoef(p, s)[0, 1])
    shares = statistics({"prompts": prompts(np.stack([p, p]), np.stack([s, s]), 3)}, 1e-4, 0.1)
    values = shares.set_index("statistic")["value"]
    assert values["positional decline"] == pytest.approx(0.7)
    assert values["share positional"] == pytest.approx(2 / 6)
    assert values["correlation"] == pytest.approx(whole.correlation)


def test_layers_without_a_score_still_count_as_layers() -> None:
    """The halves are those of the model, also where its last layer sees no swap."""
    p = np.array([[0.9, 0.5, 0.1, np.nan]])
    table = prompts(np.concatenate([p, p]), 1 - np.concatenate([p, p]), 4)
    values = statistics({"prompts": table}, 1e-4, 0.1).set_index("statistic")["value"]
    whole = summarise(head_table(table, 0.1))
    assert values["early positional"] == pytest.approx(0.7) == whole.early_positional
    assert values["late positional"] == pytest.approx(0.1) == whole.late_positional


def drawn(decline: float, between: float, seed: int, draw: int | None = None) -> pd.DataFrame:
    """Twelve prompts of six layers of four heads whose positional scores fall with depth, no two draws quite alike."""
    dice = np.random.default_rng(seed)
    late = 0.95 - decline + dice.normal(0, between)
    p = np.clip(np.repeat([0.95, late], 12) + dice.normal(0, 0.1, (12, 24)), 0, 1)
    table = prompts(p, 1 - p, 6)
    return table if draw is None else table.assign(null_name="random", draw=draw)


@pytest.mark.parametrize(
    ("decline", "between", "expected"),
    [(0.3, 0.02, "beyond the null"), (0.0, 0.02, "as in the null"), (0.3, 0.2, "undecided")],
)
def test_a_decline_is_seen_where_draws_of_the_null_do_not_have_it(
    decline: float, between: float, expected: str
) -> None:
    """As in SmolLM2: .95 and .65. It is not one where the draws themselves differ by as much."""
    null = pd.concat([drawn(0.0, between, 1 + draw, draw) for draw in range(19)])
    subject = drawn(decline, 0.0, 9)
    found = statistics({"prompts": subject, "null_prompts": null}, 1e-4, 0.1).set_index("statistic")
    assert found.loc["positional decline", "value"] == pytest.approx(decline, abs=0.04)
    assert found.loc["positional decline", "verdict"] == expected
    assert found["null_draws"].tolist() == [19] * 10
    half = null[(null["draw"] < 18) | (null["prompt"] < 6)]  # a draw that is still being made
    again = statistics({"prompts": subject, "null_prompts": half}, 1e-4, 0.1)
    assert again["null_draws"].tolist() == [18] * 10


def test_a_band_holds_the_next_draw_and_ends_where_scores_do() -> None:
    null = pd.concat([drawn(0.0, 0.1, 1 + draw, draw) for draw in range(5)])
    found = statistics({"prompts": drawn(0.0, 0.1, 9), "null_prompts": null}, 1e-4, 0.1).set_index("statistic")
    late = [
        statistics({"prompts": rows}, 1e-4, 0.1).set_index("statistic").loc["late symbolic", "value"]
        for _, rows in null.groupby("draw")
    ]
    row = found.loc["late symbolic"]
    assert row["null_value"] == pytest.approx(np.mean(late))
    assert row["null_high"] == pytest.approx(np.mean(late) + 2.776445 * np.std(late, ddof=1) * 1.2**0.5)
    assert row["null_low"] == 0.0


def test_no_correlation_without_variation() -> None:
    assert np.isnan(correlation(np.full((1, 4), 0.5), np.arange(4.0)[None])).all()
    assert np.isnan(correlation(np.zeros((2, 0)), np.zeros((2, 0)))).all()


def planes() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "layer": 0,
            "head": [0, 0, 0, 1, 1],
            "tau": 1e-4,
            "frequency_id": [1, 2, 3, 1, 2],
            "angle": [1.0, 0.5, 0.1, 1.0, 0.5],
            "max_logit": [1.0, 3.0, 2.0, 5.0, 4.0],
        }
    )


@pytest.mark.parametrize("scaling", [1.0, 0.25])
def test_planes_are_weighed_by_a_softmax(scaling: float) -> None:
    by = ["layer", "head"]
    weights = plane_weights(planes(), by, scaling)
    raw = np.exp(np.array([1.0, 3.0, 2.0]) / scaling)
    np.testing.assert_allclose(weights[:3], raw / raw.sum())
    ids = weighted_id(planes(), by, weights)
    assert ids[(0, 0)] == pytest.approx((raw / raw.sum()) @ [1, 2, 3])
    assert dominant_planes(planes(), by)["frequency_id"].tolist() == [2, 1]


def test_a_head_without_planes_uses_none() -> None:
    still = planes().assign(frequency_id=[0, 0, 0, 1, 2])
    assert frequency_use(still)["head"].tolist() == [1]


def test_tables_say_what_is_missing() -> None:
    run = Dynamics(RunRecord(), {"accuracy": pd.DataFrame({"x": [1]})})
    with pytest.raises(RunError, match=r"no table 'scores' \(it has: accuracy\)"):
        _ = run.scores
    with pytest.raises(AttributeError, match="put a table into"):
        run.scores = pd.DataFrame()  # type: ignore[misc]
    profile = Profile(RunRecord(settings=SETTINGS), {})
    assert profile.sinks.empty
    with pytest.raises(RotoscopeError, match="without examples=True"):
        _ = profile.traces
    assert "One row per" in (Profile.prompts.__doc__ or "")
