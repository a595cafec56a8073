"""The ledger: complete, computed, and fixed until someone changes it on purpose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RotoscopeError
from rotoscope.experiments.ask.result import OneHopRun, answer_row, answers_table
from rotoscope.lab.settings import TrainSettings
from rotoscope.ledger import claim_runs, ours_depths, p2_layers, p2_learning, p2_lengths
from rotoscope.ledger.claim import KINDS, Claim, Ledger
from rotoscope.ledger.claim_runs import ClaimRuns
from rotoscope.ledger.judge import CLAIMS, THEORY, chosen, reproduce
from rotoscope.ledger.verdicts import CORRECTED, FALSE, IN_PART, NOT, REPRODUCED, VERDICTS, Finding
from rotoscope.runs.record import RunRecord
from rotoscope.tasks.onehop import Question
from tests.ledger.pinned import EXPECTED, differences

ROOT = Path(__file__).parents[2]
COLUMNS = ["id", "paper", "statement", "paper_value", "our_value", "null_value", "verdict", "command"]


@pytest.fixture(scope="module", params=["light", pytest.param("whole", marks=pytest.mark.slow)])
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """All rows at quick cost; the theorems are checked elsewhere, and by the slow tests."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "light":
            only(patch, [claim for claim in CLAIMS.values() if claim not in THEORY])
        return reproduce(cost="quick", out=tmp_path_factory.mktemp("papers") / "ledger", device="cpu")


def wanted(ledger: Ledger) -> set[str]:
    """The claims that a ledger must have."""
    rest = {claim.id for claim in THEORY}
    return set(CLAIMS) - rest if len(ledger.rows) < len(CLAIMS) else set(CLAIMS)


def test_the_ledger_is_complete(ledger: Ledger) -> None:
    assert set(ledger.rows["id"]) == wanted(ledger)
    assert len(ledger.rows) >= 20
    assert set(COLUMNS) <= set(ledger.rows)
    assert set(ledger.rows["verdict"]) <= set(VERDICTS)
    assert set(ledger.rows["kind"]) <= set(KINDS)
    run = ledger.rows[ledger.rows["verdict"] != "not run here"]
    assert (run["our_value"].str.len() > 0).all()
    assert set(ledger.rows["paper"]) == {CLAIMS[name].paper for name in wanted(ledger)}


def test_no_verdict_and_no_value_changes_unnoticed(ledger: Ledger) -> None:
    """Change tests/ledger/expected.json only when a row is meant to change."""
    assert EXPECTED.keys() >= set(CLAIMS)
    rows = ledger.rows.set_index("id")
    changed = {name: differences(rows.loc[name], EXPECTED[name]) for name in wanted(ledger)}
    assert {name: found for name, found in changed.items() if found} == {}


def test_files_of_the_ledger(ledger: Ledger, tmp_path: Path) -> None:
    text = ledger.markdown()
    assert text.count("\n| ") == len(ledger.rows) + 1
    assert f"{len(ledger.rows)} claims" in text
    assert f"{(ledger.rows['kind'] == 'empirical').sum()} empirical claims of the papers: " in text
    changes = ledger.changes()
    assert (changes["was"] != changes["verdict"]).all()
    assert (changes["restated"].str.len() > 0).all()


def only(monkeypatch: pytest.MonkeyPatch, claims: list[Claim]) -> None:
    """A ledger of these claims alone."""
    for name in list(CLAIMS):
        monkeypatch.delitem(CLAIMS, name)
    for claim in claims:
        monkeypatch.setitem(CLAIMS, claim.id, claim)


TINY = {
    "width": 16,
    "steps": 20,
    "batch": 32,
    "train_sequences": 640,
    "validation_sequences": 200,
    "test_sequences": 400,
    "watch_every": 10,
    "positions": 850,
}


