"""Verdicts follow from numbers: claims put to made-up runs, and the pinned file to made-up rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rotoscope.experiments.paper_tables import TABLE_1, TABLE_3, beside_table_1
from rotoscope.experiments.roles.geometry import Geometry
from rotoscope.experiments.roles.result import Roles
from rotoscope.ledger.claim import COSTS, NEEDS, Claim
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.verdicts import (
    ALSO_NULL,
    CORRECTED,
    FALSE,
    IN_PART,
    NOT,
    REPRODUCED,
    Finding,
    Found,
    beside,
    goes_beyond,
    judged,
    of_statement,
)
from rotoscope.runs.record import RunRecord
from tests.ledger.pinned import EXPECTED, differences

LAYERS = 6


def roles(arrives: dict[int, list[int]], task: str = "number") -> Roles:
    """A model whose places on the path get the answer before the given layers (by hops, last token first)."""
    arrival = [
        {"hops": hops, "path_index": place, "layer": layer, "accuracy": float(layer >= before)}
        for hops, layers in arrives.items()
        for place, before in enumerate(layers)
        for layer in range(LAYERS + 1)
    ]
    flow = [
        {
            "hops": hops,
            "path_index": place,
            "ahead": hops - place,
            "layer": layer,
            "accuracy": float(layer >= hops),
        }
        for hops, layers in arrives.items()
        for place in range(len(layers))
        for layer in range(LAYERS + 1)
    ]
    attention = [{"layer": layer, "head": 0} for layer in range(LAYERS)]
    tables = {"arrival": arrival, "flow": flow, "attention": attention}
    return Roles(
        RunRecord(settings={"task": task}), {name: pd.DataFrame(rows) for name, rows in tables.items()}
    )


def judged_on(monkeypatch: pytest.MonkeyPatch, claim: str, **runs: Any) -> Finding:
    """A claim on runs of our own making, by the name of the workshop's method."""
    workshop = Workshop(Path("nowhere"), "quick")
    for name, give in runs.items():
        monkeypatch.setattr(workshop, name, give, raising=True)
    return CLAIMS[claim].compute(workshop)


IN_ORDER = {1: [1], 2: [2, 1], 3: [4, 2, 1]}


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        (IN_ORDER, REPRODUCED),
        ({1: [2], 2: [2, 1], 3: [4, 2, 1]}, IN_PART),  # arrives, but two hops as soon as one
        ({1: [1], 2: [2, 1], 3: [4, 1, 2]}, IN_PART),  # arrives, but not along the path in order
        ({1: [1], 2: [2, 1], 3: [LAYERS + 2, 2, 1]}, IN_PART),  # in order, but never arrives
        ({1: [1], 2: [2, 0], 3: [4, 0, 0]}, IN_PART),  # arrives, but no place on the way ever needed it
    ],
)
def test_hop_order_is_more_than_arrival(
    monkeypatch: pytest.MonkeyPatch, number: dict[int, list[int]], verdict: str
) -> None:
    runs = {"number": roles(number), "letter": roles(IN_ORDER, "letter")}
    assert judged_on(monkeypatch, "p2-hop-order", roles=runs.__getitem__).verdict == verdict
    both = {"number": roles(number), "letter": roles(number, "letter")}
    expected = REPRODUCED if verdict == REPRODUCED else NOT
    assert judged_on(monkeypatch, "p2-hop-order", roles=both.__getitem__).verdict == expected


def geometry(task: str, weighted: np.ndarray, products: np.ndarray) -> Geometry:
    """Twelve layers with 64 frequencies whose weights give these weighted-average ids."""
    rows = []
    for layer, (a, b) in enumerate(zip(weighted, products, strict=True)):
        for f in range(1, 65):
            rows.append(
                {
                    "layer": layer,
                    "head": 0,
                    "frequency_id": f,
                    "angle": 1 / f,
                    "max_logit": float(f == round(b)),
                    "weight": float(f == round(a)),
                    "product_weight": float(f == round(b)),
                }
            )
    return Geometry(RunRecord(settings={"task": task}), {"use": pd.DataFrame(rows)})


