"""Two runs compared: nothing is found where there is nothing, and what was changed is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rotoscope.experiments.compare import Comparison, Sample, compare, settings_that_differ
from rotoscope.runs.record import RunRecord
from rotoscope.stats.aggregate import SCORES

HEADS = 20


def noise(dice: np.random.Generator, inputs: int, prompts: str = "same", heads: int = HEADS) -> Sample:
    """Scores as heads have them, near 0 and 1 more often than between."""
    columns = pd.MultiIndex.from_product([range(heads // 4), range(4)], names=["layer", "head"])
    scores = dice.beta(0.3, 0.3, size=(2, inputs, heads))
    tables = [pd.DataFrame(one, columns=columns) for one in scores]
    return Sample(dict(zip(SCORES, tables, strict=True)), 0.1, prompts)


def moved(sample: Sample, head: tuple[int, int], by: float, prompts: str = "same") -> Sample:
    """The same run with one head's positional score changed by so much, within 0 and 1."""
    changed = sample.scores[SCORES[0]].copy()
    changed[head] = np.clip(changed[head] + by, 0, 1)
    return replace(sample, scores=sample.scores | {SCORES[0]: changed}, prompts_hash=prompts)


def found(comparison: Comparison) -> list[tuple[int, int]]:
    heads = comparison.heads[comparison.heads["differs"]]
    return list(zip(heads["layer"], heads["head"], strict=True))


def false_findings(repetitions: int, inputs: tuple[int, int], prompts: tuple[str, str]) -> tuple[float, float]:
    """How often anything is found between two draws of noise: a head that differs, and too many changes of class."""
    dice = np.random.default_rng(0)
    made = [
        compare(*(noise(dice, n, name) for n, name in zip(inputs, prompts, strict=True)))
        for _ in range(repetitions)
    ]
    changes = np.mean([one.chance_p_value < 0.05 for one in made])
    return float(np.mean([bool(found(one)) for one in made])), float(changes)


SAMPLES = [((8, 8), ("same", "same")), ((8, 8), ("one", "other")), ((6, 16), ("one", "other"))]


@pytest.mark.parametrize(("inputs", "prompts"), SAMPLES, ids=["paired", "unpaired", "unequal"])
def test_noise_is_rarely_called_a_difference(inputs: tuple[int, int], prompts: tuple[str, str]) -> None:
    heads, changes = false_findings(40, inputs, prompts)
    assert heads <= 0.05
    assert changes <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "prompts"), SAMPLES, ids=["paired", "unpaired", "unequal"])
def test_five_percent_are_five_percent(inputs: tuple[int, int], prompts: tuple[str, str]) -> None:
    from scipy.stats import binomtest

    heads, changes = false_findings(1000, inputs, prompts)
    for share in (heads, changes):
        assert binomtest(round(1000 * share), 1000, 0.05, alternative="greater").pvalue > 0.01, share


def test_a_run_does_not_differ_from_itself() -> None:
    sample = noise(np.random.default_rng(1), 8)
    same = compare(sample, sample)
    assert (found(same), same.changed, same.chance_p_value) == ([], 0, 1.0)
    assert set(same.heads["p_value"]) == {1.0}
    assert same.words()[0].startswith("0 of 20 heads changed class")
    assert "not shown to be more than chance" in same.words()[0]
    assert same.heads["alike"].all()
    assert same.words()[2] == "alike, within 0.1 in both scores: 20; undecided: 0."


@pytest.mark.parametrize("prompts", ["same", "other"])
def test_the_head_that_was_changed_is_found(prompts: str) -> None:
    dice = np.random.default_rng(2)
    first = noise(dice, 12)
    first.scores[SCORES[0]][(3, 1)] = dice.uniform(0.0, 0.1, 12)
    second = moved(first, (3, 1), 0.9, prompts)
    comparison = compare(first, second)
    assert comparison.paired is (prompts == "same")
    assert ("paired over 12 prompts" in comparison.words()[1]) is comparison.paired
    assert ("not paired: 12 and 12" in comparison.words()[1]) is not comparison.paired
    assert found(comparison) == [(3, 1)]
    assert found(compare(second, first)) == [(3, 1)]
    row = comparison.heads.set_index(["layer", "head"]).loc[(3, 1)]
    assert row["second_positional_score"] - row["first_positional_score"] == pytest.approx(0.9, abs=1e-6)


