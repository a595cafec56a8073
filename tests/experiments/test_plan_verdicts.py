"""What plans say of a choice: beside random ones, beside other rankings, and where the model only guesses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rotoscope.experiments.plan.result import CachePlan, Choice, Plan, against_random
from tests.plans import cache_plan, planes_plan


def rotation_plan() -> Plan:
    return planes_plan({"effect": 2.0, "norm": 3.0}, prompts=8)


PLANS = pytest.mark.parametrize("make", [lambda: cache_plan(8), rotation_plan], ids=["cache", "rotation"])
MakePlan = Callable[[], Plan]


def told(plan: Plan, vocabulary: int) -> str:
    plan.run.settings["vocabulary"] = vocabulary
    return " ".join(plan.sentences())


@PLANS
def test_what_a_prompt_costs_every_choice_changes_no_verdict(make: MakePlan) -> None:
    plain, moved = make(), make()
    moved.tables["points"]["loss"] += 40.0 * (moved.points["prompt"] % 3)
    assert set(plain.against_random["verdict"]) == {"beyond the null"}
    for column in ("p_value", "effect"):
        numbers = [plan.against_random[column].to_numpy() for plan in (plain, moved)]
        assert numbers[0] == pytest.approx(numbers[1])


def test_a_choice_is_compared_on_the_prompts_of_the_draws() -> None:
    """Random choices are judged on fewer prompts; what the plan loses on the others is left out."""
    losses = pd.Series([1.0, 2.0, 50.0, 60.0])
    draws = pd.DataFrame({draw: [3.0 + 0.1 * draw, 4.0] for draw in range(5)})
    [row] = against_random([Choice({"what": 1}, losses, draws)], ["what"]).to_dict("records")
    assert row["loss"] == 1.5
    assert row["effect"] == pytest.approx(-2.1)


def test_a_random_draw_is_seldom_called_more_than_random() -> None:
    """Of 21 draws one stands in the plan's place, two hundred times: at most as often as the rule allows."""
    generator, wrong = np.random.default_rng(3), 0
    for _ in range(200):
        cost, effects = 2 * generator.standard_normal(8), 0.3 * generator.standard_normal(21)
        losses = pd.DataFrame(4 + cost[:, None] + effects + 0.1 * generator.standard_normal((8, 21)))
        table = against_random([Choice({"what": 1}, losses[20], losses.drop(columns=20))], ["what"])
        wrong += table["verdict"].tolist() == ["beyond the null"]
    assert wrong <= 0.05 * 200 + 5


@PLANS
def test_a_plan_that_is_a_random_draw_is_not_beyond_the_null(make: MakePlan) -> None:
    plan = make()
    points, keys = plan.points, [plan.budget_column, "source", "prompt"]
    draw = points[(points["ranking"] == "random") & (points["draw"] == 2)].set_index(keys)["loss"]
    own = points["ranking"].isin(("far_task", "effect")) & (points["purpose"] == "judging")
    points.loc[own, "loss"] = draw.reindex(pd.MultiIndex.from_frame(points.loc[own, keys])).to_numpy() + 0.01
    assert "beyond the null" not in set(plan.against_random["verdict"])
    assert "better than random" not in " ".join(plan.sentences())


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


def test_draws_are_shown_with_their_spread() -> None:
    plan = planes_plan({"effect": 2.0})
    rows = plan.frontier.set_index("ranking")
    assert rows.loc["random", ["loss_low", "loss_high"]].tolist() == pytest.approx([5.0595, 5.4205])
    assert rows["draws"].to_dict() == {"effect": 1, "plan": 1, "random": 20}


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ("draw < 1", "undecided, 1 draw: a verdict of beyond the null takes 19"),
        ("ranking != 'random'", "random choices were not measured"),
    ],
)
def test_too_few_draws_are_said_not_shown_as_a_number(left: str, words: str) -> None:
    plan = cache_plan()
    plan.tables["points"] = plan.points.query(left)
    assert " ".join(plan.sentences()).count(words) == 3


