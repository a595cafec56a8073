"""A class has a consequence: its heads silenced beside random heads of the same layers."""

from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.tasks.prompt import Prompt, Prompts
from tests.experiments.test_gating import small as small
from tests.experiments.test_known import constructed
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

HEADS = 20
"""Nineteen others, as many as a verdict takes."""


@pytest.fixture(scope="module")
def repeated() -> Prompts:
    """Seven words after symbol 0, and six of them again; asked in the second copy."""
    dice, items = random.Random(0), []
    for _ in range(4):
        once = dice.sample(range(1, 16), 7)
        asked = (9, 11, 13)
        blocks = rs.Blocks.of([(k, k + 1) for k in range(1, 8)], 13)
        items.append(Prompt((0, *once, *once[:-1]), asked, tuple(once[q - 7] for q in asked), blocks))
    return Prompts("repeats", tuple(items), {"seed": 0})


@pytest.mark.parametrize(("head_class", "silenced"), [("positional", [(0, 0)]), ("symbolic", [(1, 0), (1, 1)])])
def test_classes_that_do_the_task(head_class: str, silenced: list[tuple[int, int]], repeated: Prompts) -> None:
    """Induction is symbolic and takes its keys from a previous-token head, which is positional: without either, nothing."""
    subject = rs.load(constructed(HEADS))
    found = rs.gate(subject, repeated, heads_of_class=head_class, scores=False, seed=85)
    assert found.conditions["gated_heads"].max() == len(silenced)
    others = HEADS - 1 if len(silenced) == 1 else 20
    assert sorted(found.conditions["draw"].unique()) == list(range(-1, others))
    effects = found.effects.set_index(["source", "measure"]).loc["task"]
    assert effects.loc["accuracy", "effect"] < -0.8
    assert effects.loc["loss", "effect"] > 1
    assert abs(effects.loc["loss", "null_value"]) < 0.01
    assert set(effects["verdict"]) == {"beyond the null"}
    listed = rs.gate(subject, repeated, silence=True, heads=silenced, scores=False, controls=0)
    by_class, by_name = (run.conditions.query("draw == -1")["loss"].tolist() for run in (found, listed))
    assert by_class == by_name
    assert set(listed.effects["verdict"]) == {"no verdict"}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_class_of_a_random_model_does_nothing_more_than_others(seed: int) -> None:
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 2}
    subject = rs.load((tiny("llama", seed=seed, sharp=8.0, **sizes), word_tokenizer()))
    prompts = rs.tasks.repeats(subject, 6, 4)
    profile = rs.profile(subject, prompts, null="none", examples=False, gamma=0.2)
    effects = rs.gate(subject, prompts, classes=profile, heads_of_class="symbolic", scores=False).effects
    assert (len(effects), set(effects["null_draws"])) == (4, {20})
    assert "beyond the null" not in set(effects["verdict"])


def test_effects_are_paired_over_prompts(small) -> None:
    found = rs.gate(*small, silence=True, heads="1:2", controls=2, scores=False)
    rows = found.conditions.set_index(["condition", "source", "draw", "prompt"])["loss"].sort_index()
    for row in found.effects.query("measure == 'loss'").to_dict("records"):
        before = rows["nothing gated", row["source"], -1].to_numpy()
        after = [rows["silence listed", row["source"], draw].to_numpy() for draw in (-1, 0, 1)]
        assert row["effect"] == pytest.approx((after[0] - before).mean())
        assert row["null_value"] == pytest.approx(np.mean([(draw - before).mean() for draw in after[1:]]))
    assert len(rs.gate(*small, bands=2, groups=("all",), controls=1).effects) == 5 * 2 * 2


def test_what_a_class_needs(small) -> None:
    subject, prompts = small
    profile = rs.profile(subject, prompts, null="none", examples=False)
    with pytest.raises(RotoscopeError, match="prompts themselves were swapped"):
        rs.gate(subject, prompts, classes=profile, heads_of_class="carried")
    absent = ({"positional", "symbolic", "uniform", "mixed"} - set(profile.heads["head_class"])).pop()
    with pytest.raises(RotoscopeError, match=f"no head of class '{absent}'; the classes of this model are"):
        rs.gate(subject, prompts, classes=profile, heads_of_class=absent)
    for other in ({"keep": "1"}, {"silence": True}, {"heads": "0:1"}):
        with pytest.raises(RotoscopeError, match="silences whole heads"):
            rs.gate(subject, prompts, heads_of_class="mixed", **other)


def test_carried_heads_are_those_the_profile_calls_so(small) -> None:
    subject, prompts = small
    profile = rs.profile(subject, prompts, null="none", examples=False)
    profile.heads["input_positional_score"] = 1.0
    profile.heads["head_class"] = ["carried", *["mixed"] * 11]
    found = rs.gate(subject, prompts, classes=profile, heads_of_class="carried", scores=False, controls=1)
    expected = rs.gate(subject, prompts, silence=True, heads="0:0", scores=False, controls=0)
    losses = [run.conditions.query("draw == -1")["loss"] for run in (found, expected)]
    pd.testing.assert_series_equal(*(loss.reset_index(drop=True) for loss in losses))