@pytest.mark.parametrize("task", ["number", "letter"])
def test_table_1_is_judged_by_logits(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """The products before scaling stand beside it; ids that any model gives are no finding."""
    printed = np.array(TABLE_1[task])
    other = np.where(printed < 16, 40, 2)  # the other side of everything
    claim = partial(judged_on, monkeypatch, f"p2-{task}-frequencies")
    found = claim(geometry=lambda _: geometry(task, printed, other))
    assert found.verdict == REPRODUCED
    assert f"unscaled products {', '.join(str(x) for x in other)}" in found.note
    assert claim(geometry=lambda _: geometry(task, other, printed)).verdict == NOT
    assert claim(geometry=lambda _: geometry(task, np.full(12, 32), printed)).verdict == NOT
    near = np.where(np.arange(12) == 0, printed + 6, printed)
    assert claim(geometry=lambda _: geometry(task, near, printed)).verdict == IN_PART


def test_a_run_stands_beside_the_printed_table() -> None:
    own = geometry("letter", np.full(12, 3), np.array(TABLE_1["letter"]) + 1)
    table = beside_table_1(own)
    assert table["paper_id"].tolist() == list(TABLE_1["letter"])
    assert (table["product_weighted_id"] - table["paper_id"]).tolist() == [1.0] * 12
    own.tables["use"] = own.use[own.use["frequency_id"] <= 60]  # a model of another shape
    assert beside_table_1(own)["paper_id"].isna().all()
    assert len(TABLE_3) == 20


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=list(CLAIMS))
def test_what_a_claim_rests_on_follows_from_the_run_it_needs(claim: Claim) -> None:
    need = NEEDS[claim.needs]
    assert claim.cost == need.cost
    for cost, text in zip(COSTS, need.rests_on, strict=True):
        stored = "stored" in text and "this run" not in text
        dearer = need.cost != "endpoint" and COSTS.index(need.cost) > COSTS.index(cost)
        assert stored <= dearer
        assert bool(claim.recompute(cost)) == (dearer or need.cost == "endpoint")
        if dearer:
            assert claim.recompute(cost) == f"rotoscope reproduce {claim.id} --cost {need.cost}"


@pytest.mark.parametrize(
    ("found", "null", "verdict"),
    [
        ((True, False), (False, False), REPRODUCED),
        ((True, False), (False, True), REPRODUCED),
        ((True, False), (True, False), ALSO_NULL),
        ((False, True), (False, False), IN_PART),
        ((False, True), (False, True), ALSO_NULL),
        ((False, False), (True, False), NOT),
    ],
)
def test_models_that_learned_nothing_take_a_verdict_away(
    found: tuple[bool, bool], null: tuple[bool, bool], verdict: str
) -> None:
    ours = beside(Found("1", *found, note="n"), Found("2", *null))
    assert ours == Finding("1", verdict, "2", "n")
    level = 2 if null[0] else int(null[1])
    assert judged(found[0], in_part=found[1], null=level) == verdict


def test_beyond_random_models_is_more_than_above_them() -> None:
    assert goes_beyond(0.9, 0.01, [0.5, 0.52, 0.49, 0.51, 0.5])
    assert not goes_beyond(0.1, 0.01, [0.5, 0.52, 0.49, 0.51, 0.5])  # far off, on the other side
    assert not goes_beyond(0.9, 0.01, [0.5, 0.85, 0.2, 0.7, 0.1])  # within what random models do
    assert not goes_beyond(0.9, 0.01, [0.5])  # one draw confirms nothing


@pytest.mark.parametrize(
    ("outcome", "says", "holds", "verdict"),
    [
        ("holds", "printed", False, REPRODUCED),
        ("holds", "summary", False, REPRODUCED),
        ("holds", "ours", False, CORRECTED),  # what a printed statement becomes
        ("holds as corrected", "printed", True, CORRECTED),
        ("false as printed", "printed", True, FALSE),
        ("false as printed", "summary", True, CORRECTED),  # nobody here has seen it in print
        ("false as printed", "printed", False, NOT),
    ],
)
def test_only_what_is_printed_can_be_false_as_printed(
    outcome: str, says: Any, holds: bool, verdict: str
) -> None:
    assert of_statement(outcome, says, holds) == verdict


