"""The folder of a run: replaced without a loss, never shared, damage noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.errors import RunError
from rotoscope.experiments.theory.run import TheoryRun
from rotoscope.runs.files import read_arrays, save_arrays, write_text
from rotoscope.runs.run import Run
from tests.runs.test_run import SETTINGS, make
from tests.waiting import wait_until

OTHER = {"statements": ["x"]}


def replaced(folder: Path) -> TheoryRun:
    run = Run(TheoryRun, OTHER, folder, overwrite=True)
    run.add("x", {"statements": pd.DataFrame({"statement": ["x"], "holds": [True]})})
    return run.finish(device="cpu")


def everything(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }


def test_overwriting_leaves_what_the_run_did_not_write(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make(folder)
    (folder / "notes.txt").write_text("mine")
    (folder / "pieces").mkdir()
    (folder / "pieces" / "mine.txt").write_text("mine too")
    (folder / "figures").mkdir()
    (folder / "figures" / "own.png").write_text("a picture of mine")
    replaced(folder)
    assert set(everything(folder)) == {
        "notes.txt", "figures/own.png", "manifest.txt", "run.json", "statements.parquet"
    } | ({"pieces/mine.txt"} if (folder / "pieces").exists() else set())  # fmt: skip
    assert rs.open(folder).run.settings == OTHER


def test_figures_and_pages_of_the_old_run_go_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = make(folder)
    run.report(folder / "report.html")
    assert "report.html" in (folder / "manifest.txt").read_text()
    replaced(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    "content", ["{}", '{"kind": "theory", "settings": {}}', '{"run": 1}', "a diary", '{"schema": "1.1"}']
)
def test_a_file_called_run_json_does_not_make_a_folder_ours(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    (tmp_path / "thesis.tex").write_text("years of work")
    before = everything(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(RunError, match="no run folder"):
            Run(TheoryRun, SETTINGS, tmp_path, overwrite=overwrite)
    assert everything(tmp_path) == before


def test_a_manifest_cannot_name_files_outside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make(folder)
    (tmp_path / "precious").write_text("keep")
    with (folder / "manifest.txt").open("a") as file:
        file.write(f"../precious\n{tmp_path / 'precious'}\n")
    replaced(folder)
    assert (tmp_path / "precious").read_text() == "keep"


def test_links_and_devices_are_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make(folder)
    (tmp_path / "precious").write_text("keep")
    (folder / "statements.parquet").unlink()
    (folder / "statements.parquet").symlink_to(tmp_path / "precious")
    with pytest.raises(RunError, match="no plain file"):
        replaced(folder)
    assert (tmp_path / "precious").read_text() == "keep"
    with pytest.raises(RunError, match="no plain file"):
        write_text(Path(os.devnull), "x")


def test_a_start_that_came_to_nothing_is_not_another_run(tmp_path: Path) -> None:
    Run(TheoryRun, {"statements": ["wrong"]}, tmp_path / "run").begin()
    make(tmp_path / "run")
    assert rs.open(tmp_path / "run").run.settings == SETTINGS


@pytest.mark.parametrize(
    "left", [(), (".lock",), (".run.json.7.part",), ("manifest.txt",), (".lock", "manifest.txt")]
)
def test_killed_before_the_first_description(tmp_path: Path, left: tuple[str, ...]) -> None:
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).touch()
    make(tmp_path / "run")
    assert rs.open(tmp_path / "run").run.complete


def test_a_run_without_its_manifest_is_replaced_with_its_tables(tmp_path: Path) -> None:
    make(tmp_path / "run")
    (tmp_path / "run" / "manifest.txt").unlink()
    (tmp_path / "run" / "other.parquet").write_text("mine")
    (tmp_path / "run" / "mine.csv").write_text("1")
    replaced(tmp_path / "run")
    assert set(everything(tmp_path / "run")) == {
        "mine.csv", "other.parquet", "manifest.txt", "run.json", "statements.parquet"
    }  # fmt: skip


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    make(tmp_path / "run")
    for name in ("run.json", "statements.parquet"):
        file = tmp_path / "run" / name
        whole = file.read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 150)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << (place % 8)
            file.write_bytes(damaged)
            try:
                opened = rs.open(tmp_path / "run")
            except RunError:
                continue
            assert json.loads(damaged) == json.loads(whole), f"byte {place} of {name}: {opened}"  # a blank, say
        file.write_bytes(whole)


def test_damaged_states_pieces_and_tables_that_are_folders(tmp_path: Path) -> None:
    save_arrays(
        tmp_path / "state.safetensors", {"x": torch.arange(100.0), "y": torch.ones(3, dtype=torch.bfloat16)}
    )
    assert read_arrays(tmp_path / "state.safetensors")["x"][3] == 3
    content = bytearray((tmp_path / "state.safetensors").read_bytes())
    content[-5] ^= 1
    (tmp_path / "state.safetensors").write_bytes(content)
    with pytest.raises(RunError, match="not what was written"):
        read_arrays(tmp_path / "state.safetensors")
    make(tmp_path / "run")
    (tmp_path / "run" / "statements.parquet").unlink()
    (tmp_path / "run" / "statements.parquet").mkdir()
    with pytest.raises(RunError, match=r"statements.parquet is missing"):
        rs.open(tmp_path / "run")


HOLDING = """
import sys
from pathlib import Path
from rotoscope.runs.folder import Place
place = Place(Path(sys.argv[1]))
place.begin()
print("holding", flush=True)
sys.stdin.read()
"""


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    Run(TheoryRun, SETTINGS, folder).begin()
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "holding\n"
        with pytest.raises(RunError, match="another rotoscope is at work in"):
            make(folder)
        with pytest.raises(RunError, match="at work"):
            replaced(folder)
    finally:
        first.kill()
        first.communicate()
    wait_until(lambda: not Path(f"/proc/{first.pid}").exists())
    make(folder)
    assert rs.open(folder).run.complete
