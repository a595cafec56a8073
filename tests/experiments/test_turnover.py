"""The turnover layer, on heads made up so that it must be found, or must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rotoscope as rs
from benchmarks.turnover import REDUCED, study
from docs.turnover_page import PAGE, filled, model_section, results
from rotoscope.experiments.depths.turnover import (
    FOUND,
    NOT_FOUND,
    UNDEFINED,
    TurnoverStudy,
    border,
    symbolic_heads_in_prompt,
    turnover,
)
from rotoscope.experiments.depths.turnover_figures import turnover_layers
from rotoscope.runs.record import RunRecord, SubjectRecord

LAYERS, HEADS = 12, 6


def rows(follows: np.ndarray, prompts: int = 6, seed: int = 0) -> pd.DataFrame:
    """Heads that are pure symbolic at their layer; `follows` [layers, heads] says what they do in the prompt."""
    noise = np.random.default_rng(seed)
    keys = [(prompt, *head) for prompt in range(prompts) for head in np.ndindex(follows.shape)]
    table = pd.DataFrame(keys, columns=["prompt", "layer", "head"])
    score = follows[table["layer"], table["head"]] * 0.9 + 0.05 + noise.normal(0, 0.02, len(table))
    own = {"positional_score": 0.02, "symbolic_score": 0.99, "covered_share": 1.0}
    return table.assign(**own, input_symbolic_score=score, input_positional_score=1 - score)


def from_layer(layer: int) -> np.ndarray:
    return np.broadcast_to(np.arange(LAYERS)[:, None] >= layer, (LAYERS, HEADS))


def at_random(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((LAYERS, HEADS)) < 0.5


def draws(count: int = 19) -> pd.DataFrame:
    parts = [
        rows(at_random(100 + draw), prompts=2).assign(null_name=name, draw=draw)
        for name in ("random", "gaussian")
        for draw in range(count)
    ]
    return pd.concat(parts, ignore_index=True)


def by_hand(layers: np.ndarray, follows: np.ndarray) -> tuple[float, float]:
    """The first border with the fewest errors, and its strength, head by head."""
    guess = min(follows.sum(), (~follows).sum())
    best = (guess, np.nan)
    for at in sorted(set(layers))[1:]:
        sides = [[k for k in range(len(layers)) if (layers[k] >= at) == above] for above in (False, True)]
        if min(map(len, sides)) >= 4:
            errors = sum(follows[k] for k in sides[0]) + sum(not follows[k] for k in sides[1])
            best = min(best, (errors, at), key=lambda pair: pair[0])
    return best[1], 0.0 if np.isnan(best[1]) else 1 - best[0] / guess


@pytest.mark.parametrize("seed", range(5))
def test_the_border_has_the_fewest_errors(seed: int) -> None:
    random = np.random.default_rng(seed)
    layers = np.sort(random.integers(0, 8, 30))
    follows = random.random(30) < layers / 8
    best = border(layers, follows)
    assert (best.layer, best.strength) == pytest.approx(by_hand(layers, follows), nan_ok=True)


def test_a_turnover_is_found_where_it_is() -> None:
    result = turnover(rows(from_layer(7)), draws(), layers=LAYERS)
    assert (result["turnover_layer"], result["last_below"], result["strength"]) == (7, 6, 1)
    assert result["layer_low"] <= 7 <= result["layer_high"]
    assert result["relative_depth"] == pytest.approx(7 / 12)
    assert result["verdict"] == FOUND
    assert result["p_random"] == result["p_gaussian"] == 1 / 20
    noisy = from_layer(7) ^ (np.random.default_rng(1).random((LAYERS, HEADS)) < 0.1)
    assert turnover(rows(noisy), draws(), layers=LAYERS)["turnover_layer"] == 7


@pytest.mark.parametrize(
    "follows",
    [from_layer(0), from_layer(LAYERS), ~from_layer(6), at_random(3)],
    ids=["all follow", "all stay", "the other way round", "at random"],
)
def test_no_turnover_is_found_where_there_is_none(follows: np.ndarray) -> None:
    assert turnover(rows(follows), draws(), layers=LAYERS)["verdict"] == NOT_FOUND


def test_what_is_not_shown_either_way_is_undecided() -> None:
    result = turnover(rows(at_random(15)), draws(), layers=LAYERS)
    assert 0.05 < result["strength"] < 0.3
    assert result["p_random"] >= 0.1
    assert (result["verdict"], "effects below" in result["reason"]) == ("undecided", True)


def test_draws_without_symbolic_heads_have_no_strength() -> None:
    """They are left out and counted, not taken for draws of strength 0."""
    table = draws()
    symbolic = (table["null_name"] != "random") | ((table["draw"] >= 15) & (table["draw"] < 19))
    thin = table.assign(symbolic_score=table["symbolic_score"].where(symbolic, 0.5))
    some = turnover(rows(from_layer(7)), thin, layers=LAYERS)
    assert (some["random_draws"], some["random_undefined"]) == (19, 15)
    assert some["random_strength"] > 0
    assert some["verdict"] == "undecided"
    assert some["reason"] == "random null: 4 draws: a verdict of beyond the null takes 19"
    bare = table.assign(symbolic_score=table["symbolic_score"].where(table["null_name"] != "random", 0.5))
    none = turnover(rows(from_layer(7)), bare, layers=LAYERS)
    assert (none["random_undefined"], none["verdict"]) == (19, FOUND)
    assert np.isnan(none["p_random"])
    gone = turnover(rows(from_layer(7)), table.assign(symbolic_score=0.5), layers=LAYERS)
    assert gone["verdict"] == "undecided"


def test_without_both_nulls_nothing_is_called_a_turnover() -> None:
    assert turnover(rows(from_layer(7)), layers=LAYERS)["verdict"] == "undecided"
    random = draws().query("null_name == 'random'")
    assert turnover(rows(from_layer(7)), random, layers=LAYERS)["verdict"] == "undecided"
    assert turnover(rows(from_layer(7)), draws(5), layers=LAYERS)["verdict"] != FOUND  # p cannot be .05
    assert (
        turnover(rows(from_layer(7)), rows(from_layer(6)).assign(null_name="random", draw=0))["verdict"]
        != FOUND
    )


def test_what_a_model_with_hardly_a_symbolic_head_says() -> None:
    few = rows(from_layer(7)).query("head == 0 and layer in (3, 8)")
    assert turnover(few)["verdict"] == "no verdict"
    none = rows(from_layer(7)).assign(symbolic_score=0.5)
    assert (turnover(none)["symbolic_heads"], turnover(none)["verdict"]) == (0, "no verdict")
    assert border(np.array([1, 2]), np.array([False, True])) == UNDEFINED
    thin = rows(from_layer(7)).assign(covered_share=0.4)
    assert symbolic_heads_in_prompt(thin).empty


def test_the_figure_counts_heads_by_layer() -> None:
    table = rows(from_layer(7)).assign(size=16)
    paired = {"paired_positional_score": 1.0, "paired_symbolic_score": 0.0, "paired_covered_share": 1.0}
    context = table["head"] == 0
    table = table.assign(**paired)
    table.loc[context, ["paired_positional_score", "paired_symbolic_score"]] = [0.1, 0.9]
    tasks = pd.DataFrame([{"task": "binding", "size": 16, "accuracy": 0.92}])
    record = RunRecord(kind="turnover", subject=SubjectRecord(name="made", layers=LAYERS))
    nulls = draws().assign(size=16)
    run = TurnoverStudy(record, {"permuted": table, "tasks": tasks, "null_permuted": nulls})
    assert run.turnovers["verdict"].tolist() == [FOUND]
    layers = run.by_layer(16).set_index("layer")
    assert layers.loc[3, ["heads", "follows", "place", "context"]].tolist() == [6, 0, 5, 1]
    assert layers.loc[8, ["heads", "follows", "place", "context"]].tolist() == [6, 6, 0, 0]
    axes = turnover_layers(run).axes[0]
    assert axes.get_title(loc="left") == "made: 16 facts, accuracy 0.92: turnover"
    assert sum(bar.get_height() for bar in axes.patches if hasattr(bar, "get_height")) >= LAYERS * HEADS


CAUSES = [("followers from it on", 3.0), ("symbolic heads that stay below", 1.0)]


def made(causes: list[tuple[str, float]], controls: int = 20) -> TurnoverStudy:
    """A run whose silenced groups lose so much, and random heads 0.99 to 1.01."""
    tasks = pd.DataFrame([{"task": "binding", "size": s, "accuracy": a} for s, a in ((16, 0.9), (64, 0.2))])
    losses = [
        {
            "size": size,
            "silenced": name,
            "draw": draw,
            "loss": loss if draw < 0 else 0.99 + 0.001 * draw,
            "loss_error": 0.01,
        }
        for size in (16, 64)
        for name, loss in causes
        for draw in range(-1, controls)
    ]
    planes = [
        {"layer": 9, "head": 0, "frequency_id": k, "follows": True, "positional_score": float(k <= 8)}
        for k in range(1, 17)
    ]
    frequencies = pd.DataFrame(planes)
    frequencies["symbolic_score"] = 1 - frequencies["positional_score"]
    tables = {
        "tasks": tasks,
        "permuted": rows(from_layer(7)).assign(size=16),
        "null_permuted": draws().assign(size=16),
        "causes": pd.DataFrame(losses),
        "frequencies": frequencies,
    }
    return TurnoverStudy(RunRecord(kind="turnover", subject=SubjectRecord(name="made", layers=LAYERS)), tables)


def test_claims_are_judged_by_the_rules() -> None:
    claims = made(CAUSES).claims()
    assert claims["verdict"].tolist() == ["holds"] * 4
    assert claims["value"][1] == "16 facts: loss 3.00, random 0.99 to 1.01"  # 64 facts are not answered
    assert made([("followers from it on", 1.0)]).claims()["verdict"][1] == "does not hold"
    assert made([("symbolic heads that stay below", 3.0)]).claims()["verdict"][2] == "does not hold"
    between = [("followers from it on", 1.1), ("symbolic heads that stay below", 1.1)]
    assert made(between, controls=5).claims()["verdict"][1:3].tolist() == ["undecided"] * 2
    alone = made(CAUSES)
    del alone.tables["null_permuted"]
    assert alone.claims()["verdict"][0] == "undecided"
    silent = made(CAUSES)
    del silent.tables["frequencies"], silent.tables["causes"]
    assert silent.claims()["verdict"].tolist() == ["holds", "not asked", "not asked", "not asked"]


def test_the_page_shows_what_is_stored() -> None:
    page = PAGE.read_text("utf-8")
    assert filled(page, results()) == page
    section = model_section(made(CAUSES))
    assert "| 16 | 6 | 72 | 30 | 7 of 12 [7, 7] | 1.00 |" in section
    assert "| heads that follow the fact carry the answer |" in section


@pytest.mark.slow
def test_a_random_model_has_no_turnover(stand_in: rs.Subject, tmp_path: Path) -> None:
    from dataclasses import replace

    sizes = {"sizes": (4,), "list_sizes": (), "permuted": (4,), "null_sizes": (4,), "cause_sizes": (4,)}
    small = {"prompts": 3, "permuted_prompts": 3, "depth_size": 4, "depth_prompts": 2, "cause_prompts": 3}
    plan = replace(REDUCED, **sizes, **small, controls=2, draws=2)
    run = study(
        stand_in, plan, str(tmp_path / "run"), ("tasks", "permuted", "causes", "nulls", "writers", "depths")
    )
    assert run.turnovers["symbolic_heads"].tolist() == [0]
    assert run.turnovers["verdict"].tolist() == ["no verdict"]  # nothing that could turn over
    assert rs.open(tmp_path / "run").turnovers["symbolic_heads"].equals(run.turnovers["symbolic_heads"])