def trained_again(monkeypatch: pytest.MonkeyPatch, place: Path, claims: list[Claim]) -> pd.DataFrame:
    """The rows of a stand-in that was trained for a moment on a CPU."""
    monkeypatch.setitem(TrainSettings.presets, "paper", TINY)
    only(monkeypatch, claims)
    monkeypatch.setattr(claim_runs, "LENGTH_INPUTS", 8)
    monkeypatch.setattr(claim_runs, "SEEDS", 1)
    rows = reproduce(cost="gpu", out=place, device="cpu").rows.set_index("id")
    assert (rows["command"] == [f"rotoscope reproduce {name} --cost gpu" for name in rows.index]).all()
    assert (rows["rests_on"][rows["our_value"] != ""] == "computed by this run").sum() > 1
    return rows


@pytest.mark.slow
def test_at_gpu_cost_the_models_are_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's own figures stand in the rows, and what it did not learn shows."""
    rows = trained_again(monkeypatch, tmp_path / "ledger", p2_learning.CLAIMS)
    assert float(rows.loc["p2-number-accuracy", "our_value"].split()[0]) < 0.5
    assert rows.loc["p2-number-accuracy", "verdict"] == NOT
    assert rows.loc["p2-cost-training", "our_value"].endswith("for both models of 2 trained as one on cpu")


@pytest.mark.slow
def test_layers_and_lengths_of_models_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [claim for claim in ours_depths.CLAIMS if claim.needs == "depths"]
    rows = trained_again(monkeypatch, tmp_path / "ledger", [*p2_layers.CLAIMS, *p2_lengths.CLAIMS, *ours])
    assert (rows["verdict"] == "not run here").sum() == 2
    untrained = [
        "p2-index-heads",
        "p2-hop-order",
        "p2-number-flow",
        "p2-length-number",
        "ours-number-own-layer",
    ]
    assert set(rows.loc[untrained, "verdict"]) == {NOT}
    assert rows.loc["p2-length-letter", "our_value"].startswith("0.0")


def one_hop_run(place: Path, number: dict[int, float], letter: dict[int, float], questions: int = 100) -> Path:
    """A finished run of one-hop questions with these accuracies by length."""
    rows = []
    for task, found in (("number", number), ("letter", letter)):
        for length, accuracy in found.items():
            for k in range(questions):
                question = Question(task, length, k, ("a", "b"), "", "a", "")
                answered = "a" if k < accuracy * questions else "b"
                rows.append(answer_row(0, question, answered, "answered"))
    OneHopRun(RunRecord(settings={"model": "some model"}), {"answers": answers_table(rows)}).save(place)
    return place


def test_table_3_is_judged_on_runs_of_your_own(tmp_path: Path) -> None:
    def verdicts(*runs: Path) -> list[str]:
        judged_on = ClaimRuns(tmp_path, one_hop=runs)
        return [CLAIMS[f"p2-table-3-{task}"].compute(judged_on).verdict for task in ("number", "letter")]

    as_said = one_hop_run(tmp_path / "a", {12: 0.9, 16: 0.8, 300: 0.1}, {12: 0.9, 16: 0.9, 300: 0.5})
    otherwise = one_hop_run(tmp_path / "b", {12: 0.9, 16: 0.8, 300: 0.9}, {12: 0.9, 16: 0.9, 300: 0.9})
    unselected = one_hop_run(tmp_path / "c", {12: 0.9, 300: 0.1}, {12: 0.9, 16: 0.3, 300: 0.5})
    assert verdicts() == verdicts(unselected) == ["not run here"] * 2
    assert verdicts(as_said) == verdicts(as_said, unselected) == [REPRODUCED] * 2
    assert verdicts(otherwise) == [NOT] * 2
    assert verdicts(as_said, otherwise) == [IN_PART] * 2


def test_verdicts_follow_from_numbers(runs: ClaimRuns) -> None:
    """Other numbers, another verdict: the accuracy of one seed spoiled, then of all."""
    look = CLAIMS["p2-letter-accuracy"].look
    assert look is not None
    assert look(runs).met
    trained = runs.training("letter")
    trained[1].tables["test"] = trained[1].test.assign(accuracy=0.9)
    assert look(runs).level == 1
    for run in trained:
        run.tables["test"] = run.test.assign(accuracy=0.9)
    assert look(runs).level == 0


