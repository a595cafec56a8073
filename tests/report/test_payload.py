"""What the page is made of: true to the tables; a damaged run is refused."""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.experiments.canonical.result import Canonical
from rotoscope.experiments.gate.result import Gating
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.experiments.lengths.run import stored_lengths
from rotoscope.experiments.page_data import clean, packed, table
from rotoscope.experiments.profile.examples import shares_of
from rotoscope.experiments.registry import result_class, result_kinds
from rotoscope.experiments.theory.run import TheoryRun
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.lab.checkpoints import Training
from rotoscope.report.page import run_payload
from rotoscope.runs.files import write_table
from rotoscope.runs.record import RunRecord, described_checksum
from rotoscope.runs.run import Run
from rotoscope.scores.classes import CLASSES
from tests.tiny_models import tiny, tokens

KEYS = {"name", "kind", "title", "complete", "problems", "settings", "versions", "warnings", "timings", "tabs"}


def strict(payload: dict[str, Any]) -> dict[str, Any]:
    """Through JSON and back: anything but plain numbers, text and null would fail here."""
    assert set(payload) >= KEYS
    return json.loads(json.dumps(payload, allow_nan=False))


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    raw = base64.b64decode(packed["data"])
    codes = np.frombuffer(raw, "<u2" if packed["bits"] == 16 else "u1").astype(float)
    codes[codes == 2 ** packed["bits"] - 1] = np.nan
    return packed["low"] + packed["step"] * codes


@pytest.fixture(scope="module")
def whole(saved: Path) -> dict[str, Any]:
    return strict(run_payload(saved))


def edit_run(folder: Path, **changes: Any) -> None:
    run = json.loads((folder / "run.json").read_text()) | changes
    (folder / "run.json").write_text(json.dumps(run | {"checksum": described_checksum(run)}))


def test_known_scores_are_those_of_the_table(profile: rs.Profile, whole: dict[str, Any]) -> None:
    shown, scores = whole["tabs"]["overview"]["known"], profile.known_heads
    assert list(shown) == ["previous_token", "duplicate_token", "induction", "copying", "delimiter", "sink"]
    assert shown["induction"] == pytest.approx(scores["induction"].tolist(), abs=1e-4)
    assert shown["delimiter"] == [None] * 12
    tables = {one["title"]: one for one in whole["tabs"]["tables"]["tables"]}
    kinds = next(one for title, one in tables.items() if title.startswith("Heads of known kinds by class"))
    assert kinds["columns"][0] == profile.known_overview()["known_type"].tolist()
    assert not {"known heads", "null known heads"} & set(tables)


def test_heads_are_those_of_the_table(profile: rs.Profile, saved: Path) -> None:
    payload = strict(run_payload(saved))
    tab = payload["tabs"]["overview"]
    assert payload["problems"] == []
    assert (payload["kind"], payload["name"], payload["complete"]) == ("profile", "tiny", True)
    assert tab["taus"] == [1e-4, 1e-2]
    for tau, now in zip(tab["taus"], tab["at"], strict=True):
        heads = profile.at(tau)
        assert tab["layer"] == heads["layer"].tolist()
        assert tab["head"] == heads["head"].tolist()
        for name in ("positional_score", "symbolic_score_low", "centred_positional_score_high", "entropy",
                     "effective_swaps", "class_stability"):  # fmt: skip
            np.testing.assert_allclose(now[name], heads[name], atol=6e-5)
        assert [CLASSES[code] for code in now["head_class"]] == heads["head_class"].tolist()
        shown = pd.DataFrame(now["statistics"])
        expected = profile.statistics(tau)
        for name in ("verdict", "reason", "null_draws"):
            assert shown[name].tolist() == expected[name].tolist()
        np.testing.assert_allclose(shown["null_high"].astype(float), expected["null_high"], atol=6e-5)
        null = profile.nulls[profile.nulls["tau"] == tau]["symbolic_score"]
        np.testing.assert_allclose(
            now["null_band"]["symbolic_score"], null.quantile([0.025, 0.5, 0.975]), atol=6e-5
        )


def test_frequencies_come_back(profile: rs.Profile, saved: Path) -> None:
    store = run_payload(saved)["tabs"]["overview"]["frequencies"]
    for tau, now in zip((1e-4, 1e-2), store["at"], strict=True):
        rows = profile.frequencies[profile.frequencies["tau"] == tau].sort_values(
            ["layer", "head", "frequency_id"]
        )
        for score in ("positional_score", "symbolic_score", "positional_score_low", "symbolic_score_high"):
            np.testing.assert_allclose(unpacked(now[score]), rows[score], atol=2e-5)
    rows = profile.frequencies[profile.frequencies["tau"] == 1e-4].sort_values(
        ["layer", "head", "frequency_id"]
    )
    np.testing.assert_allclose(unpacked(store["logit_norm"]), rows["logit_norm"], rtol=1e-3)
    np.testing.assert_allclose(store["angles"]["lists"][0], rows["angle"].unique(), rtol=1e-3)


