"""What plans say of a choice: beside random ones, where the model only guesses, and where heads are not predicted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rotoscope.results.cache_plan import CachePlan
from rotoscope.results.context_plan import AS_IT_IS, ContextPlan
from rotoscope.results.plan import Chosen, against_random
from rotoscope.results.rotation_plan import RotationPlan
from tests.analysis.test_context_plan import KNOWS, TO, TRAINED, by_hand, raised
from tests.analysis.test_rotation_plan import made_up
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
    own = (points["ranking"] == "combined") & (points["purpose"] == "judging")
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
    assert "The best of ours" in fine
    assert "effect is better than random planes on text" in fine
    lost = told(rotation_plan(15.93, losses), 128)
    assert "The best of ours" not in lost
    assert "better than random planes" not in lost
    assert "On text the model as it is loses 15.96, no better than guessing (4.85)" in lost


def test_runs_that_do_not_say_how_many_tokens_there_are_are_told_as_before() -> None:
    plan = rotation_plan(15.93, {"effect": 2.0, "norm": 3.0})
    assert plan.chance is None
    assert "effect is better than random planes on text." in plan.sentences()


def test_no_scaling_is_recommended_that_only_guesses_at_the_length_asked_for() -> None:
    short = {AS_IT_IS: KNOWS, "linear": raised(0.02), "yarn": raised(0.01)}
    lost = {AS_IT_IS: raised(9.0), "linear": raised(7.5), "yarn": raised(7.0, 0.0)}
    found = by_hand(short, lost).recommendation
    assert found.setting is None
    assert f"at {TO} tokens yarn does best, and no better than chance (a loss of 4.85)" in found.why
    assert by_hand(short, lost, vocabulary=10**6).recommendation.setting == "yarn"


def two_prompts(costs: tuple[float, float]) -> ContextPlan:
    as_it_is, yarn = [2.0, 2.1], [2.0 + costs[0], 2.1 + costs[1]]
    return by_hand({AS_IT_IS: as_it_is, "yarn": yarn}, {AS_IT_IS: [4.0, 4.1], "yarn": [2.5, 2.6]})


def test_a_scaling_that_costs_more_in_the_mean_is_not_recommended() -> None:
    found = two_prompts((0.1, 1.95)).recommendation
    assert found.setting is None
    assert "every scaling costs more than 0.05" in found.why


def test_a_scaling_is_not_recommended_while_noise_hides_what_it_costs() -> None:
    found = two_prompts((-0.02, 0.08)).recommendation
    assert found.setting is None
    assert "2 prompts do not tell whether it costs more than 0.05 at training length" in found.why
    assert two_prompts((0.02, 0.02)).recommendation.setting == "yarn"


def test_a_scaling_that_is_out_within_noise_is_named_so() -> None:
    short = {AS_IT_IS: KNOWS, "linear": raised(0.06, 0.03), "yarn": raised(0.01)}
    long = {AS_IT_IS: raised(3.0), "linear": KNOWS, "yarn": raised(0.5, 0.0)}
    found = by_hand(short, long).recommendation
    assert found.setting == "yarn"
    assert found.why.endswith("linear cost more at training length (linear in the mean, within noise)")


NAMES = (AS_IT_IS, "yarn")


def copying_plan(predicted: list[int], loses: float = 1.0) -> ContextPlan:
    """Heads 0 and 1 look at what followed, 2 and 3 at the token before; attention is predicted of some of them.

    Heads 1 and 3 see a window: they attend as much as ever, at training length less than the others do. Under yarn the others are
    predicted to lose a part of what they had.
    """
    plan = by_hand(dict.fromkeys(NAMES, KNOWS), dict.fromkeys(NAMES, KNOWS))
    attention = {0: (0.4, 0.0), 1: (1.0, 0.0), 2: (0.0, 0.4), 3: (0.0, 1.0)}
    losses, heads, guesses = [], [], []
    for name in NAMES:
        for n in (TRAINED, TO):
            about = {"setting": name, "length": n}
            losses += [
                about | {"source": "repeats", "prompt": k, "loss": 1.0, "accuracy": 0.9} for k in range(2)
            ]
            for head, (followed, previous) in attention.items():
                row = about | {"layer": 0, "head": head, "on_followed": followed, "on_previous": previous}
                heads.append(row | {"head_class": "mixed", "discrepancy": 1.0})
                left = loses if name == "yarn" and n == TO else 1.0
                if head in predicted:
                    guesses.append(row | {"on_followed": left * followed, "on_previous": left * previous})
    plan.tables |= {"losses": pd.concat([plan.losses, pd.DataFrame(losses)]), "heads": pd.DataFrame(heads)}
    planes = pd.DataFrame(heads).assign(frequency_id=1, gap=1.0, least_gap=1.0)
    plan.tables["planes"] = planes[["setting", "length", "layer", "head", "frequency_id", "gap", "least_gap"]]
    if guesses:
        plan.tables["predicted"] = pd.DataFrame(guesses)
    return plan


def predicted_breaks(plan: ContextPlan) -> dict[str, float]:
    return plan.breaking_lengths.set_index("setting")["predicted"].to_dict()


def test_a_breaking_length_compares_heads_with_themselves() -> None:
    """Of the mean of all four heads the two that were predicted have 0.57: they would be called broken sooner than they are."""
    plan = copying_plan([0, 2], loses=0.8)
    assert predicted_breaks(plan) == {AS_IT_IS: math.inf, "yarn": math.inf}
    row = plan.breaking.set_index(["setting", "length"]).loc[("yarn", TO)]
    assert row[["on_followed", "on_previous"]].tolist() == [0.4, 0.4]
    assert "predicted from 1 heads that look at what followed and 1 heads that look at the token before (2 more are in layers that see a window only)" in plan._about_breaking()  # fmt: skip
    assert predicted_breaks(copying_plan([0, 2], loses=0.4)) == {AS_IT_IS: math.inf, "yarn": TO}
    assert "window only" not in copying_plan([0, 1, 2, 3])._about_breaking()


def test_no_breaking_length_is_predicted_from_one_kind_of_head() -> None:
    plan = copying_plan([0, 1], loses=0.1)
    assert all(math.isnan(length) for length in predicted_breaks(plan).values())
    assert plan._about_breaking().startswith("No breaking length is predicted: of the heads that copying needs")


def test_where_nothing_is_predicted_what_was_measured_is_shown() -> None:
    plan = copying_plan([])
    assert plan.breaking_lengths.columns.tolist() == ["setting", "measured"]
    assert not [name for name in plan.breaking if name.startswith("predicted")]
    tables = dict(plan.overview())
    assert "where repeated tokens break, measured; nothing was predicted" in tables
    assert plan.sentences()[-1].startswith("No breaking length is predicted")
