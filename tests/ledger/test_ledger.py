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
from rotoscope.ledger import claim_runs as workshop
from rotoscope.ledger import costs
from rotoscope.ledger import ours_depths as depths
from rotoscope.ledger import p1_models as models
from rotoscope.ledger import p2_layers as layers
from rotoscope.ledger import p2_learning as learning
from rotoscope.ledger import p2_lengths as lengths
from rotoscope.ledger.claim import Claim
from rotoscope.ledger.claim_runs import Workshop
from rotoscope.ledger.judge import CLAIMS, chosen, reproduce
from rotoscope.ledger.result import Ledger
from rotoscope.ledger.verdicts import ALSO_NULL, CORRECTED, FALSE, IN_PART, NOT, REPRODUCED, VERDICTS, Finding
from rotoscope.runs.record import RunRecord
from rotoscope.tasks.onehop import Question
from tests.ledger.pinned import EXPECTED, differences
from tests.tiny_models import tiny

ROOT = Path(__file__).parents[2]
COLUMNS = ["id", "paper", "statement", "paper_value", "our_value", "null_value", "verdict", "command"]


HEAVY = {claim.id for claim in (*models.CLAIMS, *depths.CLAIMS)} | {
    name for name in CLAIMS if name.startswith("theory-")
}
"""Claims on SmolLM2, on swaps at depths and on the theorems; the quick tests compute them elsewhere, on less."""


LIGHT = [claim for claim in CLAIMS.values() if claim.id not in HEAVY]


@pytest.fixture(scope="module", params=["light", pytest.param("whole", marks=pytest.mark.slow)])
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "light":
            only(patch, LIGHT)
        return reproduce(cost="quick", out=tmp_path_factory.mktemp("papers") / "ledger", device="cpu")


def wanted(ledger: Ledger) -> set[str]:
    """The claims that a ledger must have."""
    light = {claim.id for claim in LIGHT}
    return light if len(ledger.rows) == len(light) else set(CLAIMS)


def test_the_ledger_is_complete(ledger: Ledger) -> None:
    assert set(ledger.rows["id"]) == wanted(ledger)
    assert len(ledger.rows) >= 20
    assert set(COLUMNS) <= set(ledger.rows)
    assert set(ledger.rows["verdict"]) <= set(VERDICTS)
    assert (ledger.rows["verdict"] == "not run here").sum() <= 5
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


@pytest.mark.slow
def test_a_row_can_be_run_by_itself(ledger: Ledger, tmp_path: Path) -> None:
    for name in ("p2-number-order", "p2-index-geometry"):
        alone = reproduce(name, out=tmp_path / name, device="cpu")
        whole = ledger.rows.set_index("id").loc[name]
        assert alone.rows["our_value"].tolist() == [whole["our_value"]]
        assert alone.rows["verdict"].tolist() == [whole["verdict"]]
        assert whole["command"] == f"rotoscope reproduce {name} --cost quick"
        table = pd.read_parquet(tmp_path / name / "ledger.parquet")
        assert table["id"].tolist() == [name]
        assert (tmp_path / name / "ledger.md").is_file()


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
    monkeypatch.setattr(workshop, "LENGTH_INPUTS", 8)
    monkeypatch.setattr(workshop, "SEEDS", 1)
    rows = reproduce(cost="gpu", out=place, device="cpu").rows.set_index("id")
    assert (rows["command"] == [f"rotoscope reproduce {name} --cost gpu" for name in rows.index]).all()
    made = rows["rests_on"][rows["our_value"] != ""].drop(index="p2-table-3-selection", errors="ignore")
    assert made.str.contains("this run").all()
    return rows


@pytest.mark.slow
def test_at_gpu_cost_the_models_are_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's own figures stand in the rows, and what it did not learn shows."""
    rows = trained_again(monkeypatch, tmp_path / "ledger", [*learning.CLAIMS, *costs.CLAIMS])
    assert float(rows.loc["p2-number-accuracy", "our_value"].split()[0]) < 0.5
    assert rows.loc["p2-number-accuracy", "verdict"] == NOT
    assert rows.loc["p2-cost-training", "our_value"].endswith("for both models of 2 trained as one on cpu")


