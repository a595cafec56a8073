"""What the list says of a run without opening it, cheaply and whatever its files are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.report import run_index as glimpse
from rotoscope.report.run_index import Found, find_runs
from rotoscope.report.run_list import Links, rows
from rotoscope.runs.files import checksum, write_table
from rotoscope.runs.record import RunRecord
from tests.report.test_payload import edit_run


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A profile with answers, to change."""
    folder = Path(shutil.copytree(saved, tmp_path / "runs" / "one"))
    write_table(folder / "answers.parquet", pd.DataFrame({"correct": [True, True, True, False]}))
    settings = RunRecord.read(folder).settings | {"chance": 0.25}
    believed(folder, settings=settings)
    return folder


def believed(folder: Path, **changes: Any) -> None:
    """The run's description says of its files what they are now."""
    files = {file.name: checksum(file) for file in folder.glob("*.parquet")}
    edit_run(folder, files=files, **changes)


def listed(run: Path) -> Found:
    (found,), whole = find_runs(run.parent)
    assert whole
    return found


def test_classes_and_accuracy(run: Path, profile: rs.Profile) -> None:
    found = listed(run)
    assert (found.accuracy, found.chance, found.model) == (0.75, 0.25, "llama")
    assert found.classes == {name: n for name, n in profile.summary().classes.items() if n}
    edit_run(run, settings=RunRecord.read(run).settings | {"tau": [1e-2, 1e-4]})
    other = profile.at(1e-2)["head_class"].value_counts().to_dict()
    assert listed(run).classes == other != found.classes
    row = rows([(found, Links("one", "/run/one", "/thumb/one"))])
    for name, count in found.classes.items():
        assert f"{count} {name}" in row
        assert f'<rect class="{name}"' in row
    assert "75 % " in row
    assert "chance 25 %" in row


@pytest.mark.parametrize("damage", ["no table", "too large", "other columns"])
def test_a_table_that_cannot_be_trusted_is_not_told(
    run: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("heads.parquet", "answers.parquet"):
        file = run / name
        match damage:
            case "no table":
                file.write_bytes(b"PAR1 nothing PAR1")
                believed(run)
            case "too large":
                monkeypatch.setattr(glimpse, "MOST_ROWS", 3)
                glimpse._looked.cache_clear()
            case "other columns":
                write_table(file, pd.DataFrame({"correct": ["no", "yes"], "tau": [None, None]}))
                believed(run)
    found = listed(run)
    assert (found.state, found.accuracy, found.classes) == ("finished", None, {})
    assert "Heads by class" in rows([(found, None)])


@pytest.mark.parametrize("damage", ["gone", "another table", "a pipe"])
def test_a_damaged_run_is_listed_as_such(run: Path, damage: str) -> None:
    file = run / "answers.parquet"
    believed(run, tables=["answers", *RunRecord.read(run).tables])
    assert listed(run).state == "finished"
    if damage == "another table":
        write_table(file, pd.DataFrame({"correct": [True]}))
    else:
        file.unlink()
    if damage == "a pipe":
        os.mkfifo(file)
    found = listed(run)
    assert (found.state, found.accuracy, found.classes) == ("damaged", None, {})
    assert found.problem.startswith("answers.parquet is ")
    assert found.problem.endswith("; make the run again with --overwrite (its settings are in run.json)")


def test_a_table_is_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listed(run)
    monkeypatch.setattr(glimpse, "_columns", lambda *_: pytest.fail("read again"))
    assert listed(run) == before
    monkeypatch.undo()
    write_table(run / "answers.parquet", pd.DataFrame({"correct": [False]}))
    believed(run)
    assert listed(run).accuracy == 0.0


def test_what_is_running_is_called_so(run: Path) -> None:
    edit_run(run, complete=False)
    (run / "metrics.jsonl").write_text('{"step": 30}\n{"step": 60}\n')
    found = listed(run)
    assert (found.state, found.progress, found.share) == ("running", "step 60 of ?", None)
    settings = RunRecord.read(run).settings
    edit_run(run, settings=settings | {"steps": 240})
    found = listed(run)
    assert (found.progress, found.share) == ("step 60 of 240", 0.25)
    with (run / "metrics.jsonl").open("a") as log:
        log.write(f'{{"step": {10**400}}}\n')
    assert listed(run).share == 1.0
    row = rows([(found, None)])
    assert '<span class="state running">running</span> <span>step 60 of 240</span>' in row
    assert '<progress max="1" value="0.250">' in row