def test_what_is_said_beside_other_rankings() -> None:
    ours = planes_plan({"effect": 2.0, "norm": 3.0})
    [row] = ours.against_others.query("ranking == 'norm'").to_dict("records")
    assert [row[name] for name in ("difference", "low", "high")] == pytest.approx([-1.0, -1.0, -1.0])
    assert row["verdict"] == "the plan loses less"
    assert ours.sentences()[0] == (
        "2 of 8 planes of every key head go on rotating, chosen by effect: it loses least on text among 2 rankings, on prompts that "
        "the tables do not show."
    )
    theirs = planes_plan({"effect": 4.0, "norm": 3.0})
    assert theirs.chosen == {2: "norm"}
    assert "chosen by norm" in theirs.sentences()[0]
    alone = planes_plan({"effect": 9.0}).sentences()
    assert alone[0].endswith("chosen by effect, the only ranking that was asked for.")
    assert alone[1] == "On text the plan loses 9.05: worse than random choices (5.24)."


def test_where_another_ranking_loses_less_a_table_says_so() -> None:
    plan = cache_plan()
    points = plan.tables["points"]
    better = (
        points["ranking"].eq("gradient_rounds") & points["purpose"].eq("judging") & points["source"].eq("text")
    )
    points.loc[better, "loss"] -= 1.5
    table = dict(plan.overview())["where another ranking loses less than the plan's, beyond noise"]
    assert (set(table["ranking"]), set(table["source"])) == ({"gradient_rounds"}, {"text"})


@PLANS
def test_few_prompts_and_the_task_are_caveats(make: MakePlan) -> None:
    plan = make()
    assert [caveat.split(":")[0].split(" with")[0] for caveat in plan.caveats()] == [
        f"ranked on {', '.join(plan.ranked_on)}"
    ]
    plan.run.settings["prompts"] = 2
    assert any("2 prompts of each source" in caveat for caveat in plan.caveats())


def test_nothing_is_better_where_the_model_with_everything_kept_only_guesses() -> None:
    """It loses about 2.2: more than guessing among five tokens, less than among a hundred."""
    known, lost = cache_plan(8), cache_plan(8)
    assert told(known, 100).count("better than random choices") == 3
    sentences = told(lost, 5)
    assert "better than random" not in sentences
    assert (
        sentences.count(", no better than guessing (1.61): nothing is said to be better or worse there.") == 3
    )
    assert "where the model only guesses, that means nothing" in sentences
    assert set(lost.against_random["verdict"]) == {"no verdict"}
    assert set(lost.against_random["reason"]) == {"the model itself does no better than guessing there"}
    assert set(lost.against_others["verdict"]) == {"no verdict", "the plan's own"}


def test_sources_that_are_guessed_are_left_out_and_others_are_not() -> None:
    plan = cache_plan(8)
    points = plan.points
    points.loc[points["source"] == "lookup", "loss"] += 9.0
    sentences = told(plan, 1000)
    assert sentences.count("better than random choices") == 2
    assert "On lookup the model as it is loses 11." in sentences
    assert set(plan.against_random.set_index("source").loc["lookup", "verdict"]) == {"no verdict"}


@pytest.mark.parametrize(("all_rotate", "praised"), [(1.0, True), (15.93, False)])
def test_no_ranking_of_planes_is_praised_where_the_model_only_guesses(all_rotate: float, praised: bool) -> None:
    plan = rotation_plan()
    rows = plan.points.query("ranking == 'effect' and purpose == 'judging'")
    ends = rows.assign(ranking="any", planes=8, loss=all_rotate + 0.01 * rows["prompt"])
    plan.tables["points"] = pd.concat([plan.points, ends], ignore_index=True)
    assert plan.chance is None
    sentences = told(plan, 128)
    assert ("better than random choices" in sentences) == praised
    assert ("On text the model as it is loses 15.96, no better than guessing (4.85)" in sentences) != praised


def test_a_cache_plan_says_what_was_decided() -> None:
    plan = cache_plan()
    assert plan.ranking == "far_task"  # it comes first, so it is made to lose least
    sentences = " ".join(plan.sentences())
    assert "4 of 18 key heads keep everything, 14 stream" in sentences
    assert "Key-value cache left" in sentences
    assert plan.overview()[0][1].iloc[0]["ranking"] == "plan"
    others: Any = plan.against_others.set_index(["kept_share", "source", "ranking"])["verdict"]
    assert others[0.1, "repeats", "gradient_rounds"] == "the plan loses less"
    assert others[0.1, "repeats", "far_task"] == "the plan's own"
    assert isinstance(plan, CachePlan)