def test_a_restriction_is_judged_by_every_seed_beside_unrestricted_ones(runs: ClaimRuns) -> None:
    claim, table = CLAIMS["ours-number-fast-mini"], runs.restricted("mini").accuracy
    assert claim.compute(runs).verdict == REPRODUCED
    number, slow = table["task"] == "number", table["restriction"] == "slow"
    table.loc[number & slow & (table["hops"] == 1) & (table["seed"] == 2), "accuracy"] = 0.6
    assert claim.compute(runs).verdict == IN_PART
    table.loc[number & ~slow, "accuracy"] = 0.9
    assert claim.compute(runs).verdict == NOT


def test_a_theorem_that_fails_is_not_reproduced(runs: ClaimRuns) -> None:
    row = {"verdict": "false as printed", "figure": "0.1", "correction": "c", "counterexample": "x"}
    table = pd.DataFrame([row | {"name": name, "correction_holds": False} for name in ("t-index", "exclusion")])
    run = rs.experiments.TheoryRun(RunRecord(), {"statements": table})
    runs.opened |= {"theory-t-index": run, "theory-exclusion": run}
    assert CLAIMS["theory-t-index"].compute(runs).verdict == NOT
    table["correction_holds"] = True
    finding = CLAIMS["theory-t-index"].compute(runs)
    assert finding.verdict == FALSE
    assert "instead: c" in finding.note
    assert CLAIMS["theory-exclusion"].compute(runs).verdict == CORRECTED  # P1's, and known from a summary


BARE: Any = {"paper": "p1", "needs": "sequences", "says": "summary", "kind": "empirical"} | dict.fromkeys(
    ("section", "statement", "paper_value", "rule", "reason"), ""
)


def test_an_interrupted_reproduction_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    calls: list[str] = []

    def counted(name: str, fail: bool):
        def compute(runs: ClaimRuns) -> Finding:
            calls.append(name)
            if fail:
                raise KeyboardInterrupt
            return Finding("1", REPRODUCED)

        return compute

    def claims(second_fails: bool) -> list[Claim]:
        return [
            Claim(id=name, compute=counted(name, fails), **BARE)
            for name, fails in (("one", False), ("two", second_fails))
        ]

    only(monkeypatch, claims(True))
    with pytest.raises(KeyboardInterrupt):
        reproduce(out=tmp_path / "l")
    only(monkeypatch, claims(False))
    assert len(reproduce(out=tmp_path / "l").rows) == 2
    assert calls == ["one", "two", "two"]


@pytest.mark.parametrize(
    "name",
    ["p1-exclusion-heads", "p2-number-order", "p2-index-geometry", "ours-letter-fact", "theory-separation"],
)
def test_a_claim_computes_what_it_needs_and_no_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No weights are read, no other statement is checked, and few files are entered."""
    monkeypatch.setattr("rotoscope.ledger.claim_runs.load", None)
    entered = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{ROOT}/rotoscope/"):
            entered.add(frame.f_code.co_filename)

    CLAIMS[name].compute(ClaimRuns(tmp_path))  # imports come first, and are left out
    sys.setprofile(note)
    reproduce(name, out=tmp_path / name, show_progress=False)
    sys.setprofile(None)
    assert len(entered) <= 23 - 6  # the command itself enters six more


def test_names_of_claims() -> None:
    assert sum(len(chosen(paper)) for paper in ("p1", "p2", "ours")) == len(chosen()) == len(CLAIMS)
    with pytest.raises(RotoscopeError, match="did you mean 'p2-number-order'"):
        chosen("p2-number-oder")
    with pytest.raises(RotoscopeError, match="unknown cost"):
        reproduce(cost="free", out="nowhere")  # type: ignore[arg-type]


def test_the_documentation_shows_the_ledger_as_it_stands() -> None:
    expected = {name: row["verdict"] for name, row in EXPECTED.items()}
    assert set(expected) == set(CLAIMS)
    page = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    tables = page.partition("<!-- ledger -->")[2].partition("<!-- end of ledger -->")[0]
    rows = [line.strip("| ").split(" | ") for line in tables.splitlines() if line.count(" | ") >= 2]
    assert {row[0]: row[1] for row in rows if row[0] != "claim"} == expected
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for kind, title in KINDS.items():
        count = sum(claim.kind == kind for claim in CLAIMS.values())
        assert f"{count} {title}" in readme
