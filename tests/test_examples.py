"""The notebooks run from their first cell to their last, and are kept without outputs; the sweep's file is read.

The notebooks quickly in this process, slowly as Jupyter runs them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import rotoscope as rs

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))
SMALLER = {"PAIRS, PROMPTS, DRAWS = ": "4, 1, 1", "LENGTH, COPIED, PROMPTS = ": "32, 8, 1"}
"""Sizes that notebooks begin with, and those of the tests."""


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook with fewer facts and prompts."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        for names, sizes in SMALLER.items():
            cell.source = cell.source.replace(names, f"{names}{sizes}  # not ")
    return notebook


@pytest.mark.parametrize(
    "path",
    [NOTEBOOKS[0], *(pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS[1:])],
    ids=lambda path: path.stem,
)
def test_cells_run_one_after_another(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in read(path).cells:
        if cell.cell_type == "code":
            exec(cell.source.replace("%matplotlib inline\n", ""), names)


def test_the_sweep_over_settings_lists_its_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    items = rs.sweep(ROOT / "examples" / "settings.toml", dry_run=True, show_progress=False).items
    assert len(items.drop_duplicates(["prefix", "granularity"])) == 4 * 3
    assert set(items["state"]) == {"waiting"}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress")  # tqdm's, where there are no widgets
    notebook = read(path)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    shown = [output for cell in code for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "stream" and output.name == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in shown)


def test_all_notebooks_are_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_profile", "longer_context", "number_beside_letter"]
