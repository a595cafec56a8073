"""Rows of our own: verdicts on made-up layers and on the stored runs, changed on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.ledger import ours_depths as depths
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.depth_runs import LayerDepths, layer_means, lean, measure_layer_depths
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.language_runs import STORED
from rotoscope.ledger.verdicts import ALSO_NULL, IN_PART, NOT, REPRODUCED, Finding
from rotoscope.runs.record import RunRecord
from rotoscope.stats.aggregate import SCORES
from tests.ledger.pinned import EXPECTED

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
    """Five random models that differ a little."""
    draws = [model(task, "", dict.fromkeys(range(12), (scores[0] + k / 100, scores[1]))) for k in range(5)]
    return pd.concat([draw.assign(draw=k) for k, draw in enumerate(draws)], ignore_index=True)


def asked(claim: str, *models: pd.DataFrame, null: pd.DataFrame | None = None, accuracy: Any = None) -> Finding:
    shop = Workshop(Path("nowhere"), "quick")
    tables = {"layers": pd.concat(models, ignore_index=True), "null": null, "accuracy": accuracy}
    shop.depths = LayerDepths(RunRecord(), {name: table for name, table in tables.items() if table is not None})
    return CLAIMS[claim].compute(shop)


LATE = dict.fromkeys(range(7, 12), PLACE)


@pytest.mark.parametrize(
    ("second", "null", "verdict"),
    [
        (LATE, (0.4, 0.6), REPRODUCED),
        (LATE | {9: TOKEN}, (0.4, 0.6), IN_PART),
        (dict.fromkeys((7, 8), PLACE), (0.4, 0.6), NOT),
        (LATE, (0.88, 0.1), ALSO_NULL),
    ],
)
def test_the_place_is_followed_in_every_layer_of_every_training(
    second: dict[int, Scores], null: Scores, verdict: str
) -> None:
    """One training is as said; the other decides, and so do random models."""
    models = [model("number", "0", LATE), model("number", "1", second)]
    found = asked("ours-number-place", *models, null=random("number", null))
    assert found.verdict == verdict
    assert "seed 0: 5 of 5 layers, lean 0.80" in found.value


@pytest.mark.parametrize(
    ("second", "null", "verdict"),
    [
        ({}, (0.4, 0.6), REPRODUCED),
        ({11: PLACE}, (0.4, 0.6), IN_PART),
        (dict.fromkeys(range(6), PLACE), (0.4, 0.6), NOT),
        ({11: PLACE}, (0.1, 0.9), ALSO_NULL),
    ],
)
def test_the_token_is_followed_down_to_the_prompt(
    second: dict[int, Scores], null: Scores, verdict: str
) -> None:
    models = [model("letter", "0", {}), model("letter", "1", second)]
    assert asked("ours-letter-fact", *models, null=random("letter", null)).verdict == verdict


def test_purity_at_the_own_layer_is_asked_of_every_training() -> None:
    pure, other = model("number", "0", LATE), model("number", "1", LATE)
    assert asked("ours-number-own-layer", pure, other).verdict == REPRODUCED
    other.loc[other["own"] & (other["layer"] == 9), "positional_score"] = 0.2
    assert asked("ours-number-own-layer", pure, other).verdict == IN_PART
    other.loc[other["own"], "positional_score"] = 0.2
    assert asked("ours-number-own-layer", pure, other).verdict == NOT


def generalises(prompt: list[float], own: list[float], longer: list[float], trained: float = 1.0) -> Finding:
    """Trainings with these mean scores and accuracies on longer inputs."""
    models, accuracy = [], []
    for k, (p, o, a) in enumerate(zip(prompt, own, longer, strict=True)):
        models.append(model("number", str(k), dict.fromkeys(range(12), (p, 0.5)), own=(o, 0.5)))
        for length, share in ((17, trained), (25, 0.5), (50, a), (100, a), (200, 0.5)):
            accuracy.append(
                {"task": "number", "training": str(k), "step": 9, "length": length, "accuracy": share}
            )
    return asked("ours-length", *models, accuracy=pd.DataFrame(accuracy))


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
    again = measure_layer_depths({("number", "7", 5): "nowhere"}, sequences=1, out=tmp_path / "d")
    assert again.layers.equals(found.layers)


@pytest.fixture
def shop(smollm2: rs.Subject) -> Workshop:
    """A workshop on the stored run of SmolLM2."""
    found = Workshop(Path("nowhere"), "quick")
    found.subject = smollm2
    found.carried = found.curves = SwapDepths.open(STORED / "language" / "depths")
    return found


def verdict(shop: Workshop, claim: str) -> str:
    return CLAIMS[claim].compute(shop).verdict


def permuted(shop: Workshop, kind: str, scores: Scores) -> None:
    """What the prompt says about the heads that have a class at their layer, changed."""
    run, rows = shop.carried, shop.carried.prompts
    heads = run.at()
    of_kind = heads[heads["head_class"].isin([kind, "carried"] if kind == "symbolic" else [kind])]
    chosen = pd.MultiIndex.from_frame(rows[["layer", "head"]]).isin(
        pd.MultiIndex.from_frame(of_kind[["layer", "head"]])
    )
    here = chosen & ~rows["own"] & (rows["depth"] == 0)
    changed = rows.assign(
        **{name: rows[name].mask(here, value) for name, value in zip(SCORES, scores, strict=True)}
    )
    shop.carried = SwapDepths(run.run, run.tables | {"prompts": changed})


def test_the_stored_runs_give_the_rows_that_are_pinned(shop: Workshop) -> None:
    """The whole rows are computed by the slow tests; here what needs no model."""
    shop.depths = LayerDepths.open(STORED / "depths")
    for name in ("ours-number-place", "ours-letter-fact", "ours-none-symbolic", "ours-positional-stay"):
        assert verdict(shop, name) == EXPECTED[name]["verdict"]


def test_carried_heads_are_counted_in_the_prompt(shop: Workshop) -> None:
    """Random models have next to no symbolic heads, and of these the null says nothing: no verdict beyond it."""
    assert verdict(shop, "ours-carried") == NOT
    permuted(shop, "symbolic", (1.0, 0.0))
    found = CLAIMS["ours-carried"].compute(shop)
    assert found.value.startswith("36 of 36 carried")
    permuted(shop, "symbolic", (0.0, 1.0))
    assert verdict(shop, "ours-carried") == NOT
    assert verdict(shop, "ours-none-symbolic") == NOT


def test_heads_that_random_models_have_too_are_no_finding(shop: Workshop) -> None:
    """As many positional heads in random models; then in none of them."""
    permuted(shop, "positional", (1.0, 0.0))
    assert verdict(shop, "ours-positional-stay") == ALSO_NULL
    run = shop.carried
    none = run.null_prompts.assign(positional_score=0.5, symbolic_score=0.5)
    shop.carried = SwapDepths(run.run, run.tables | {"null_prompts": none})
    assert verdict(shop, "ours-positional-stay") == REPRODUCED
    permuted(shop, "positional", (0.5, 0.5))
    assert verdict(shop, "ours-positional-stay") == NOT


@pytest.mark.parametrize(("depth", "expected"), [(10, REPRODUCED), (7, NOT)])
def test_carry_depths_are_held_against_layers_dealt_anew(shop: Workshop, depth: int, expected: str) -> None:
    """All carried heads turn where many positional heads are, or where there is none."""
    heads = shop.curves.turns
    shop.curves.turns = heads.assign(carry_depth=heads["carry_depth"].mask(heads["carry_depth"].notna(), depth))
    assert verdict(shop, "ours-carry-depth") == expected
