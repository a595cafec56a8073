"""The documentation keeps its word: its code runs, no public name or error is left out."""

from __future__ import annotations

import ast
import copy
import inspect
import os
import re
import subprocess
import sys
import tomllib
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import rotoscope as rs
from rotoscope import errors
from rotoscope.cli.doctor import EXTRAS
from rotoscope.experiments.registry import result_kinds
from tests.tiny_models import ARCHITECTURES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
OF_OTHERS = [
    page
    for page in PAGES
    if re.search(r"^from (transformer_lens|nnsight)\b", page.read_text(encoding="utf-8"), re.M)
]
"""Pages that need other packages: tests/others runs them."""
TOLD = ROOT / "docs" / "story.md"  # tests/test_story.py: its Python opens what its commands wrote
WITH_CODE = [
    page for page in PAGES if "```python" in page.read_text(encoding="utf-8") and page not in (*OF_OTHERS, TOLD)
]
LONG = {
    "measures.md",
    "plan.md",
    "sweep.md",
    "own_model.md",
    "lengths.md",
    "multihop.md",
    "endpoints.md",
    "training.md",
}
"""Pages whose code trains models, starts processes or measures long inputs; other quick tests call the same functions."""
FENCES = {"python", "console", "text", "toml", "{toctree}", "{eval-rst}"}


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


# Code


