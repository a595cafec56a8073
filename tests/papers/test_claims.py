"""Verdicts follow from numbers: claims put to made-up runs, and the pinned file to made-up rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rotoscope.papers import CLAIMS
from rotoscope.papers.claim import COSTS, DIFFERENT, NEEDS, NOT, REPRODUCED, Claim, Finding
from rotoscope.papers.tables import TABLE_1, TABLE_3, beside_table_1
from rotoscope.papers.workshop import Workshop
from rotoscope.results import Geometry, Ledger, Roles
from rotoscope.results.record import RunRecord
from tests.papers.pinned import EXPECTED, differences

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
        ({1: [2], 2: [2, 1], 3: [4, 2, 1]}, DIFFERENT),  # arrives, but two hops as soon as one
        ({1: [1], 2: [2, 1], 3: [4, 1, 2]}, DIFFERENT),  # arrives, but not along the path in order
        ({1: [1], 2: [2, 1], 3: [LAYERS + 2, 2, 1]}, DIFFERENT),  # in order, but never arrives
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
def test_table_1_is_judged_by_unscaled_products(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    printed = np.array(TABLE_1[task])
    other = np.where(printed < 16, 40, 2)  # the other side of everything
    claim = partial(judged_on, monkeypatch, f"p2-{task}-frequencies")
    assert claim(geometry=lambda _: geometry(task, other, printed)).verdict == REPRODUCED
    assert claim(geometry=lambda _: geometry(task, printed, other)).verdict == NOT
    assert claim(geometry=lambda _: geometry(task, other, printed + 6)).verdict in (DIFFERENT, NOT)


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


def test_older_ledgers_open_and_render(tmp_path: Path) -> None:
    """What 0.1.0 calls `anew` is `recompute` now."""
    row = dict.fromkeys(("id", "paper", "place", "statement", "paper_value", "our_value", "null_value"), "x")
    row |= {
        "verdict": REPRODUCED,
        "judged": "x",
        "note": "",
        "rests_on": "x",
        "command": "x",
        "anew": "again",
        "cost": "cpu",
    }
    Ledger(RunRecord(), {"ledger": pd.DataFrame([row])}).save(tmp_path / "old")
    opened = Ledger.open(tmp_path / "old")
    assert opened.rows["recompute"].tolist() == ["again"]
    assert "1 claims: 1 reproduced" in opened.markdown()
    assert opened.report(tmp_path / "old.html").is_file()


PINNED = EXPECTED["p1-depth-positional"]


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
    assert PINNED["our_value"] == "0.37 [0.19, 0.51]"
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
