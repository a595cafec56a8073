"""What is not installed: runs finish without it, and every sentence names what can be installed."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

import rotoscope as rs
from rotoscope import errors
from rotoscope.errors import ModelError, TaskError, pip_install
from tests.tiny_gguf import write_gguf

HERE = Path(rs.__file__).parents[1]
PROFILE = ("profile", "number", "--prompts", 2, "--null", "none", "--figures")


def hide(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def test_a_profile_finishes_without_figures_and_page(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "matplotlib", "plotly")
    code, output, error = run(*PROFILE, "--out", tmp_path / "run")
    assert (code, error) == (0, "")
    lines = output.splitlines()
    assert f"no figures: they need {pip_install('figures')}" in lines
    assert f"no page: it needs {pip_install('report')}" in lines
    assert any(" tables, self-check" in line for line in lines)
    assert not list((tmp_path / "run").glob("*.p[dn][fg]"))


def test_only_figures_import_matplotlib() -> None:
    """All else runs without it."""
    large = ("matplotlib", "rotoscope.plotting.style")
    for file in sorted((HERE / "rotoscope").rglob("*.py")):
        if file.stem.endswith("figures") or file.name in ("style.py", "plane.py"):
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith(large) for name in names), file


def test_an_extra_is_installed_from_where_rotoscope_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)
    assert pip_install("demo") == "pip install '.[demo]'"
    monkeypatch.chdir(tmp_path)
    assert pip_install("demo") == f"pip install '{HERE}[demo]'"
    monkeypatch.setattr(errors, "__file__", os.fspath(tmp_path / "site-packages" / "rotoscope" / "errors.py"))
    assert pip_install("demo") == "pip install 'rotoscope[demo]'"


def test_a_gguf_file_without_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTOSCOPE_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "a.gguf")
    hide(monkeypatch, "gguf")
    with pytest.raises(ModelError) as raised:
        rs.load(file, device="cpu")
    assert pip_install("gguf") in str(raised.value)
    assert 'rs.load("number") works at once' in str(raised.value)


def test_doctor_checks_itself_on_what_comes_with_it(run, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "gguf")
    code, output, _ = run("doctor", "--device", "cpu")
    assert code == 0
    assert "self-check on number: passed" in output
    assert output.rstrip().endswith("next: rotoscope profile number --prompts 4 --out runs/first")
    assert "SHA-256" not in output
    assert "SHA-256" in run("doctor", "--device", "cpu", "--verbose")[1]


@pytest.mark.parametrize("name", ["number", "letter"])
def test_the_embedded_models_say_which_tasks_they_read(name: str) -> None:
    subject = rs.load(name)
    with pytest.raises(
        TaskError, match=rf"only the \d+ words of the {name} task.*rs\.tasks\.{name}\(count=16\)"
    ):
        rs.tasks.binding(subject)
    assert len(rs.tasks.repeats(subject, count=2)) == 2
