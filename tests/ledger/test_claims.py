"""Verdicts follow from numbers: claims put to made-up runs, and the pinned file to made-up rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rotoscope.experiments.ask.result import TABLE_3
from rotoscope.experiments.roles.result import TABLE_1, Geometry, Roles, beside_table_1
from rotoscope.ledger.claim import COSTS, NEEDS, BesideModels
from rotoscope.ledger.claim_runs import ClaimRuns
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.verdicts import (
    AS_IN_NULL,
    BY_CONSTRUCTION,
    CORRECTED,
    FALSE,
    IN_PART,
    NOT,
    REPRODUCED,
    UNDECIDED,
    Finding,
    Outcome,
    beside,
    beside_draws,
    by_construction,
    judged,
    null_verdict,
    of_statement,
)
from rotoscope.runs.record import RunRecord
from tests.ledger.conftest import judged_on
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
def test_hop_order_is_more_than_arrival(number: dict[int, list[int]], verdict: str) -> None:
    run = roles(number)
    judged_beside = {"roles_number": run, "roles_letter": roles(IN_ORDER, "letter")}
    assert judged_on("p2-hop-order", **judged_beside).verdict == verdict
    both = {"roles_number": run, "roles_letter": roles(number, "letter")}
    expected = REPRODUCED if verdict == REPRODUCED else NOT
    assert judged_on("p2-hop-order", **both).verdict == expected


def test_shortcuts_are_counted_over_all_places() -> None:
    """Most of one model's places are a part, all of them what is claimed; one place alone is neither."""
    run = roles({4: [4, 3, 2, 1]})
    assert judged_on("p2-shortcuts", roles_number=run, roles_letter=run).verdict == NOT
    early = run.flow.assign(accuracy=1.0)
    some = run.tables | {"flow": early.where(early["path_index"] == 0, run.flow)}
    few = judged_on("p2-shortcuts", roles_number=run, roles_letter=Roles(run.run, some))
    assert (few.verdict, "letter 1 of 3 places" in few.value) == (NOT, True)
    more = run.tables | {"flow": early.where(early["path_index"] < 2, run.flow)}
    assert judged_on("p2-shortcuts", roles_number=run, roles_letter=Roles(run.run, more)).verdict == IN_PART
    every = Roles(run.run, run.tables | {"flow": early})
    assert judged_on("p2-shortcuts", roles_number=run, roles_letter=every).verdict == REPRODUCED


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
def test_table_1_is_judged_by_scaled_logits(task: str) -> None:
    """Products before scaling stand beside it; layers whose weights are all but equal have no average."""
    printed = np.array(TABLE_1[task])
    other = np.where(printed < 16, 40, 2)  # the other side of everything

    def finding(weighted: np.ndarray, products: np.ndarray, equal: int = 0) -> Finding:
        run = geometry(task, weighted, products)
        run.tables["use"].loc[run.use["layer"] < equal, "weight"] = 1 / 64
        return judged_on(f"p2-{task}-frequencies", **{f"geometry_{task}": run})

    assert finding(printed, other).verdict == REPRODUCED
    assert f"unscaled products {', '.join(str(x) for x in other)}" in finding(printed, other).note
    assert finding(other, printed).verdict == NOT
    near = np.where(np.arange(12) == 0, printed + 6, printed)
    assert finding(near, printed).verdict == IN_PART
    assert finding(near, printed, equal=1).verdict == REPRODUCED
    assert finding(printed, printed, equal=7).verdict == UNDECIDED


def test_a_run_stands_beside_the_printed_table() -> None:
    own = geometry("letter", np.full(12, 3), np.array(TABLE_1["letter"]) + 1)
    table = beside_table_1(own)
    assert table["paper_id"].tolist() == list(TABLE_1["letter"])
    assert (table["product_weighted_id"] - table["paper_id"]).tolist() == [1.0] * 12
    own.tables["use"] = own.use[own.use["frequency_id"] <= 60]  # a model of another shape
    assert beside_table_1(own)["paper_id"].isna().all()
    assert len(TABLE_3) == 20


