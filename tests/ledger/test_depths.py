"""Rows of our own: verdicts on made-up layers and on the stored runs, changed on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rotoscope.errors import RunError
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.ledger import ours_depths as depths
from rotoscope.ledger.claim_runs import ClaimRuns
from rotoscope.ledger.layer_depths import LayerDepths, layer_means, lean, measure_layer_depths
from rotoscope.ledger.verdicts import IN_PART, NOT, REPRODUCED, UNDECIDED, Finding
from rotoscope.runs.record import RunRecord
from rotoscope.stats.aggregate import SCORES
from tests.ledger.conftest import judged_on

PLACE, TOKEN = (0.9, 0.1), (0.1, 0.9)
Scores = tuple[float, float]


def model(task: str, training: str, prompt: dict[int, Scores], own: Scores = (0.02, 0.99)) -> pd.DataFrame:
    """Twelve layers, the token's unless said otherwise."""
    rows = []
    for layer in range(12):
        for at, scores in ((False, prompt.get(layer, TOKEN)), (True, own)):
            about = {"task": task, "training": training, "step": 9, "layer": layer, "own": at}
            rows.append(
                about
                | {"depth": layer * at, "lean_std": 0.05, "sequences": 24}
                | dict(zip(SCORES, scores, strict=True))
            )
    return pd.DataFrame(rows)


def random(task: str, scores: Scores = (0.4, 0.6)) -> pd.DataFrame:
    """Random models that differ a little, as many as a verdict takes."""
    draws = [model(task, "", dict.fromkeys(range(12), (scores[0] + k / 400, scores[1]))) for k in range(19)]
    return pd.concat([draw.assign(draw=k) for k, draw in enumerate(draws)], ignore_index=True)


def depths_of(*models: pd.DataFrame, null: pd.DataFrame | None = None, accuracy: Any = None) -> LayerDepths:
    tables = {"layers": pd.concat(models, ignore_index=True), "null": null, "accuracy": accuracy}
    return LayerDepths(RunRecord(), {name: table for name, table in tables.items() if table is not None})


LATE = dict.fromkeys(range(7, 12), PLACE)


@pytest.mark.parametrize(
    ("second", "null", "verdict"),
    [
        (LATE, (0.4, 0.6), REPRODUCED),
        (LATE | {9: TOKEN}, (0.4, 0.6), IN_PART),
        (dict.fromkeys((7, 8), PLACE), (0.4, 0.6), NOT),
        (LATE, (0.88, 0.1), "as in the null"),
    ],
)
def test_the_place_is_followed_in_every_layer_of_every_training(
    second: dict[int, Scores], null: Scores, verdict: str
) -> None:
    """One training is as said; the other decides, and so do random models."""
    chosen_on = model("number", "0", LATE)
    chosen_on.loc[chosen_on["own"] & ~chosen_on["layer"].isin(list(LATE)), "positional_score"] = 0.5
    run = depths_of(chosen_on, model("number", "1", second), null=random("number", null))
    finding = judged_on("ours-number-place", depths=run)
    assert finding.verdict == verdict
    assert "seed 0" not in finding.value  # the training on which layers are chosen is not judged


@pytest.mark.parametrize(
    ("second", "null", "verdict"),
    [
        ({}, (0.4, 0.6), REPRODUCED),
        ({11: PLACE}, (0.4, 0.6), IN_PART),
        (dict.fromkeys(range(6), PLACE), (0.4, 0.6), NOT),
        ({}, (0.1, 0.9), "as in the null"),
    ],
)
def test_the_token_is_followed_down_to_the_prompt(
    second: dict[int, Scores], null: Scores, verdict: str
) -> None:
    models = [model("letter", "0", {}), model("letter", "1", second)]
    run = depths_of(*models, null=random("letter", null))
    assert judged_on("ours-letter-fact", depths=run).verdict == verdict


def test_layers_are_chosen_on_one_training_and_judged_on_the_others() -> None:
    pure, other = model("number", "0", LATE), model("number", "1", LATE)
    assert judged_on("ours-number-own-layer", depths=depths_of(pure, other)).verdict == REPRODUCED
    assert judged_on("ours-number-own-layer", depths=depths_of(pure)).verdict == NOT  # nothing left to judge
    other.loc[other["own"] & (other["layer"] == 9), "positional_score"] = 0.2
    assert judged_on("ours-number-own-layer", depths=depths_of(pure, other)).verdict == IN_PART
    other.loc[other["own"], "positional_score"] = 0.2
    assert judged_on("ours-number-own-layer", depths=depths_of(pure, other)).verdict == NOT