def test_bands_of_planes_are_of_one_null_where_there_are_two() -> None:
    how = {
        "tokens": tokens(2, 12),
        "null_draws": 2,
        "frequencies": True,
        "examples": False,
        "show_progress": False,
    }
    bands = [
        run_payload(rs.profile(tiny("llama"), null=null, **how))["tabs"]["overview"]["frequencies"]["at"][0][
            "null"
        ]
        for null in ("random", "both", "gaussian")
    ]
    assert bands[0] == bands[1] != bands[2]


def test_a_run_in_memory_is_a_run_in_a_folder(profile: rs.Profile, saved: Path) -> None:
    in_folder, here = run_payload(saved), run_payload(profile)
    assert here["name"] == "llama"
    assert here["problems"] == []
    assert here["tabs"]["overview"]["at"] == in_folder["tabs"]["overview"]["at"]


def test_some_heads_have_frequencies_and_examples(profile: rs.Profile, other: rs.Profile) -> None:
    tab = run_payload(profile)["tabs"]["overview"]
    shown = tab["shown"]
    codes = np.frombuffer(zlib.decompress(base64.b64decode(shown["attention"])), dtype=np.uint8).reshape(
        len(tab["layer"]), -1
    )
    np.testing.assert_allclose(shares_of(codes), np.stack(profile.attention["attention"]), atol=0.004)
    assert shown["token"] == profile.shown_prompt["token"].tolist()
    assert shown["vectors"]["frequency_id"] == profile.attention["frequency_id"].tolist()
    bare = run_payload(other)
    assert bare["tabs"]["overview"]["frequencies"] is None
    assert bare["tabs"]["overview"]["null"] is None
    assert any("no null" in warning for warning in bare["warnings"])


@pytest.mark.parametrize("damage", ["missing", "corrupt", "other numbers"])
@pytest.mark.parametrize("name", ["heads", "prompts"])
def test_a_damaged_run_is_refused(folder: Path, name: str, damage: str) -> None:
    file = folder / f"{name}.parquet"
    if damage == "missing":
        file.unlink()
    elif damage == "corrupt":
        file.write_bytes(file.read_bytes()[:200] + b"?" * 100)
    else:
        table = pd.read_parquet(file)
        write_table(file, table.assign(entropy=table["entropy"] * 1.01))
    with pytest.raises(
        RunError, match=rf"{name}.parquet is (missing|damaged).*make the run again with --overwrite"
    ):
        run_payload(folder)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", "{}", "\x00\xff"])
def test_damaged_description(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match="run.json is damaged .*make the run again with --overwrite"):
        run_payload(folder)


def test_the_self_check_is_told(folder: Path) -> None:
    told = strict(run_payload(folder))["proof"]
    assert told["layers rebuilt after a permutation"] == 3
    assert 0 < told["largest difference of an attention weight"] < 1e-4
    assert told["queries and keys were read"] == "out of the forward pass"
    edit_run(folder, proof={"layers": 3, "largest_difference": 1e-6})
    assert len(strict(run_payload(folder))["proof"]) == 2
    edit_run(folder, proof=None)
    assert strict(run_payload(folder))["proof"] == {}


def test_unknown_kind(folder: Path) -> None:
    edit_run(folder, kind="dreams")
    with pytest.raises(RunError, match="of kind 'dreams', which this version of rotoscope does not know"):
        run_payload(folder)


def test_no_run_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name, words in (
        ("empty", "no run.json"),
        ("missing", "no such run folder"),
        ("file", "no such run folder"),
    ):
        with pytest.raises(RunError, match=words):
            run_payload(tmp_path / name)