@pytest.mark.slow
def test_layers_and_lengths_of_models_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [claim for claim in depths.CLAIMS if claim.needs == "depths"]
    rows = trained_again(monkeypatch, tmp_path / "ledger", [*layers.CLAIMS, *lengths.CLAIMS, *ours])
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gemma2", "gemma-2-2b-it"),
        pytest.param("qwen2", "Qwen2-1.5B", marks=pytest.mark.slow),
        pytest.param("llama", "Llama-3.2-1B", marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("few")
def test_the_papers_own_models_can_be_given(kind: str, name: str, smollm2: rs.Subject, tmp_path: Path) -> None:
    """Tiny models of their architectures: claims about language models are judged, and none called another model's."""
    model = tiny(kind, vocab_size=len(smollm2.tokenizer), max_position_embeddings=2048)
    model.save_pretrained(tmp_path / name)
    smollm2.tokenizer.save_pretrained(tmp_path / name)
    shop = Workshop(tmp_path / "ledger", "quick", tmp_path / name, device="cpu")
    for claim in models.CLAIMS if kind != "gemma2" else [c for c in models.CLAIMS if c.needs == "profile"]:
        found = claim.compute(shop)
        assert found.verdict in VERDICTS, claim.id
        assert "another model" not in found.note
        assert not found.note or name in found.note
        assert claim.command("quick", str(tmp_path / name)).endswith(f"--model {tmp_path / name}")


def asked(place: Path, number: dict[int, float], letter: dict[int, float], questions: int = 100) -> Path:
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
        workshop = Workshop(tmp_path, "quick", one_hop=runs)
        return [CLAIMS[f"p2-table-3-{task}"].compute(workshop).verdict for task in ("number", "letter")]

    as_said = asked(tmp_path / "a", {12: 0.9, 16: 0.8, 300: 0.1}, {12: 0.9, 16: 0.9, 300: 0.5})
    otherwise = asked(tmp_path / "b", {12: 0.9, 16: 0.8, 300: 0.9}, {12: 0.9, 16: 0.9, 300: 0.9})
    unselected = asked(tmp_path / "c", {12: 0.9, 300: 0.1}, {12: 0.9, 16: 0.3, 300: 0.5})
    assert verdicts() == verdicts(unselected) == ["not run here"] * 2
    assert verdicts(as_said) == verdicts(as_said, unselected) == [REPRODUCED] * 2
    assert verdicts(otherwise) == [NOT] * 2
    assert verdicts(as_said, otherwise) == [IN_PART] * 2


def test_verdicts_follow_from_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other numbers, another verdict: the accuracy of one seed spoiled, then of all."""
    workshop = Workshop(Path("nowhere"), "quick")
    claim = CLAIMS["p2-letter-accuracy"]
    assert claim.compute(workshop).verdict == REPRODUCED
    runs = workshop.training("letter")
    runs[1].tables["test"] = runs[1].test.assign(accuracy=0.9)
    assert claim.compute(workshop).verdict == IN_PART
    for run in runs:
        run.tables["test"] = run.test.assign(accuracy=0.9)
    assert claim.compute(workshop).verdict == NOT


def test_a_restriction_is_judged_by_every_seed_beside_unrestricted_ones() -> None:
    workshop = Workshop(Path("nowhere"), "quick")
    claim, table = CLAIMS["ours-number-fast-mini"], workshop.restricted("mini").accuracy
    assert claim.compute(workshop).verdict == REPRODUCED
    number, slow = table["task"] == "number", table["restriction"] == "slow"
    table.loc[number & slow & (table["hops"] == 1) & (table["seed"] == 2), "accuracy"] = 0.6
    assert claim.compute(workshop).verdict == IN_PART
    table.loc[number & ~slow, "accuracy"] = 0.9
    assert claim.compute(workshop).verdict == NOT


@pytest.mark.parametrize(
    ("value", "null", "verdict"), [(-0.95, -0.5, REPRODUCED), (-0.85, -0.97, ALSO_NULL), (-0.5, 0.0, NOT)]
)
def test_beyond_the_null_means_further_the_way_that_is_said(value: float, null: float, verdict: str) -> None:
    shop = Workshop(Path("nowhere"), "quick", rs.load((tiny("llama"), None), name="any"))
    row = {"value": value, "low": value, "high": value, "null_value": null, "null_low": null, "null_high": null}
    shop.statistics = lambda _: pd.DataFrame([row | {"verdict": "beyond the null"}], index=["correlation"])
    assert CLAIMS["p1-anticorrelation"].compute(shop).verdict == verdict


def test_a_theorem_that_fails_is_not_reproduced() -> None:
    workshop = Workshop(Path("nowhere"), "quick")
    row = {
        "name": "t-index",
        "verdict": "false as printed",
        "figure": "0.1",
        "correction": "c",
        "correction_holds": False,
        "counterexample": "x",
    }
    run = rs.experiments.TheoryRun(RunRecord(), {"statements": pd.DataFrame([row])})
    workshop.theory = lambda _: run
    assert CLAIMS["theory-t-index"].compute(workshop).verdict == NOT
    run.tables["statements"]["correction_holds"] = True
    finding = CLAIMS["theory-t-index"].compute(workshop)
    assert finding.verdict == FALSE
    assert "instead: c" in finding.note
    run.tables["statements"]["name"] = "exclusion"  # which is P1's, and known from a summary
    assert CLAIMS["theory-exclusion"].compute(workshop).verdict == CORRECTED


BARE: Any = {"paper": "p1", "needs": "sequences", "says": "summary", "learned": False} | dict.fromkeys(
    ("where", "statement", "paper_value", "rule", "reason"), ""
)


def test_an_interrupted_reproduction_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    calls: list[str] = []

    def counted(name: str, fail: bool):
        def compute(workshop: Workshop) -> Finding:
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
    monkeypatch.setattr("rotoscope.ledger.language_runs.load", None)
    entered = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{ROOT}/rotoscope/"):
            entered.add(frame.f_code.co_filename)

    CLAIMS[name].compute(Workshop(tmp_path, "quick"))  # imports come first, and are left out
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
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.count(" | ") >= 7]
    assert {row[0]: row[1] for row in rows if row[0] != "claim"} == expected
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"judges {len(expected)} claims" in readme
    for verdict, count in pd.Series(expected).value_counts().items():
        assert f"{count} {verdict}" in readme
