"""Intervals over inputs: as wide as they say on skewed scores, for every score, and never of one prompt."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import rotoscope as rs
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.runs.record import RunRecord
from rotoscope.stats.aggregate import ALL_SCORES, frequency_table, head_table
from rotoscope.stats.intervals import mean_interval, one_row_per_input, per_input
from rotoscope.stats.statistics import statistics
from rotoscope.tasks.prompt import Prompt, Prompts
from tests.runs.test_statistics import prompts
from tests.tiny_models import tiny, tokens


def test_without_skewness_it_is_the_t_interval() -> None:
    values = np.array([[0.2, 0.4], [0.5, 0.5], [0.8, 0.6]])
    low, high = mean_interval(values)
    for k in range(2):
        ends = stats.t.interval(0.95, 2, values[:, k].mean(), stats.sem(values[:, k]))
        assert (low[k], high[k]) == pytest.approx(ends)


def test_skewness_moves_the_interval_to_the_long_side() -> None:
    values = np.array([0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5])[:, None]
    [low], [high] = mean_interval(values)
    mean = values.mean()
    assert low < mean < high
    assert high - mean > 2 * (mean - low)
    [bounded], [most] = mean_interval(values, (0.0, 0.3))
    assert bounded == max(low, 0)
    assert most == 0.3


@pytest.mark.parametrize(
    "values",
    [
        [3.1, 3.0, 3.2, 3.15, 3.05, 3.1, 3.2, 1.5],
        [3.1, 3.0, 3.2, 3.15, 1.5],
        [3.0, 3.0, 3.0, 4.0],
        [0.2, 0.2, 0.9],
    ],
)
def test_one_outlier_gives_the_t_interval(values: list[float]) -> None:
    """With the correction the first interval would end at .31 above the mean and 1.55 below it."""
    [low], [high] = mean_interval(np.array(values)[:, None])
    ends = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (low, high) == pytest.approx(ends)


@pytest.mark.parametrize("count", [6, 8, 16, 32])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (9.0, 0.5),
        *(pytest.param(*shape, marks=pytest.mark.slow) for shape in [(0.5, 9.0), (2.0, 0.5), (5.0, 1.0)]),
    ],
)
def test_coverage_on_skewed_scores(count: int, a: float, b: float) -> None:
    """Of 4,000 heads whose scores lie against 0 or 1, nineteen of twenty intervals hold the true mean."""
    scores = np.random.default_rng(count).beta(a, b, (count, 4000))
    heads = head_table(prompts(scores, 1 - scores, 1), 0.1)
    true = a / (a + b)
    held = heads["positional_score_low"].le(true) & heads["positional_score_high"].ge(true)
    assert 0.91 <= held.mean() <= 0.98
    held = heads["symbolic_score_low"].le(1 - true) & heads["symbolic_score_high"].ge(1 - true)
    assert 0.91 <= held.mean() <= 0.98


def test_missing_scores_do_not_count_and_one_is_too_few() -> None:
    values = np.array([[0.1, 0.1, np.nan], [0.3, np.nan, np.nan], [0.8, np.nan, np.nan], [np.nan] * 3])
    low, high = mean_interval(values)
    alone = mean_interval(values[:3, :1])
    assert (low[0], high[0]) == pytest.approx((alone[0][0], alone[1][0]))
    assert np.isnan(low[1:]).all()
    assert np.isnan(high[1:]).all()


def variants(count: int) -> pd.DataFrame:
    dice = np.random.default_rng(0)
    table = prompts(dice.uniform(size=(count, 3)), dice.uniform(size=(count, 3)), 1)
    return table.assign(**{score: dice.uniform(size=len(table)) for score in ALL_SCORES[2:]})


def test_every_score_has_an_interval_and_the_number_of_prompts() -> None:
    table = variants(5)
    table.loc[table["prompt"] > 2, ["equal_symbol_positional_score", "equal_symbol_symbolic_score"]] = np.nan
    heads = head_table(table, 0.1)
    for score in ALL_SCORES:
        bounds = (-1 if score.startswith("centred") else 0, 1)
        expected = mean_interval(table.pivot(index="prompt", columns="head", values=score).to_numpy(), bounds)
        np.testing.assert_allclose(heads[f"{score}_low"], expected[0])
        np.testing.assert_allclose(heads[f"{score}_high"], expected[1])
        assert (heads[f"{score}_low"] < heads[score]).all()
        assert (heads[f"{score}_high"] > heads[score]).all()
    assert heads["prompts"].tolist() == [5] * 3
    assert heads["centred_prompts"].tolist() == [5] * 3
    assert heads["equal_symbol_prompts"].tolist() == [3] * 3


def test_centred_scores_may_be_negative() -> None:
    table = variants(4).assign(centred_positional_score=-0.5)
    table.loc[table["prompt"] == 0, "centred_positional_score"] = -0.9
    assert (head_table(table, 0.1)["centred_positional_score_low"] < -0.5).all()


def test_single_frequencies_have_intervals() -> None:
    found = rs.profile(tiny("llama"), tokens=tokens(4), frequencies=True, null="none", examples=False)
    for score in ("positional_score", "symbolic_score"):
        wide = found.tables["prompt_frequencies"].pivot(
            index="prompt", columns=["layer", "head", "tau", "frequency_id"], values=score
        )
        low, high = mean_interval(wide.sort_index(axis=1).to_numpy(dtype=float), (0, 1))
        np.testing.assert_allclose(found.frequencies[f"{score}_low"], low, atol=1e-6)
        np.testing.assert_allclose(found.frequencies[f"{score}_high"], high, atol=1e-6)
    assert (found.frequencies["prompts"] == 4).all()


def test_one_prompt_has_no_interval_and_says_so() -> None:
    one = rs.profile(tiny("llama"), tokens=tokens(1), frequencies=True, null="none", examples=False)
    ends = [f"{score}_{end}" for score in ALL_SCORES for end in ("low", "high") if score in one.heads]
    assert len(ends) == 16
    assert one.heads[[*ends, "class_share", "class_stability"]].isna().all(axis=None)
    assert one.frequencies[["positional_score_low", "symbolic_score_high"]].isna().all(axis=None)
    assert any(caveat.startswith("one prompt: no interval") for caveat in one.run.warnings)
    two = rs.profile(tiny("llama"), tokens=tokens(2), null="none", examples=False)
    assert not any("one prompt" in caveat for caveat in two.run.warnings)


def test_an_input_shown_five_times_is_one_sample() -> None:
    """Five copies of every prompt are no more prompts: the same means, intervals, classes and statistics."""
    dice = np.random.default_rng(0)
    once = prompts(dice.uniform(size=(6, 4)), dice.uniform(size=(6, 4)), 2)
    copies = [once.assign(input_id=once["prompt"], prompt=once["prompt"] + 6 * k) for k in range(5)]
    several = pd.concat(copies, ignore_index=True)
    pd.testing.assert_frame_equal(head_table(several, 0.1), head_table(once, 0.1))
    narrow = head_table(several.drop(columns="input_id"), 0.1)
    wide = head_table(several, 0.1)
    width = [t["positional_score_high"] - t["positional_score_low"] for t in (narrow, wide)]
    assert (width[0] < 0.6 * width[1]).all()
    found, expected = (statistics({"prompts": table}, 1e-4, 0.1) for table in (several, once))
    pd.testing.assert_frame_equal(found, expected)
    planes = once.assign(
        frequency_id=1, angle=1.0, effective_swaps=1.0, entropy=1.0, logit_norm=1.0, max_logit=1.0
    )
    both = pd.concat(
        [planes.assign(input_id=planes["prompt"], prompt=planes["prompt"] + 6 * k) for k in range(2)]
    )
    pd.testing.assert_frame_equal(frequency_table(both), frequency_table(planes))
    assert one_row_per_input(once, ["layer", "head", "tau"]) is once


def test_a_profile_notes_the_input_of_every_prompt() -> None:
    first, second = (tuple(row) for row in tokens(2).tolist())
    shown = (Prompt(first, (19,)), Prompt(second, (19,)), Prompt(first, (15,)))
    found = rs.profile(tiny("llama"), Prompts("mine", shown), null="none", examples=False)
    ids = found.prompts.drop_duplicates("prompt").set_index("prompt")["input_id"]
    assert ids.to_dict() == {0: 0, 1: 1, 2: 0}
    assert (found.heads["prompts"] == 2).all()
    rows = found.prompts.set_index(["prompt", "layer", "head"])["positional_score"].astype(float)
    expected = ((rows[0] + rows[2]) / 2 + rows[1]) / 2
    np.testing.assert_allclose(found.heads["positional_score"], expected, rtol=1e-6)
    several = rs.profile(tiny("llama"), tokens=tokens(2), queries=[10, 19], null="none", examples=False)
    assert several.queries["input_id"].tolist() == several.queries["prompt"].tolist()
    assert (several.heads["prompts"] == 2).all()  # not four queries


def test_queries_of_one_input_vary_together() -> None:
    """The mean is that over all queries; its interval is that of the inputs."""
    total, count = np.array([[3.0], [1.0], [0.0], [2.0]]), np.array([[4], [1], [0], [2]])
    found = per_input(total, count)
    assert np.nanmean(found) == pytest.approx(6 / 7)
    assert np.isnan(found[2])
    dice = np.random.default_rng(0)
    inputs = dice.uniform(size=(50, 1))
    low, high = mean_interval(per_input(9 * inputs, np.full((50, 1), 9)))  # nine equal queries each
    assert (low[0], high[0]) == pytest.approx([end[0] for end in mean_interval(inputs)])
    held = []
    for _ in range(1000):  # one to eight queries, alike within an input
        inputs, asked = dice.normal(0.5, 0.1, size=(12, 1)), dice.integers(1, 9, size=(12, 1))
        low, high = mean_interval(per_input(inputs * asked, asked))
        held.append(low[0] <= 0.5 <= high[0])
    assert 0.9 <= np.mean(held) <= 0.98


def discrepancies(copies: int) -> Lengths:
    """Heads whose discrepancy falls with the length for some inputs only; every input asked `copies` times."""
    dice = np.random.default_rng(0)
    rows = [
        {
            "model": "m",
            "task": "number",
            "layer": 0,
            "head": 0,
            "length": n,
            "discrepancy": value,
            "gap": value,
            "input_id": k,
        }
        for n in (10, 100, 1000)
        for k, value in enumerate(dice.uniform(0.5, 5.0, 12))
        for _ in range(copies)
    ]
    return Lengths(RunRecord(), {"heads": pd.DataFrame(rows)})


def test_exponents_resample_inputs_and_not_queries() -> None:
    once, often = discrepancies(1), discrepancies(9)
    widths = [run.exponents().eval("discrepancy_high - discrepancy_low").item() for run in (once, often)]
    assert widths[0] == pytest.approx(widths[1])
    every_query = often.heads.assign(input_id=range(len(often.heads)))
    narrow = Lengths(RunRecord(), {"heads": every_query}).exponents()
    assert narrow.eval("discrepancy_high - discrepancy_low").item() < 0.6 * widths[0]
    single = Lengths(RunRecord(), {"heads": once.heads.query("input_id == 0")}).exponents()
    assert single["discrepancy_low"].isna().all()


def test_decay_does_not_count_a_training_twice() -> None:
    rows = [
        {"model": model, "task": "number", "layer": 0, "head": 0, "length": n, "discrepancy": 5 * n**power,
         "gap": -1.0, "input_id": k}
        for model, power in (("early", 0.0), ("late", -2.0), ("other", -2.0), ("unknown", -2.0), ("strange", -2.0))
        for n in (10, 100, 1000)
        for k in range(4)
    ]  # fmt: skip
    classes = pd.DataFrame(
        {"model": ["early", "late", "other", "unknown", "strange"], "task": "number", "layer": 0, "head": 0,
         "head_class": "positional", "training": ["seed 0", "seed 0", "seed 1", None, None],
         "trained_steps": [100, 200, 200, 0, 0], "swapped_mass": [0.01, 0.5, 0.02, 0.5, 0.5]}
    )  # fmt: skip
    found = Lengths(RunRecord(), {"heads": pd.DataFrame(rows), "classes": classes}).decay()
    assert found[["decays", "stays", "undecided"]].to_numpy().tolist() == [[4, 0, 0]]  # two of unknown origin
    assert found["little_at_stake"].tolist() == [1]
    before = classes.drop(columns=["training", "trained_steps", "swapped_mass"])
    found = Lengths(RunRecord(), {"heads": pd.DataFrame(rows), "classes": before}).decay()
    assert found[["decays", "stays", "undecided"]].to_numpy().tolist() == [[4, 1, 0]]
    assert found["little_at_stake"].isna().all()