def test_what_a_claim_rests_on_follows_from_the_run_it_needs() -> None:
    assert {claim.needs for claim in CLAIMS.values()} == set(NEEDS)
    for claim in CLAIMS.values():
        for cost in COSTS:
            dearer = claim.cost != "endpoint" and COSTS.index(claim.cost) > COSTS.index(cost)
            assert NEEDS[claim.needs].rests_on(cost).startswith("stored") == dearer
            assert bool(claim.recompute(cost)) == (dearer or claim.cost == "endpoint")
            if dearer:
                assert claim.recompute(cost) == f"rotoscope reproduce {claim.id} --cost {claim.cost}"


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ((2, 0), REPRODUCED),
        ((2, 1), REPRODUCED),
        ((2, 2), AS_IN_NULL),
        ((1, 0), IN_PART),
        ((1, 1), AS_IN_NULL),
        ((0, 2), NOT),
    ],
)
def test_models_that_did_not_learn_take_a_verdict_away(levels: tuple[int, int], verdict: str) -> None:
    subject, null = (Outcome(str(level), level == 2, level == 1) for level in levels)
    assert beside(subject, {"twins": null}) == Finding(subject.value, verdict, null.value)
    assert judged(subject.met, in_part=subject.in_part, null=null.level) == verdict
    missing = beside(subject, {"untrained": null, "twins": "twins are not stored yet"})
    assert missing.verdict == (UNDECIDED if verdict in (REPRODUCED, IN_PART) else verdict)
    assert ("not stored" in missing.note) == (missing.verdict == UNDECIDED)


def test_what_cannot_fail_is_not_reproduced() -> None:
    assert by_construction(Outcome("1", True)).verdict == BY_CONSTRUCTION
    assert by_construction(Outcome("1", False)).verdict == NOT
    kinds = {claim.id for claim in CLAIMS.values() if claim.kind == "by construction"}
    assert kinds == {
        "p1-metric",
        "p1-exclusion-heads",
        "p2-tasks",
        "p2-answer-positions",
        "p2-table-3-selection",
    }


def test_claims_about_learning_wait_for_twins(runs: ClaimRuns) -> None:
    """Twins that have learned as much take the verdict away; missing ones leave it undecided."""
    claim = CLAIMS["p2-number-accuracy"]
    runs.nulls[1].home = Path("nowhere")
    assert claim.compute(runs).verdict == UNDECIDED
    for seed, run in enumerate(runs.training("number")):
        runs.nulls[1].opened[f"number-{seed}"] = run
    assert claim.compute(runs).verdict == AS_IN_NULL
    for run in runs.nulls[1].training("number"):
        copy = type(run)(run.run, run.tables | {"test": run.test.assign(accuracy=0.1)})
        runs.nulls[1].opened[f"number-{run.run.settings['seed']}"] = copy
    assert claim.compute(runs).verdict == REPRODUCED
    waiting = {c.id for c in CLAIMS.values() if isinstance(c.compute, BesideModels) and c.compute.twins}
    about_learning = {"training", "roles", "geometry", "lengths"}
    judged_otherwise = {"p2-number-frequencies", "p2-letter-frequencies"}
    needed = {
        c.id for c in CLAIMS.values() if c.needs in about_learning and c.kind not in ("cost", "by construction")
    }
    assert waiting == needed - judged_otherwise - {"p2-tasks", "p2-answer-positions"}


@pytest.mark.parametrize(
    "claim", ["p2-index-heads", "p2-number-flow", "p2-length-number", "p2-number-frequencies"]
)
def test_layers_and_lengths_wait_for_twins(claim: str, runs: ClaimRuns) -> None:
    runs.nulls[1].home = Path("nowhere")
    finding = CLAIMS[claim].compute(runs)
    assert finding.verdict == UNDECIDED
    if claim != "p2-number-frequencies":  # its weights are undefined in most layers
        assert "twins trained on shuffled answers are not stored yet" in finding.note