def test_who_says_it_stands_in_the_row() -> None:
    assert {claim.says for claim in CLAIMS.values() if claim.paper == "p1"} == {"summary", "ours"}
    assert all(EXPECTED[name]["verdict"] != FALSE for name, claim in CLAIMS.items() if claim.says != "printed")
    assert CLAIMS["p1-vectors"].place == "Fig. 3C (after a summary)"
    assert CLAIMS["p2-discrepancy-symbolic"].place.endswith("(ours, after the paper)")
    assert CLAIMS["p2-shortcuts"].place == "section 4"
    ours = {"theory-index-discrepancy-worst", "theory-retrieval-discrepancy-worst", "p1-canonical-mixed"}
    assert ours <= {name for name, claim in CLAIMS.items() if claim.says == "ours"}


def test_a_number_model_in_the_letter_models_place_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Workshop(Path("nowhere"), "quick")
    number = shop.training("number")
    for claim in ("p2-letter-together", "p2-letter-purity"):
        found = judged_on(
            monkeypatch,
            claim,
            training=lambda task: number,
            dynamics=lambda task: shop.dynamics("number"),
        )
        assert found.verdict == NOT
    assert CLAIMS["p2-letter-together"].compute(shop).verdict == REPRODUCED


@pytest.mark.parametrize("wait", ["p2-number-waits", "p2-letter-waits"])
def test_what_is_waited_for_comes_first(monkeypatch: pytest.MonkeyPatch, wait: str) -> None:
    """Runs whose heads are pure from the first step on, then runs whose heads never are."""
    shop = Workshop(Path("nowhere"), "quick")
    task = wait.split("-")[1]
    runs = shop.dynamics(task)
    for run in runs:
        last = run.scores[run.scores["step"] == run.scores["step"].max()]
        if task == "letter":
            scores = {"positional_score": 0.0, "symbolic_score": 1.0}
        else:
            scores = {"positional_score": last["layer"].lt(6).to_numpy() * 1.0}
            scores["symbolic_score"] = 1.0 - scores["positional_score"]
        run.tables["scores"] = pd.concat(
            [last.assign(step=step, **scores) for step in (0, 22500)], ignore_index=True
        )
    assert judged_on(monkeypatch, wait, dynamics=lambda _: runs).verdict == REPRODUCED
    for run in runs:
        run.tables["scores"] = run.scores.assign(positional_score=0.5, symbolic_score=0.5)
    assert judged_on(monkeypatch, wait, dynamics=lambda _: runs).verdict == NOT


PINNED = {"verdict": REPRODUCED, "our_value": "0.37 [0.19, 0.51]", "null_value": "-0.03 [-0.04, -0.01]"}


@pytest.mark.parametrize(
    ("change", "noticed"),
    [
        ({}, False),
        ({"our_value": "0.38 [0.19, 0.51]"}, False),  # the last place, as on another machine
        ({"our_value": "0.39 [0.19, 0.51]"}, True),
        ({"null_value": "0.03 [-0.04, -0.01]"}, True),
        ({"our_value": "0.37 (0.19, 0.51)"}, True),
        ({"verdict": NOT}, True),
    ],
)
def test_a_changed_value_is_noticed(change: dict[str, str], noticed: bool) -> None:
    assert bool(differences(pd.Series(PINNED | change), PINNED)) == noticed


@pytest.mark.parametrize(
    ("ours", "pinned", "noticed"),
    [
        ("16 decay, 0 stay", "16 decay, 0 stay", False),
        ("15 decay, 0 stay", "16 decay, 0 stay", True),
        ("4,800 of 4,800", "4,800 of 4,799", True),
        ("difference 3e-06", "difference 8e-07", False),
        ("difference 9e-06", "difference 8e-07", True),
        ("at .1 and more", "at .1 and more", False),
        ("at .3 and more", "at .1 and more", True),
    ],
)
def test_numbers_are_compared_as_what_they_are(ours: str, pinned: str, noticed: bool) -> None:
    row = {"verdict": REPRODUCED, "null_value": ""}
    assert bool(differences(pd.Series(row | {"our_value": ours}), row | {"our_value": pinned})) == noticed