def generalises(prompt: list[float], own: list[float], longer: list[float], trained: float = 1.0) -> Finding:
    """Trainings with these mean scores and accuracies on longer inputs."""
    models, accuracy = [], []
    for k, (p, o, a) in enumerate(zip(prompt, own, longer, strict=True)):
        models.append(model("number", str(k), dict.fromkeys(range(12), (p, 0.5)), own=(o, 0.5)))
        for length, share in ((17, trained), (25, 0.5), (50, a), (100, a), (200, 0.5)):
            accuracy.append(
                {"task": "number", "training": str(k), "step": 9, "length": length, "accuracy": share}
            )
    return judged_on("ours-length", depths=depths_of(*models, accuracy=pd.DataFrame(accuracy)))


def test_which_score_tells_how_far_a_model_generalises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depths, "DEALS", 1000)
    monkeypatch.setattr(depths, "RESAMPLES", 200)
    rising = list(np.linspace(0.1, 0.8, 8))
    falling = rising[::-1]
    shuffled = [rising[k] for k in (3, 6, 0, 5, 2, 7, 1, 4)]
    assert generalises(rising, shuffled, falling).verdict == REPRODUCED
    assert generalises(rising, rising, falling).verdict == IN_PART  # both tell it, neither better
    assert generalises(shuffled, rising, falling).verdict == NOT  # the papers' score tells it
    assert generalises(rising, shuffled, rising).verdict == NOT  # the wrong way round
    assert (
        generalises(rising, shuffled, falling, trained=0.8).verdict == NOT
    )  # nothing learned, nothing to lose


def test_means_of_layers_have_their_spread() -> None:
    rows = [
        {"layer": 3, "own": False, "depth": 0} | dict(zip(SCORES, scores, strict=True))
        for scores in ((1.0, 0.0), (0.8, 0.4))
    ]
    [found] = layer_means(pd.DataFrame(rows)).to_dict("records")
    assert found["positional_score"] == pytest.approx(0.9)
    assert found["lean_std"] == pytest.approx(np.std([1.0, 0.4], ddof=1))
    assert lean(pd.DataFrame([found])) == pytest.approx((0.7, 0.3))


@pytest.mark.slow
def test_models_are_measured_and_kept(tmp_path: Path) -> None:
    """The embedded number model on one sequence: a place is found by layers 1 to 4, and followed from there on."""
    found = measure_layer_depths({("number", "7", 5): "number"}, sequences=1, device="cpu", out=tmp_path / "d")
    assert set(found.layers["training"]) == {"7"}
    ends = found.layers.pivot(index="layer", columns="own", values="positional_score")
    assert ends.loc[0, False] == pytest.approx(ends.loc[0, True], abs=1e-5)  # nothing has mixed yet
    assert (ends.loc[1:4] > 0.9).all(axis=None)
    assert (ends.loc[8:, True] < 0.1).all()
    assert ends.loc[8:, False].mean() > 0.5
    assert (found.layers["sequences"] == 1).all()
    how = {"sequences": 1, "device": "cpu", "out": tmp_path / "d"}
    again = measure_layer_depths({("number", "7", 5): "number"}, **how)
    assert again.layers.equals(found.layers)
    with pytest.raises(RunError, match="fingerprints"):
        measure_layer_depths({("number", "7", 5): "letter"}, **how)


def with_enough_draws(run: SwapDepths) -> SwapDepths:
    """The stored run, its five random models taken four times: as many draws as a verdict takes."""
    null = run.null_prompts
    copies = [null.assign(draw=null["draw"] + 5 * k) for k in range(4)]
    return SwapDepths(run.run, run.tables | {"null_prompts": pd.concat(copies, ignore_index=True)})


@pytest.fixture
def swapped(runs: ClaimRuns) -> SwapDepths:
    return with_enough_draws(runs.carried())