def test_half_written_profile_shows_its_pieces(profile: rs.Profile, saved: Path, tmp_path: Path) -> None:
    """As a killed run leaves it: a description that is not complete, and pieces by batch."""
    folder = tmp_path / "half"
    shutil.copytree(saved, folder, ignore=shutil.ignore_patterns("*.parquet"))
    edit_run(folder, complete=False, tables=None)
    run = Run(rs.Profile, profile.run.settings, folder)
    prompts = profile.prompts[profile.prompts["prompt"] < 2]
    for first in (0, 1):
        run.add(f"real-{first:06d}", {"prompts": prompts[prompts["prompt"] == first]})
    null = profile.tables["null_prompts"]
    run.add("random-0-000000", {"null_prompts": null[(null["prompt"] == 0) & (null["draw"] == 0)]})
    run.add("real-000002", {"prompts": prompts})
    next(folder.glob("pieces/*/real-000002.prompts.parquet")).write_bytes(b"PAR1 half")
    payload = strict(run_payload(folder))
    assert payload["complete"] is False
    assert payload["running"] == ["4 parts finished"]
    assert not any("not finished" in problem for problem in payload["problems"])
    for file in (*folder.rglob("*"), folder):
        os.utime(file, (1e9, 1e9))
    stopped = run_payload(folder)
    assert stopped["running"] == []
    assert "the run is not finished; this is what there is so far: 4 parts finished" in stopped["problems"]
    now = payload["tabs"]["overview"]["at"][0]
    assert set(now["prompts"]) == {2}
    assert now["null_heads"] == 12
    first = now["statistics"][0]  # a draw on one of two prompts is not one to compare with
    assert (first["verdict"], first["null_draws"]) == ("no verdict", 0)
    mean = prompts[prompts["tau"] == 1e-4].groupby(["layer", "head"])["positional_score"].mean()
    np.testing.assert_allclose(now["positional_score"], mean, atol=6e-5)


def test_half_written_training(tmp_path: Path) -> None:
    source = Path(rs.__file__).parent / "stored" / "number"
    folder = tmp_path / "half"
    run = Run(Training, rs.open(source).run.settings, folder)
    scores = pd.read_parquet(source / "scores.parquet")
    for k, step in enumerate((0, 50)):
        run.add(f"step-{k:08d}", {"scores": scores[scores["step"] == step]})
    tab = strict(run_payload(folder))["tabs"]["training"]
    assert tab["series"][0]["steps"] == [0, 50]
    assert tab["accuracy"] == []


def test_dynamics() -> None:
    run = rs.dynamics("number")
    payload = strict(run_payload(run))
    assert payload["title"] == "Heads over training, number task"
    series = payload["tabs"]["training"]["series"][0]
    last = run.at()[lambda t: t["step"] == run.steps[-1]].sort_values(["layer", "head"])
    at_last = unpacked(series["positional_score"]).reshape(len(run.steps), -1)[-1]
    np.testing.assert_allclose(at_last, last["positional_score"], atol=2e-5)
    assert series["steps"] == run.steps
    curve = payload["tabs"]["training"]["accuracy"][0]
    rows = run.accuracy[run.accuracy["hops"] == 1]
    np.testing.assert_allclose(curve["accuracy"], rows["accuracy"], atol=6e-5)


def test_dynamics_of_several_heads_a_layer() -> None:
    """Every score stands under its own layer and head, with the class it has at that step."""
    rows = [
        {"step": step, "layer": layer, "head": head, "queries": "last", "tau": 1e-4,
         "positional_score": (10 * layer + head + step) / 100, "symbolic_score": 0.95 if layer == 1 else 0.5}
        for step in (0, 80)
        for layer in (0, 1)
        for head in (0, 1, 2)
    ]  # fmt: skip
    run = Dynamics(RunRecord(settings={"task": "number"}), {"scores": pd.DataFrame(rows[::-1])})
    tab = strict(run_payload(run))["tabs"]["training"]
    series = tab["series"][0]
    assert series["layer"] == [0, 0, 0, 1, 1, 1]
    assert series["head"] == [0, 1, 2, 0, 1, 2]
    assert series["steps"] == [0, 80]
    places = zip(series["layer"], series["head"], strict=True)
    scores = unpacked(series["positional_score"]).reshape(2, 6)
    np.testing.assert_allclose(scores[1], [(10 * layer + head + 80) / 100 for layer, head in places], atol=2e-5)
    names = [[CLASSES[int(code)] for code in step] for step in series["head_class"]]
    assert names == [["mixed"] * 3 + ["symbolic", "mixed", "mixed"], ["mixed"] * 3 + ["uniform"] * 3]
    for step, classes in zip(series["steps"], names, strict=True):
        assert (
            run.at()[lambda t, step=step: t["step"] == step]
            .sort_values(["layer", "head"])["head_class"]
            .tolist()
            == classes
        )
    assert tab["pure"] == {"positional": [0.9, 0], "symbolic": [0, 0.9], "uniform": [0.9, 0.9]}


def test_a_head_without_a_score_has_no_class_at_that_step() -> None:
    rows = [
        {
            "step": step,
            "layer": 0,
            "head": 0,
            "queries": "last",
            "tau": 1e-4,
            "positional_score": score,
            "symbolic_score": 0.0,
        }
        for step, score in ((0, math.nan), (5, 0.95))
    ]
    run = Dynamics(RunRecord(settings={"task": "number"}), {"scores": pd.DataFrame(rows)})
    series = strict(run_payload(run))["tabs"]["training"]["series"][0]
    assert series["head_class"] == [" ", str(CLASSES.index("positional"))]


