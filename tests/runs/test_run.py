"""The one way to make a run: the same in memory and in a folder, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.experiments.profile import result as profile_module
from rotoscope.experiments.theory.run import TheoryRun
from rotoscope.report.page import run_payload
from rotoscope.runs.record import described_checksum
from rotoscope.runs.run import Run, unfinished_tables
from tests.tiny_models import tiny, tokens

SETTINGS = {"statements": ["a", "b", "c"]}


def describe(folder: Path, content: dict[str, Any]) -> None:
    """A description with the checksum that it has as it is now."""
    (folder / "run.json").write_text(json.dumps(content | {"checksum": described_checksum(content)}))


class Killed(BaseException):
    """The end of a process, as far as a run can tell."""


def rows(name: str) -> dict[str, pd.DataFrame]:
    return {"statements": pd.DataFrame({"name": [name], "verdict": ["holds"]})}


def make(out: Path | None, die_at: str | None = None, made: list[str] | None = None, **options) -> TheoryRun:
    run = Run(TheoryRun, SETTINGS, out, **options)
    if run.finished is not None:
        return run.finished
    for name in SETTINGS["statements"]:

        def work(name: str = name) -> dict[str, pd.DataFrame]:
            if name == die_at:
                raise Killed
            if made is not None:
                made.append(name)
            return rows(name)

        run.piece(name, work)
    return run.finish(device="cpu", colour="green")


def test_in_memory_and_in_a_folder_it_is_the_same_run(tmp_path: Path) -> None:
    free, kept = make(None), make(tmp_path / "run")
    pd.testing.assert_frame_equal(free.statements, kept.statements)
    opened = rs.open(tmp_path / "run")
    pd.testing.assert_frame_equal(opened.statements, kept.statements)
    for run in (free.run, kept.run, opened.run):
        assert (run.kind, run.complete, run.device, run.settings) == ("theory", True, "cpu", SETTINGS)
        assert run.details == {"colour": "green"}
        assert run.timings["total_s"] >= 0
        assert run.versions["rotoscope"] == rs.__version__
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == [
        "manifest.txt",
        "run.json",
        "statements.parquet",
    ]


def test_nothing_is_touched_before_there_is_something_to_keep(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        make(tmp_path / "run", die_at="a")
    assert not (tmp_path / "run").exists()
    make(tmp_path / "run")
    with pytest.raises(Killed):
        make(tmp_path / "run", die_at="a", overwrite=True)
    assert rs.open(tmp_path / "run").statements["name"].tolist() == ["a", "b", "c"]


def test_a_killed_run_makes_only_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        make(tmp_path / "run", die_at="c")
    with pytest.raises(RunError, match=r"not finished; run the same command again.*rotoscope report"):
        rs.open(tmp_path / "run")
    made: list[str] = []
    assert make(tmp_path / "run", made=made).statements["name"].tolist() == ["a", "b", "c"]
    assert made == ["c"]
    assert make(tmp_path / "run", die_at="a").statements["name"].tolist() == ["a", "b", "c"]  # opened, not made


def test_a_piece_counts_when_all_of_it_is_there(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        make(tmp_path / "run", die_at="c")
    next((tmp_path / "run").glob("pieces/*/b.done.json")).unlink()
    made: list[str] = []
    make(tmp_path / "run", made=made)
    assert made == ["b", "c"]


def test_what_is_finished_is_told_by_the_protocol(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        make(tmp_path / "run", die_at="c")
    run = Run(TheoryRun, SETTINGS, tmp_path / "run")
    run.journal("answers").append({"k": 1})
    tables = unfinished_tables(tmp_path / "run", run.record)
    assert tables["statements"]["name"].tolist() == ["a", "b"]
    assert tables["answers"]["k"].tolist() == [1]
    next((tmp_path / "run").glob("pieces/*/a.statements.parquet")).write_bytes(b"PAR1 half")
    assert unfinished_tables(tmp_path / "run", run.record)["statements"]["name"].tolist() == ["b"]
    shown = run_payload(tmp_path / "run")
    assert shown["tabs"]["theory"]["verdicts"] == {"holds": 1}


def test_other_settings_other_kinds_and_strangers_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "run")
    with pytest.raises(RunError, match=r"other settings \(statements: \['a', 'b', 'c'\] there, \['a'\] now\)"):
        Run(TheoryRun, {"statements": ["a"]}, tmp_path / "run")
    with pytest.raises(RunError, match="kind: theory there, ledger now"):
        Run(rs.ledger.Ledger, SETTINGS, tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(RunError, match="nothing is written there"):
            Run(TheoryRun, SETTINGS, tmp_path / "mine", overwrite=overwrite)


def test_what_is_made_again_by_overwriting(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        make(tmp_path / "run", die_at="c")
    made: list[str] = []
    make(tmp_path / "run", made=made, overwrite=True)
    assert made == ["c"]  # an unfinished run with these settings goes on
    make(tmp_path / "run", made=made, overwrite=True)
    assert made == ["c", "a", "b", "c"]  # a finished one is made again


def test_states_logs_and_going_back(tmp_path: Path) -> None:
    import torch

    run = Run(TheoryRun, SETTINGS, tmp_path / "run")
    for step in (1, 2, 3):
        run.add(f"step-{step}", rows(str(step)))
        run.save_state(f"step-{step}", {"x": torch.tensor([step])})
        run.log({"step": step})
    again = Run(TheoryRun, SETTINGS, tmp_path / "run")
    assert again.states() == again.earlier() == ["step-1", "step-2", "step-3"]
    assert again.load_state("step-2")["x"].tolist() == [2]
    again.keep_only(["step-1", "step-2"])
    again.trim_log(lambda row: row["step"] <= 2)
    assert again.earlier() == ["step-1", "step-2"]
    assert [json.loads(x)["step"] for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()] == [1, 2]
    again.log({"step": 9})
    assert again.finish().statements["name"].tolist() == ["1", "2"]
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 3
    with pytest.raises(RunError, match="piece step-7 is missing"):
        Run(TheoryRun, {"other": 1}, tmp_path / "other").keep_only(["step-7"])


def test_in_memory_there_is_nothing_to_go_on_from() -> None:
    run = Run(TheoryRun, SETTINGS)
    run.save_state("a", {})
    run.log({"step": 1})
    run.beside("x", lambda path: 1 / 0)
    assert run.states() == run.earlier() == []
    assert run.journal("answers").rows == []


def test_a_result_looked_at_early_has_all_its_rows_later() -> None:
    run = Run(TheoryRun, SETTINGS)
    run.add("a", rows("a"))
    assert len(run.result.statements) == 1
    run.add("b", rows("b"))
    assert len(run.result.statements) == 2
    same = run.result
    run.add("more", {"other": pd.DataFrame({"x": [1]})})
    assert run.finish() is same
    assert set(same.tables) == {"statements", "other"}


def test_heads_are_put_together_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    whole = profile_module.head_table
    monkeypatch.setattr(profile_module, "head_table", lambda *args: calls.append(1) or whole(*args))
    found = rs.profile(tiny("llama"), tokens=tokens(2, 10), null="none", out=tmp_path / "run")
    assert len(found.heads) == 12
    assert len(calls) == 1


def test_everything_a_command_computes_is_in_the_record(tmp_path: Path) -> None:
    prompts = rs.tasks.from_tokens(tokens(2, 12), [(1, 4), (4, 7), (7, 10)])
    found = rs.profile(tiny("llama"), prompts, input_swaps=3, null="none", out=tmp_path / "run")
    written = {file.stem for file in (tmp_path / "run").glob("*.parquet")}
    assert "input_prompts" in written
    assert written == set(found.run.tables) == set(rs.open(tmp_path / "run").run.tables)


def test_the_record_is_typed_and_odd_ones_are_named(tmp_path: Path) -> None:
    make(tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    for key, value in (("settings", []), ("tables", "x"), ("warnings", {}), ("subject", 3), ("complete", 1)):
        describe(tmp_path / "run", content | {key: value})
        with pytest.raises(RunError, match=f"the {key} in run.json are damaged"):
            rs.open(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(json.dumps(content | {"something": "new"}))
    with pytest.raises(RunError, match="not what was written"):
        rs.open(tmp_path / "run")
    describe(tmp_path / "run", content | {"something": "new"})
    assert rs.open(tmp_path / "run").run.details["something"] == "new"


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("schema", ["1.0", "1.1", "2.0"])
def test_a_run_of_another_schema_is_refused_and_can_be_made_again(
    tmp_path: Path, schema: str, complete: bool
) -> None:
    make(tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    versions = content["versions"] | {"rotoscope": "0.0.9"}
    describe(tmp_path / "run", content | {"schema": schema, "complete": complete, "versions": versions})
    sentence = (
        rf"made by rotoscope 0.0.9 \(schema {schema}; this version reads 1.2\); make the run again with --over"
    )
    for attempt in (rs.open, run_payload, make):
        with pytest.raises(RunError, match=sentence):
            attempt(tmp_path / "run")
    made: list[str] = []
    make(tmp_path / "run", made=made, overwrite=True)
    assert made == SETTINGS["statements"]
    assert rs.open(tmp_path / "run").run.schema == "1.2"


def test_a_run_of_other_packages_opens_and_names_them(tmp_path: Path) -> None:
    make(tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    describe(
        tmp_path / "run", content | {"versions": content["versions"] | {"torch": "2.0.0", "rotoscope": "0.0.9"}}
    )
    assert rs.open(tmp_path / "run").run.versions["torch"] == "2.0.0"
    assert run_payload(tmp_path / "run")["versions"]["rotoscope"] == "0.0.9"


def test_open_is_typed_by_kind(tmp_path: Path) -> None:
    make(tmp_path / "run")
    assert isinstance(rs.open(tmp_path / "run", TheoryRun), TheoryRun)
    with pytest.raises(RunError, match="of kind 'theory', not 'profile'"):
        rs.open(tmp_path / "run", rs.Profile)