def test_beyond_a_null_is_more_than_above_it() -> None:
    draws = [0.5 + 0.001 * k for k in range(19)]
    wide = [0.05 * k for k in range(19)]
    assert beside_draws(True, [(0.9, null_verdict(0.9, 0.01, draws))]) == (REPRODUCED, "")
    assert beside_draws(False, [(0.9, null_verdict(0.9, 0.01, draws))])[0] == NOT
    assert (
        beside_draws(True, [(0.1, null_verdict(0.1, 0.01, draws))])[0] == AS_IN_NULL
    )  # far, on the other side
    assert beside_draws(True, [(0.9, null_verdict(0.9, 0.01, wide))])[0] != REPRODUCED
    both = [(0.9, null_verdict(0.9, 0.01, draws)), (0.9, null_verdict(0.9, 0.01, wide))]
    assert beside_draws(True, both)[0] != REPRODUCED  # beyond one null of two


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


def test_a_number_model_in_the_letter_models_place_does_not_pass(runs: ClaimRuns) -> None:
    number = {f"letter_{seed}": run for seed, run in enumerate(runs.training("number"))}
    for claim in ("p2-letter-together", "p2-letter-purity"):
        assert judged_on(claim, **number).verdict == NOT
        look = CLAIMS[claim].look
        assert look is not None
        assert look(runs).level > 0


def test_the_last_symbolic_head_is_waited_for(runs: ClaimRuns) -> None:
    """Runs whose heads are pure from the first step on, then runs whose heads never are."""
    look = CLAIMS["p2-letter-waits"].look
    assert look is not None
    for run in runs.training("letter"):
        last = run.tables["scores"].query("step == step.max()")
        pure = {"positional_score": 0.0, "symbolic_score": 1.0}
        run.tables["scores"] = pd.concat(
            [last.assign(step=step, **pure) for step in (0, 22500)], ignore_index=True
        )
    assert look(runs).met
    for run in runs.training("letter"):
        run.tables["scores"] = run.tables["scores"].assign(positional_score=0.5, symbolic_score=0.5)
    assert look(runs).level == 0


def test_purity_is_judged_when_accuracy_is_best(runs: ClaimRuns) -> None:
    """Heads that are as printed at the best step count, whatever they become later."""
    look = CLAIMS["p2-letter-purity"].look
    assert look is not None
    for run in runs.training("letter"):
        best = run.metrics.groupby("step")["accuracy"].mean().idxmax()
        scores = run.tables["scores"]
        steps = scores["step"].unique()
        best = steps[np.abs(steps - best).argmin()]
        pure = (scores["step"] == best) & (scores["layer"] > 0)
        scores = scores.assign(
            positional_score=np.where(pure, 0.0, 0.5), symbolic_score=np.where(pure, 1.0, 0.5)
        )
        run.tables["scores"] = scores
    assert look(runs).met


def test_alignment_ends_at_the_papers_best_step(runs: ClaimRuns) -> None:
    look = CLAIMS["p2-alignment"].look
    assert look is not None
    value = look(runs).value
    for task, best in (("number", 4800), ("letter", 3400)):
        for run in runs.training(task):
            scores = run.tables["scores"]
            run.tables["scores"] = scores[scores["step"] <= best]
    assert look(runs).value == value


def test_heads_pure_from_one_evaluation_on_are_not_told_apart(runs: ClaimRuns) -> None:
    outcome = CLAIMS["p2-positional-steps"].look
    assert outcome is not None
    assert "50 steps" in outcome(runs).undecided
    nulls = runs.nulls[0]
    assert not outcome(nulls).undecided
    assert outcome(nulls).level == 0


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