def permuted(run: SwapDepths, kind: str, scores: Scores) -> SwapDepths:
    """What the prompt says about the heads that have a class at their layer, changed."""
    rows, heads = run.prompts, run.at()
    chosen = heads[heads["head_class"].isin([kind, "carried"] if kind == "symbolic" else [kind])]
    listed = pd.MultiIndex.from_frame(rows[["layer", "head"]]).isin(
        pd.MultiIndex.from_frame(chosen[["layer", "head"]])
    )
    at_prompt = listed & ~rows["own"] & (rows["depth"] == 0)
    columns = {name: rows[name].mask(at_prompt, value) for name, value in zip(SCORES, scores, strict=True)}
    return SwapDepths(run.run, run.tables | {"prompts": rows.assign(**columns)})


def verdict(claim: str, run: SwapDepths) -> str:
    return judged_on(claim, carried=run, curves=run).verdict


def beside_itself(run: SwapDepths, prompt: Scores, draws: int = 19) -> SwapDepths:
    """Random models with the subject's symbolic heads, which do this with the prompt permuted."""
    heads = run.at()
    symbolic = heads.loc[heads["head_class"].isin(["symbolic", "carried"]), ["layer", "head"]]
    rows = run.prompts[run.prompts["own"] | (run.prompts["depth"] == 0)].merge(symbolic, on=["layer", "head"])
    columns = {name: rows[name].where(rows["own"], value) for name, value in zip(SCORES, prompt, strict=True)}
    null = pd.concat([rows.assign(**columns, draw=draw) for draw in range(draws)], ignore_index=True)
    return SwapDepths(run.run, run.tables | {"null_prompts": null})


def test_carried_heads_are_judged_among_symbolic_ones(swapped: SwapDepths) -> None:
    """The share among heads that could be carried, not how many such heads there are."""
    carried = permuted(swapped, "symbolic", (1.0, 0.0))
    assert verdict("ours-carried", beside_itself(carried, (0.0, 1.0))) == REPRODUCED
    alike = judged_on("ours-carried", carried=beside_itself(carried, (1.0, 0.0)))
    assert (alike.verdict, alike.null.split(",")[0]) == (UNDECIDED, "684 of 684 pure symbolic heads carried")
    assert verdict("ours-carried", beside_itself(carried, (0.0, 1.0), draws=5)) == UNDECIDED
    finding = judged_on("ours-carried", carried=carried)  # four of twenty random models have a symbolic head
    assert finding.verdict == UNDECIDED
    assert finding.null == "4 of 4 pure symbolic heads carried, in the 4 of 20 random models that have any"


def test_carried_heads_are_counted_in_the_prompt(swapped: SwapDepths) -> None:
    assert verdict("ours-carried", swapped) == NOT
    carried = permuted(swapped, "symbolic", (1.0, 0.0))
    assert judged_on("ours-carried", carried=carried).value.startswith("36 of 36 carried")
    follows = permuted(swapped, "symbolic", (0.0, 1.0))
    assert verdict("ours-carried", follows) == NOT
    assert verdict("ours-none-symbolic", follows) == NOT


def test_heads_that_random_models_have_too_are_no_finding(swapped: SwapDepths) -> None:
    """As many positional heads in random models; then in none of them."""
    stay = permuted(swapped, "positional", (1.0, 0.0))
    assert verdict("ours-positional-stay", stay) != REPRODUCED
    none = stay.null_prompts.assign(positional_score=0.5, symbolic_score=0.5)
    alone = SwapDepths(stay.run, stay.tables | {"null_prompts": none})
    assert verdict("ours-positional-stay", alone) == REPRODUCED
    assert verdict("ours-positional-stay", permuted(alone, "positional", (0.5, 0.5))) == NOT


@pytest.mark.parametrize(("depth", "expected"), [(10, REPRODUCED), (7, NOT)])
def test_carry_depths_are_held_against_layers_dealt_anew(
    swapped: SwapDepths, depth: int, expected: str
) -> None:
    """All carried heads turn where many positional heads are, or where there is none."""
    heads = swapped.turns
    swapped.turns = heads.assign(carry_depth=heads["carry_depth"].mask(heads["carry_depth"].notna(), depth))
    assert verdict("ours-carry-depth", swapped) == expected
