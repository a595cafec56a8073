"""What plans say of a choice: beside random ones, and where the model only guesses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from rotoscope.experiments.plan.cache_result import CachePlan
from rotoscope.experiments.plan.result import Chosen, against_random
from rotoscope.experiments.plan.rotation_result import RotationPlan
from tests.experiments.test_rotation_plan import made_up
from tests.plans import cache_plan


def offset(losses: pd.DataFrame) -> pd.Series:
    """What a prompt costs everybody: far more than choices differ by."""
    return 40.0 * (losses["prompt"] % 3)


def verdicts_of(plan: CachePlan | RotationPlan) -> list[str]:
    table = plan.against_random if isinstance(plan, CachePlan) else plan.beside_random
    return table["verdict"].tolist()


def test_what_a_prompt_costs_everybody_changes_no_verdict_of_a_cache_plan() -> None:
    plain, moved = cache_plan(8), cache_plan(8)
    moved.tables["points"]["loss"] += offset(moved.points)
    assert verdicts_of(plain) == verdicts_of(moved) == 12 * ["beyond the null"]
    assert moved.against_random["p_value"].to_numpy() == pytest.approx(
        plain.against_random["p_value"].to_numpy()
    )
    assert moved.against_random["effect"].to_numpy() == pytest.approx(plain.against_random["effect"].to_numpy())


def test_what_a_prompt_costs_everybody_changes_no_verdict_of_a_rotation_plan() -> None:
    plain, moved = (made_up({"effect": 2.0, "norm": 5.3, "fastest": 9.0}) for _ in range(2))
    moved.tables["frontier"] = moved.frontier.assign(loss=moved.frontier["loss"] + offset(moved.frontier))
    assert verdicts_of(plain) == ["beyond the null", "also in the null", "beyond the null"]
    assert verdicts_of(moved) == verdicts_of(plain)


def test_small_losses_that_are_sure_count() -> None:
    """The least difference that counts is one of scores; losses are in units of their own."""
    prompts = pd.RangeIndex(6)
    draws = pd.DataFrame({draw: 2.0 + 1e-4 * draw for draw in range(5)}, index=prompts)
    table = against_random([Chosen({"what": 1}, pd.Series(1.97, prompts), draws)], ["what"])
    assert table["verdict"].tolist() == ["beyond the null"]


def test_a_random_draw_is_seldom_called_more_than_random() -> None:
    """Six draws, one of them in the plan's place, three hundred times: at most as often as the rule allows."""
    dice, wrong = np.random.default_rng(3), 0
    for _ in range(300):
        cost, apart = 2 * dice.standard_normal(8), 0.3 * dice.standard_normal(6)
        losses = 4 + cost[:, None] + apart + 0.1 * dice.standard_normal((8, 6))
        table = pd.DataFrame(losses)
        found = against_random([Chosen({"what": 1}, table[5], table.drop(columns=5))], ["what"])
        wrong += found["verdict"].tolist() == ["beyond the null"]
    assert wrong <= 0.05 * 300


def test_a_plan_that_is_a_random_draw_is_not_beyond_the_null() -> None:
    plan = made_up({"effect": 5.2})
    assert verdicts_of(plan) == ["also in the null"]
    cache = cache_plan(8)
    points = cache.points
    drawn = points[(points["ranking"] == "random") & (points["draw"] == 0)].set_index(
        ["kept_share", "source", "prompt"]
    )
    own = (points["ranking"] == "far_task") & (points["purpose"] == "judging")
    keys = pd.MultiIndex.from_frame(points.loc[own, ["kept_share", "source", "prompt"]])
    points.loc[own, "loss"] = drawn["loss"].reindex(keys).to_numpy() + 0.01
    assert set(verdicts_of(cache)) == {"also in the null"}
    assert "better than random" not in " ".join(cache.sentences())


def test_random_choices_are_judged_in_one_place_only() -> None:
    plan = cache_plan()
    assert set(plan.against_others["ranking"]) == {*plan.run.settings["rankings"]} - {"random"}
    points = plan.points
    random = points["ranking"] == "random"
    points.loc[random, "loss"] = 0.5 + 0.01 * points.loc[random, "draw"]
    for name in ("judged", "against_random", "against_others"):
        vars(plan).pop(name, None)
    assert not any("loses less" in title for title, _ in plan.overview())
    assert " ".join(plan.sentences()).count("worse than random choices") == 3


def test_too_few_draws_are_said_not_shown_as_a_number() -> None:
    plan = cache_plan()
    plan.tables["points"] = plan.points[plan.points["draw"] < 1]
    said = [sentence for sentence in plan.sentences() if sentence.startswith("on ")]
    assert len(said) == 3
    assert all("one draw: no verdict" in sentence for sentence in said)


def test_without_random_choices_there_is_no_word_beside_them() -> None:
    plan = cache_plan()
    plan.tables["points"] = plan.points[plan.points["ranking"] != "random"]
    said = [sentence for sentence in plan.sentences() if sentence.startswith("on ")]
    assert len(said) == 3
    assert all(sentence.endswith("; random choices were not measured") for sentence in said)
    assert not any("random" in title for title, _ in plan.overview())


def told(plan: Any, vocabulary: int) -> str:
    plan.run.settings["vocabulary"] = vocabulary
    return " ".join(plan.sentences())


def test_nothing_is_better_where_the_model_with_everything_kept_only_guesses() -> None:
    """It loses about 2.2: more than guessing among five tokens, less than among a hundred."""
    known, lost = cache_plan(8), cache_plan(8)
    assert told(known, 100).count("better than random choices") == 3
    said = told(lost, 5)
    assert "better than random" not in said
    assert said.count(", no better than guessing (1.61): nothing is said to be better or worse there.") == 3
    assert "where the model only guesses, that means nothing" in said
    assert set(verdicts_of(lost)) == {"no verdict"}
    assert set(lost.against_random["reason"]) == {"the model itself does no better than guessing there"}
    assert set(lost.against_others["verdict"]) == {"no verdict", "the plan's own"}


def test_sources_that_are_guessed_are_left_out_and_others_are_not() -> None:
    plan = cache_plan(8)
    points = plan.points
    points.loc[points["source"] == "lookup", "loss"] += 9.0
    said = told(plan, 1000)
    assert said.count("better than random choices") == 2
    assert "On lookup the model as it is loses 11." in said
    assert set(plan.against_random.set_index("source").loc["lookup", "verdict"]) == {"no verdict"}


def rotation_plan(all_rotate: float, losses: dict[str, float]) -> RotationPlan:
    plan = made_up(losses)
    own = plan.frontier[plan.frontier["ranking"] == "effect"]
    ends = own.assign(ranking="all rotate", planes=8, loss=all_rotate + 0.01 * own["prompt"])
    plan.tables["frontier"] = pd.concat([plan.frontier, ends], ignore_index=True)
    return plan


def test_no_ranking_of_planes_is_praised_where_the_model_only_guesses() -> None:
    losses = {"effect": 2.0, "norm": 3.0}
    fine = told(rotation_plan(1.0, losses), 128)
    assert "effect beside the best baseline" in fine
    assert "effect is better than random planes on text" in fine
    lost = told(rotation_plan(15.93, losses), 128)
    assert "beside the best baseline" not in lost
    assert "better than random planes" not in lost
    assert "On text the model as it is loses 15.96, no better than guessing (4.85)" in lost


def test_runs_that_do_not_say_how_many_tokens_there_are_are_told_as_before() -> None:
    plan = rotation_plan(15.93, {"effect": 2.0, "norm": 3.0})
    assert plan.chance is None
    assert "effect is better than random planes on text." in plan.sentences()