def test_lengths() -> None:
    whole = stored_lengths()
    keep = {name: t[t["model"].isin(["letter-0-22500", "number-0-22500"])] for name, t in whole.tables.items()}
    keep["heads"] = keep["heads"][keep["heads"]["layer"] < 2]
    run = Lengths(whole.run, keep)
    tab = strict(run_payload(run))["tabs"]["lengths"]
    curve = run.curve()
    for shown in tab["curves"]:
        rows = curve[curve["model"] == shown["name"]]
        np.testing.assert_allclose(shown["y"], rows["accuracy"], atol=6e-5)
        np.testing.assert_allclose(shown["low"], rows["low"], atol=6e-5)
    lengths = [4, len(run.decay()), 4, len(run.discrepancies())]
    assert [len(shown["columns"][0]) for shown in tab["tables"]] == lengths


def test_canonical_and_theory_and_gating() -> None:
    rows = [("index", theta, seed, step, 0.1 * seed + step / 10)
            for theta in (1.0, 0.0) for seed in (0, 1) for step in (0, 5)]  # fmt: skip
    accuracy = pd.DataFrame(rows, columns=["experiment", "theta", "seed", "step", "accuracy"])
    tab = strict(run_payload(Canonical(RunRecord(), {"accuracy": accuracy})))["tabs"]["canonical"]
    assert tab["experiments"][0]["theta"] == [1, 0]
    assert tab["experiments"][0]["mean"] == [0.55, 0.55]
    assert tab["experiments"][0]["by_step"] == [[0.05, 0.55], [0.05, 0.55]]
    statements = pd.DataFrame({"name": ["a", "b"], "verdict": ["holds", "false as printed"]})
    theory = strict(run_payload(TheoryRun(RunRecord(), {"statements": statements})))["tabs"]["theory"]
    assert theory["verdicts"] == {"holds": 1, "false as printed": 1}
    conditions = pd.DataFrame({
        "condition": ["a", "a"], "action": "remove", "head_group": "all", "control": False, "draw": -1, "first_id": 1, "last_id": 2,
        "gated_heads": 3, "source": "x", "prompt": [0, 1], "loss": [1.0, 3.0], "accuracy": [0.0, 1.0],
    })  # fmt: skip
    gating = strict(run_payload(Gating(RunRecord(settings={"model": "m"}), {"conditions": conditions})))
    summary = gating["tabs"]["tables"]["tables"][0]
    assert summary["columns"][summary["names"].index("loss")] == [2]


@pytest.mark.parametrize("kind", sorted(result_kinds()))
def test_every_kind_survives_having_nothing(kind: str) -> None:
    payload = strict(run_payload(result_class(kind)(RunRecord(), {})))
    assert payload["kind"] == kind
    assert payload["title"]


@pytest.mark.parametrize("kind", sorted(result_kinds()))
def test_every_kind_survives_foreign_tables(kind: str) -> None:
    names = ("prompts", "heads", "scores", "accuracy", "metrics", "statements", "conditions", "use", "attention",
             "agreement", "answers", "predicted", "classes", "ledger", "frontier", "selection", "plan", "points", "losses", "items")  # fmt: skip
    foreign = {name: pd.DataFrame({"x": [1.0, math.inf, math.nan], "s": ["a", None, "c"]}) for name in names}
    payload = strict(run_payload(result_class(kind)(RunRecord(), foreign)))
    assert payload["problems"] or kind == "turnover"  # whose one table has a name of its own


def test_numbers_become_what_json_knows() -> None:
    odd = {
        "a": [math.nan, math.inf, -math.inf, 1.0, 0.123456, 1e-7, 3],
        "b": np.float32(0.5),
        "c": pd.NA,
        4: {1},
    }
    assert clean(odd) == {"a": [None, None, None, 1, 0.1235, 1e-7, 3], "b": 0.5, "c": None, "4": [1]}
    long = table(pd.DataFrame({"x": range(700)}), "x")
    assert (long["rows"], len(long["columns"][0])) == (700, 500)


@pytest.mark.parametrize("bits", [8, 16])
def test_packed_numbers(bits: int) -> None:
    values = np.array([0.0, 0.25, np.nan, 1.0, np.inf])
    np.testing.assert_allclose(unpacked(packed(values, bits)), [0, 0.25, np.nan, 1, np.nan], atol=1 / 2**bits)
    np.testing.assert_allclose(unpacked(packed(np.full(3, 0.7), bits)), 0.7)
    assert np.isnan(unpacked(packed(np.full(2, np.nan), bits))).all()
