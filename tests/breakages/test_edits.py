"""Breakages are found where they should be, and all of them still apply."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.breakages.edits import Breakage, EditError, Package, Source, read_all

ROOT = Path(__file__).parents[2]
MODULE = '''
LIMIT, OTHER = 0.5, 2

def double(x):
    """Of two é characters."""
    return (x +
            x) * 1

class Pair:
    def double(self, x):
        if x > LIMIT:
            self.seen = "é", x + x
            self.forget(x)
        return x - 1, x - 1
'''


def broken(function: str, expression: str, replacement: str, occurrence: int | None = None) -> ast.Module:
    package = Package(Path("nowhere"))
    package.sources = [Source(Path("module.py"), MODULE)]
    breakage = Breakage("room/name", "why", function, expression, replacement, ["test"], occurrence)
    file, text = package.edit(breakage)
    assert file == Path("module.py")
    return ast.parse(text)


@pytest.mark.parametrize(
    ("edit", "before", "after"),
    [
        (("Pair.double", "x + x", "x"), '"é", x + x', '"é", x'),
        (("double", "x > LIMIT", "False"), "x > LIMIT", "False"),
        (("double", "(x + x) * 1", "x * 2 if x else 3"), "(x +\n            x) * 1", "x * 2 if x else 3"),
        (("Pair.double", "self.forget(x)", "pass"), "self.forget(x)", "pass"),
        (("Pair.double", "x - 1", "x", 2), "x - 1, x - 1", "x - 1, x"),
        (("OTHER", "0.5, 2", "2, 2"), "0.5, 2", "2, 2"),
    ],
)
def test_an_edit_changes_one_place(edit: tuple, before: str, after: str) -> None:
    assert MODULE.count(before) == 1
    assert ast.dump(broken(*edit)) == ast.dump(ast.parse(MODULE.replace(before, after)))


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (("triple", "x", "0"), "nothing is called triple"),
        (("double", "x + x", "x"), "2 times, expected once"),
        (("Pair.double", "x - 1", "x"), "2 times, expected once"),
        (("Pair.double", "x + 7", "x"), "0 times, expected once"),
        (("Pair.double", "x + x", "x+x"), "says the same"),
        (("Pair.double", "x + x", "x +"), "no Python"),
        (("Pair.double", "x + x", "pass"), "does not fit there"),
    ],
)
def test_an_edit_that_does_not_apply_says_why(edit: tuple, problem: str) -> None:
    with pytest.raises(EditError, match=problem):
        broken(*edit)


@cache
def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_breakage_applies_and_names_tests_that_exist() -> None:
    package, stale = Package(ROOT / "rotoscope"), []
    for breakage in read_all():
        try:
            package.edit(breakage)
        except EditError as problem:
            stale.append(f"{breakage.name}: {problem}")
        for test in breakage.tests:
            file, _, function = test.partition("::")
            if not (ROOT / file).is_file() or function.partition("[")[0] not in functions_of(ROOT / file):
                stale.append(f"{breakage.name}: no test is called {test}")
    assert not stale, "\n".join(stale)