def test_pairs_see_what_samples_do_not() -> None:
    """A head whose score differs a lot from prompt to prompt, and by 0.2 between the runs on every one of them."""
    dice = np.random.default_rng(3)
    first = noise(dice, 10)
    first.scores[SCORES[0]][(0, 2)] = dice.uniform(0.0, 0.8, 10)
    assert found(compare(first, moved(first, (0, 2), 0.2))) == [(0, 2)]
    assert found(compare(first, moved(first, (0, 2), 0.2, "other"))) == []


def test_a_certain_difference_may_be_too_small() -> None:
    first = noise(np.random.default_rng(4), 10)
    first.scores[SCORES[0]][(0, 2)] = 0.5
    assert found(compare(first, moved(first, (0, 2), 0.04))) == []
    assert found(compare(first, moved(first, (0, 2), 0.5))) == [(0, 2)]


def test_what_is_neither_different_nor_alike_is_undecided() -> None:
    dice = np.random.default_rng(3)
    first = noise(dice, 10)
    first.scores[SCORES[0]][(0, 2)] = dice.uniform(0.2, 0.6, 10)
    second = moved(first, (0, 2), 0.0)
    second.scores[SCORES[0]][(0, 2)] += dice.normal(0.0, 0.3, 10)
    comparison = compare(first, second)
    assert comparison.words()[2] == "alike, within 0.1 in both scores: 19; undecided: 1."
    assert comparison.heads["differs"].sum() == 0
    samples = compare(first, moved(first, (0, 2), 0.0, "other"))
    assert samples.heads["alike"].sum() == 0  # two samples of ten prompts cannot show it


def test_too_few_prompts_are_said() -> None:
    first = noise(np.random.default_rng(5), 5)
    first.scores[SCORES[0]][(0, 0)] = 0.0
    few = compare(first, moved(first, (0, 0), 1.0))  # 32 deals, two of them as large: 6 %
    assert (found(few), few.can_tell) == ([], False)
    assert "too few to tell" in few.words()[1]
    alone = compare(*(noise(np.random.default_rng(k), 1) for k in (6, 7)))
    assert found(alone) == []
    assert alone.heads["p_value"].isna().all()
    assert "One prompt says nothing" in alone.words()[0]


def test_heads_without_scores_and_without_partners() -> None:
    dice = np.random.default_rng(8)
    first, second = noise(dice, 8), noise(dice, 8, heads=12)
    first.scores[SCORES[0]][(1, 1)] = np.nan
    comparison = compare(first, second)
    assert (len(comparison.heads), comparison.alone) == (12, 8)
    row = comparison.heads.set_index(["layer", "head"]).loc[(1, 1)]
    assert (pd.isna(row["first_class"]), bool(row["differs"])) == (True, False)
    nobody = replace(second, scores={name: table.iloc[:, :0] for name, table in second.scores.items()})
    assert compare(first, nobody).words() == [
        "The runs have no head in common.",
        "20 heads are in one of the runs only.",
    ]


def test_classes_are_those_of_what_both_measured() -> None:
    """A run whose prompt was permuted calls a head carried that the other could only call symbolic: no change."""
    first = noise(np.random.default_rng(9), 8)
    for name, value in zip(SCORES, (0.0, 1.0), strict=True):
        first.scores[name][(0, 0)] = value
    stays = {"input_positional_score": 1.0, "input_symbolic_score": 0.0, "covered_share": 1.0}
    table = first.scores[SCORES[0]]
    more = {name: pd.DataFrame(value, table.index, table.columns) for name, value in stays.items()}
    second = replace(first, scores=first.scores | more)
    assert compare(first, second).changed == 0
    assert set(compare(first, second).heads["second_class"]) <= {"symbolic", "positional", "uniform", "mixed"}
    assert "carried" in set(compare(second, second).heads["second_class"])


def test_settings_that_differ() -> None:
    one = RunRecord("profile", {"model": "m", "task": {"name": "a", "seed": 0}, "prompts_hash": "x"})
    other = RunRecord(
        "profile", {"model": "m", "task": {"name": "a", "seed": 1}, "prompts_hash": "y", "tau": 2}
    )
    assert settings_that_differ(one, other) == [("task.seed", 0, 1), ("tau", None, 2)]
