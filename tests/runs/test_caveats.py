"""What a reader must know: found in the tables, and said once."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.experiments.profile.notebook import profile_html
from rotoscope.experiments.profile.screen import NO_NULL, caveats, with_missing_caveats
from tests.swap_depths import as_profile, swap_depths
from tests.tiny_models import tiny, tokens


@pytest.fixture(scope="module")
def plain() -> rs.Profile:
    return rs.profile(tiny("llama"), tokens=tokens(3, 14), null="none")


def without(profile: rs.Profile, **columns: object) -> rs.Profile:
    """The same profile with other values in its prompts."""
    return rs.Profile(profile.run, {**profile.tables, "prompts": profile.prompts.assign(**columns)})


def test_a_run_notes_its_caveats_once(plain: rs.Profile) -> None:
    assert plain.run.warnings == caveats(plain) == plain.caveats()
    assert plain.run.warnings.count(NO_NULL) == 1
    assert profile_html(plain).count("no null") == 1
    beside = rs.profile(tiny("llama"), tokens=tokens(3, 14), null="random", null_draws=1)
    assert NO_NULL not in beside.run.warnings


def test_each_caveat_has_its_cause(plain: rs.Profile) -> None:
    fails = pd.DataFrame({"correct": [True, False, False, False]})
    asked = rs.Profile(plain.run, {**plain.tables, "answers": fails})
    assert any("answers 25% of these prompts" in text for text in caveats(asked))
    assert any("puts 10% of its attention" in text for text in caveats(without(plain, swapped_mass=0.1)))
    assert not any("of its attention on" in text for text in caveats(without(plain, swapped_mass=0.5)))
    assert any("fewer than two swaps" in text for text in caveats(without(plain, effective_swaps=1.0)))
    assert not any("fewer than two" in text for text in caveats(without(plain, effective_swaps=9.0)))


@pytest.mark.parametrize(
    ("right", "chance", "said"),
    [
        (
            6,
            0.5,
            "answers 60% of these prompts (chance 50%): its heads are profiled on a task at which it is little",
        ),
        (3, 0.1, "answers 30% of these prompts (chance 10%): its heads are profiled on a task it mostly fails"),
        (3, None, "answers 30% of these prompts: its heads are profiled on a task it mostly fails"),
        (6, 0.1, None),
        (8, 0.5, None),
        (10, 1.0, None),
    ],
)
def test_accuracy_is_held_against_chance(
    plain: rs.Profile, right: int, chance: float | None, said: str | None
) -> None:
    answers = pd.DataFrame({"correct": [k < right for k in range(10)]})
    run = replace(plain.run, settings=plain.run.settings | {"chance": chance})
    found = [
        text for text in caveats(rs.Profile(run, {**plain.tables, "answers": answers})) if "answers" in text
    ]
    assert [text.startswith(f"the model {said}") for text in found] == [True] * (said is not None)


def test_symbolic_heads_may_follow_a_place_where_the_prompt_was_not_permuted() -> None:
    """Not said where it was permuted, of heads that are not symbolic, nor of layer 0, below which nobody writes."""
    asked = "not asked: do symbolic heads follow the word in the prompt?   "
    assert f"{asked}--input-swaps 64" in caveats(as_profile(permuted=False))
    assert "not asked" not in " ".join(caveats(as_profile(permuted=True)))
    nobody = without(as_profile(permuted=False), positional_score=1.0)
    assert "not asked" not in " ".join(caveats(nobody))
    assert f"{asked}--at 0" in swap_depths(depths=(1,)).caveats()
    assert not any("not asked" in text for text in swap_depths().caveats())


def test_heads_that_change_class_are_counted(plain: rs.Profile) -> None:
    wobbling = without(plain, positional_score=(plain.prompts["prompt"] < 2) * 1.0, symbolic_score=0.0)
    assert "12 of 12 heads change class" in " ".join(caveats(wobbling))
    steady = without(plain, positional_score=1.0, symbolic_score=0.0)
    assert not any("change class" in text for text in caveats(steady))


@pytest.mark.parametrize(
    ("position", "inside", "advice"), [(1, True, "--prefix chat"), (9, True, "leave such a word")]
)
def test_sinks(plain: rs.Profile, position: int, inside: bool, advice: str) -> None:
    sink = {
        "prompt": 0,
        "position": position,
        "token_text": "x",
        "attention_mass": 0.5,
        "largest_layer_mass": 0.9,
    }
    found = caveats(
        rs.Profile(plain.run, {**plain.tables, "sinks": pd.DataFrame([sink | {"in_block": inside}])})
    )
    assert any(f"position {position} ('x') draws 50%" in text and advice in text for text in found)
    own = replace(plain.run, settings=plain.run.settings | {"task": "letter"})
    found = caveats(rs.Profile(own, {**plain.tables, "sinks": pd.DataFrame([sink | {"in_block": inside}])}))
    assert any(
        "decides the scores" in text and advice not in text for text in found
    )  # nothing of that can be changed
    outside = pd.DataFrame([sink | {"in_block": False}])
    found = caveats(rs.Profile(plain.run, {**plain.tables, "sinks": outside}))
    assert any("outside the blocks" in text for text in found)


def test_caveats_of_unfinished_runs_are_completed() -> None:
    """A run that is being written has noted none yet."""
    heads = pd.DataFrame({"stable": [True, False, None]})
    changing = (
        "1 of 3 heads change class when the prompts are resampled, or have it on fewer than half of them: "
        "more prompts, or a wider gamma"
    )
    assert with_missing_caveats(["old"], None, heads) == [
        NO_NULL,
        "old",
        changing,
    ]
    assert with_missing_caveats([NO_NULL, "3 heads ... resampled"], None, heads) == [
        NO_NULL,
        "3 heads ... resampled",
    ]
    assert with_missing_caveats([], "random", pd.DataFrame()) == []
