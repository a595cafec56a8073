"""A sweep among other runs: listed, with how far it is, its page with its tables, and in a site."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import rotoscope as rs
from rotoscope.report.page import run_payload
from rotoscope.report.run_index import find_runs
from tests.sweep.conftest import Light


def test_a_sweep_and_its_items_are_listed(light: Light, tmp_path: Path) -> None:
    light(shard="1/2")
    runs = {run.path: run for run in find_runs(tmp_path.resolve())[0]}
    assert len(runs) == 3
    assert (runs["swept"].kind, runs["swept"].state) == ("sweep", "running")
    assert (runs["swept"].progress, runs["swept"].share) == ("2 of 4 items ended", 0.5)
    light()
    runs = {run.path: run for run in find_runs(tmp_path.resolve())[0]}
    assert len(runs) == 5
    assert runs["swept"].state == "finished"


def test_its_page_has_its_tables_and_what_failed(light: Light) -> None:
    Path("bad").touch()
    light({"model": ["bad", "b"], "seed": [0]})
    shown = run_payload("swept")
    assert shown["title"] == "The sweep swept"
    tables = {one["title"]: one for one in shown["tabs"]["tables"]["tables"]}
    assert list(tables) == ["Items by state", "The items"]  # these heads have no class
    assert sorted(tables["Items by state"]["columns"][0]) == ["failed", "finished"]
    shown_items = tables["The items"]
    assert shown_items["columns"][shown_items["names"].index("state")] == ["failed", "finished"]
    assert any("failed: this model is bad" in said for said in shown["warnings"])


def test_a_site_has_a_page_for_it(light: Light) -> None:
    light({"model": ["a"], "seed": [0]})
    place = rs.report.write_site(".", show_progress=False)
    assert len(list(place.glob("run-*.html"))) == 2


@pytest.mark.slow
def test_a_real_sweep_makes_what_its_command_makes(tmp_path: Path, run, monkeypatch) -> None:
    """The same tables, bit for bit, as by hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(rs.__file__).parents[1]))
    Path("sweep.toml").write_text(
        'command = "profile"\nout = "swept"\n[grid]\nmodel = ["letter"]\nseed = [3]\n'
        '[settings]\nprompts = 2\nnull-draws = 2\nfigures = false\ndevice = "cpu"\n'
    )
    code, told, problem = run("sweep", "sweep.toml")
    assert code == 0, problem
    assert "1 item of profile: 1 finished" in told
    words = ["--seed", "3", "--prompts", "2", "--null-draws", "2", "--no-page", "--device", "cpu"]
    assert run("profile", "letter", *words, "--out", "by-hand")[0] == 0
    swept = rs.open("swept")
    one, other = rs.open(Path("swept") / swept.items["folder"][0]), rs.open("by-hand")
    assert one.run.settings == other.run.settings
    assert one.tables.keys() == other.tables.keys()
    for name in one.tables:
        pd.testing.assert_frame_equal(one.tables[name], other.tables[name], check_exact=True)
    rows = swept.heads.drop(columns=["item", "model", "seed", "fingerprint"])
    pd.testing.assert_frame_equal(rows, other.heads, check_exact=True)
