"""A class needs agreement over prompts and attention on what is swapped; both stand beside it."""

from __future__ import annotations

import numpy as np
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.profile.notebook import profile_html
from rotoscope.report.page import run_payload
from rotoscope.stats.aggregate import head_table
from rotoscope.stats.statistics import summarise
from tests.runs.test_statistics import prompts
from tests.tiny_models import tiny, tokens


def test_a_head_that_alternates_is_not_a_stable_mixed_head() -> None:
    """(1, 0) on every second prompt, (0, 1) on the others: mixed in the mean and on no prompt."""
    p = np.tile([[1.0, 0.5, 1.0], [0.0, 0.5, 1.0]], (8, 1))
    s = np.tile([[0.0, 0.5, 0.0], [1.0, 0.5, 0.0]], (8, 1))
    heads = head_table(prompts(p, s, 1), 0.1)
    assert heads["head_class"].tolist() == ["mixed", "mixed", "positional"]
    assert heads["class_share"].tolist() == [0.0, 1.0, 1.0]
    assert heads["class_stability"].tolist() == [0.0, 1.0, 1.0]
    assert heads["stable"].tolist() == [False, True, True]


def test_the_share_is_that_of_prompts_with_a_score() -> None:
    p = np.array([[1.0, 1.0], [1.0, np.nan], [0.7, 1.0], [1.0, np.nan], [1.0, np.nan]])
    heads = head_table(prompts(p, np.where(np.isnan(p), np.nan, 0.0), 1), 0.1)
    assert heads["head_class"].tolist() == ["positional", "positional"]
    assert heads["class_share"].tolist() == pytest.approx([0.8, 1.0])
    seen_once = head_table(prompts(p[:2, 1:], np.where(np.isnan(p[:2, 1:]), np.nan, 0.0), 1), 0.1)
    assert seen_once["class_share"].isna().all()  # one prompt says nothing about the next


def staked(least_mass: float = 0.05) -> rs.stats.Summary:
    """Two positional heads, one of them looking elsewhere, a symbolic one at the border, and one without a score."""
    p, s = np.array([[1.0, 1.0, 0.0, np.nan]] * 2), np.array([[0.0, 0.0, 1.0, np.nan]] * 2)
    table = prompts(p, s, 1)
    table["swapped_mass"] = table["head"].map({0: 0.9, 1: 0.049, 2: 0.05, 3: 0.0})
    heads = head_table(table, 0.1, least_mass)
    assert heads["little_at_stake"].isna().tolist() == [False, False, False, True]
    return summarise(heads, least_mass)


def test_heads_with_little_at_stake_are_counted_by_class() -> None:
    found = staked()
    assert found.classes == {"positional": 2, "symbolic": 1, "uniform": 0, "mixed": 0}
    assert found.little_at_stake == {"positional": 1, "symbolic": 0, "uniform": 0, "mixed": 0}
    assert found.counted["positional"] == "2 positional (1)"
    assert "under 5% of their attention" in found.stake_words
    more = staked(0.1)
    assert more.little_at_stake == {"positional": 1, "symbolic": 1, "uniform": 0, "mixed": 0}
    assert "under 10%" in more.stake_words
    assert sum(staked(0.0).little_at_stake.values()) == 0


@pytest.fixture(scope="module")
def found() -> rs.Profile:
    """A least mass between the heads' own, so that some are marked and some are not."""
    model, ids = tiny("llama"), tokens(3)
    blocks = [(2, 4), (4, 6), (6, 8)]
    plain = rs.profile(model, tokens=ids, blocks=blocks, null="none", examples=False)
    middle = float(plain.heads["swapped_mass"].median())
    return rs.profile(model, tokens=ids, blocks=blocks, null="none", examples=False, least_mass=middle)


def test_every_count_of_classes_says_how_many(found: rs.Profile, tmp_path) -> None:
    heads, summary = found.at(), found.summary()
    assert found.run.settings["least_mass"] == found.least_mass
    little = heads["swapped_mass"] < found.least_mass
    assert heads["little_at_stake"].tolist() == little.tolist()
    assert 0 < little.sum() < len(heads)
    for name, number in summary.little_at_stake.items():
        assert number == (little & (heads["head_class"] == name)).sum()
    counted = next(words for name, words in summary.counted.items() if summary.little_at_stake[name])
    for text in (repr(found), profile_html(found)):
        assert counted in text
        assert "little at stake" in text
    shares = found.statistics().set_index("statistic")["little_at_stake"]
    for name in ("positional", "symbolic", "uniform"):
        assert shares[f"share {name}"] == pytest.approx(summary.little_at_stake[name] / summary.heads)
    assert shares.drop([f"share {name}" for name in ("positional", "symbolic", "uniform")]).isna().all()
    found.save(tmp_path / "run")
    tab = run_payload(tmp_path / "run")["tabs"]["overview"]
    assert tab["least_mass"] == found.least_mass
    assert tab["at"][0]["little_at_stake"] == little.tolist()
    assert tab["at"][0]["class_share"] == pytest.approx(heads["class_share"].tolist(), abs=1e-3)
    assert rs.open(tmp_path / "run").summary() == summary


def test_a_least_mass_is_a_share() -> None:
    for wrong in (-0.1, 1.5):
        with pytest.raises(RotoscopeError, match="least_mass must be at .*a share of attention"):
            rs.profile(tiny("llama"), tokens=tokens(1), least_mass=wrong)
