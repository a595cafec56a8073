"""Data walks one way through the package: a folder imports only from folders above it in this list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rotoscope"
LAYERS = (
    "scores",
    "tasks",
    "runs",
    "stats",
    "models",
    "measures",
    "plotting",
    "lab",
    "experiments",
    "monitor",
    "report",
    "ledger",
    "sweeps",
    "cli",
)
"""Top to bottom; modules that stand in the package itself are above them all. Runs and stats come before models and measures: a
reader keeps what it has scored as pieces of a run, and a measure says how it is aggregated."""
LOADERS = ("lazy.py", "experiments/registry.py")
"""The only modules that may name what lies below them, as text."""
SURFACE = ("__init__.py", "__main__.py")
"""The public surface names everything, and `python -m rotoscope` is the command line."""


def layer_of(module: str) -> int:
    """The place of "rotoscope.x.y" in the list; -1 for modules of the package itself."""
    parts = module.split(".")
    return LAYERS.index(parts[1]) if len(parts) > 1 and parts[1] in LAYERS else -1


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Every module of ours that a source imports or names as "rotoscope.module:name", with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rotoscope":
            names = [f"rotoscope.{alias.name}" for alias in node.names]
            yield from (
                (node.lineno, name) for name in (names if node.module == "rotoscope" else [str(node.module)])
            )
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.startswith("rotoscope"))
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func) and node.args:
            named = node.args[0]
            if isinstance(named, ast.Constant) and str(named.value).startswith("rotoscope"):
                yield node.lineno, str(named.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            module, colon, _ = node.value.partition(":")
            if colon and module.startswith("rotoscope."):
                yield node.lineno, module


def downward(file: str, source: str) -> list[str]:
    """The imports of a module that point to a folder below its own."""
    own = layer_of(".".join(["rotoscope", *Path(file).with_suffix("").parts]))
    return [f"{file}:{line} imports {module}" for line, module in imported(source) if layer_of(module) > own]


def test_imports_point_upward() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    paths = {file.relative_to(PACKAGE).as_posix(): file for file in files}
    assert {path.split("/")[0] for path in paths if "/" in path} == set(LAYERS)
    wrong = [
        line
        for path, file in paths.items()
        if path not in (*LOADERS, *SURFACE)
        for line in downward(path, file.read_text(encoding="utf-8"))
    ]
    assert not wrong


@pytest.mark.parametrize(
    "source",
    [
        "from rotoscope.report.page import write_report",
        "from rotoscope import report",
        "import rotoscope.report.page",
        "def f():\n    from rotoscope.report import page",
        "f = import_module('rotoscope.report').write_report",
        "f = resolve('rotoscope.report:write_report')",
    ],
)
def test_a_hidden_import_is_found(source: str) -> None:
    assert len(downward("runs/result.py", source)) == 1
    assert not downward("cli/doctor.py", source)