@pytest.mark.parametrize("subject", ["stand_in", pytest.param("smollm2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in LONG else [], id=page.name)
        for page in WITH_CODE
    ],
)
def test_python_blocks_run(
    page: Path, subject: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for SmolLM2; the slow tests take the model itself."""
    monkeypatch.chdir(tmp_path)
    load, small = rs.load, request.getfixturevalue(subject)
    if subject == "stand_in":  # pages may change their model for good
        small = rs.load((copy.deepcopy(small.model), small.tokenizer), name=small.name)
    monkeypatch.setattr(rs, "load", lambda source, **how: small if source == "smollm2" else load(source, **how))
    if subject == "stand_in":  # what is shown here is not the null
        whole = rs.profile
        monkeypatch.setattr(
            rs,
            "profile",
            lambda *a, **how: whole(*a, **({"null_draws": 2} | how if "null" not in how else how)),
        )
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    code = code.replace("count=6", "count=1")  # the README shows six prompts
    exec(compile(code, page.name, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_python_escapes(page: Path) -> None:
    """Code is fenced as `python`, so that the test above sees it: no other fence, no indented block holds any."""
    text = page.read_text(encoding="utf-8")
    opened = re.findall(r"^ *(?:```|~~~)(\S*)", text, flags=re.MULTILINE)[::2]
    assert set(opened) <= FENCES, page.name
    for block in re.findall(r"```(?:console|text)\n(.*?)```", text, flags=re.DOTALL):
        assert not re.search(r"^(>>>|import |from \w+ import )", block, flags=re.MULTILINE), block
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for indented in re.findall(r"^(?: {4}|\t)(.*)$", outside, flags=re.MULTILINE):
        assert not re.match(r"(>>>|import |from \w+ import |rs\.|\w+ = |print\()", indented), indented


# Names


MEMBERS = (FunctionType, property, cached_property, classmethod, staticmethod)


def documented() -> set[str]:
    return set(re.findall(r"^\.\. auto\w+:: (rotoscope[\w.]*)", read("docs/api.md"), flags=re.MULTILINE))


def resolve(name: str) -> Any:
    """What a dotted name stands for; an attribute goes before a module of the same name."""
    found: Any = rs
    for end, part in enumerate(name.split(".")[1:], start=2):
        found = getattr(found, part, None) or import_module(".".join(name.split(".")[:end]))
    return found


def test_every_public_name_is_documented() -> None:
    rooms = [name for name in rs.__all__ if inspect.ismodule(getattr(rs, name))]
    names = {f"rotoscope.{name}" for name in rs.__all__ if name not in rooms and name != "__version__"}
    assert not names - documented()
    for room in rooms:
        assert f"`rotoscope.{room}`" in read("docs/api.md"), room


def test_every_error_is_documented_and_every_extra_in_a_hint_exists() -> None:
    assert {name.rpartition(".")[2] for name in documented()} >= set(errors.__all__)
    source = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "rotoscope").rglob("*.py"))
    named = set(re.findall(r"""pip_install\(['"]([a-z]+)['"]\)""", source))
    assert named <= set(tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"])
    assert named == {*EXTRAS, "demo"}, "what doctor looks for"
    assert "pip install 'rotoscope[" not in source.replace("pip install 'rotoscope[{extra}]'", "")


def test_a_public_function_is_never_a_module() -> None:
    """What a package offers is the function, whatever is imported first: `rs.tasks.binding` is never a module."""
    packages = [getattr(rs, name) for name in rs.__all__ if inspect.ismodule(getattr(rs, name))]
    functions = [
        (package, name, getattr(package, name))
        for package in packages
        for name in getattr(package, "__all__", vars(package))
        if inspect.isfunction(getattr(package, name))
    ]
    assert len(functions) > 50
    for package, name, function in functions:
        import_module(function.__module__)
        assert getattr(package, name) is function, name


def test_documented_names_exist_and_say_something() -> None:
    for name in documented():
        found = resolve(name)
        text = inspect.getdoc(found) or ""
        assert len(text.split()) >= 4, name
        for owner in inspect.getmro(found) if inspect.isclass(found) else ():
            if owner.__module__.startswith("rotoscope."):
                for title, member in vars(owner).items():
                    if not title.startswith("_") and isinstance(member, MEMBERS):
                        assert inspect.getdoc(member), f"{name}.{title}"


def test_every_results_class_is_documented() -> None:
    classes = {kind.result.rpartition(":")[2] for _, kind in result_kinds().values()} - {
        "WatchedTraining",
        "TurnoverStudy",
    }
    assert classes <= {name.rpartition(".")[2] for name in documented()}


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = re.findall(r"^(?!:|`)(\w+)$", read("docs/index.md"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(page.stem for page in ROOT.glob("docs/*.md") if page.stem != "index")


def build_site(place: Path) -> None:
    """As `make docs` does, in a process of its own: extensions make Sphinx warn of what it will remove."""
    pytest.importorskip("sphinx", reason="the docs extra is not installed")
    strictly = ["-W", "--keep-going", "-q", "-b", "html", str(ROOT / "docs"), str(place)]
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "sphinx", *strictly], env=known, check=True)


@pytest.mark.slow
def test_the_site_asks_nobody(tmp_path: Path) -> None:
    """Built strictly, and every script, style and picture is its own."""
    build_site(tmp_path)
    pages = list(tmp_path.glob("*.html"))
    assert {page.stem for page in pages} >= {page.stem for page in ROOT.glob("docs/*.md")}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"([^\"]+)", text)
        loaded += re.findall(r"<link[^>]*\srel=\"stylesheet\"[^>]*\shref=\"([^\"]+)", text)
        assert loaded
        assert not [address for address in loaded if re.match(r"(\w+:)?//", address)], page.name


def test_the_readme_is_short() -> None:
    """In words, and in lines of Python: five and an import, then two for each thing of one's own."""
    page = read("README.md")
    assert len(page.split()) <= 700
    first, *others = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(ast.parse(first).body) <= 5
    assert len(others) == 3
    assert all(len(block.splitlines()) <= 2 for block in others)


def test_the_documentation_is_short_and_asks_first() -> None:
    """Every page begins with the question it answers."""
    pages = {page.name: page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*.md")}
    assert sum(len(page.split()) for page in pages.values()) <= 25_000
    for name, page in pages.items():
        first = re.search(r"^# .+\n+(.+)", page, flags=re.MULTILINE)
        assert first, name
        assert "?" in first.group(1), name


def test_the_readme_counts_architectures() -> None:
    """The row of headline figures says how many architectures the tests read."""
    count = len({name.split()[0] for name in ARCHITECTURES} - {"llama-3"})
    assert f"{count} architectures" in read("README.md")
