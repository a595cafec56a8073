"""Small edits of the program that are found by function and expression."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parent
REQUIRED = {"why": str, "function": str, "expression": str, "replacement": str, "tests": list}
OPTIONAL = {"occurrence": int}


class EditError(Exception):
    """An edit that does not apply, and why."""


@dataclass(frozen=True)
class Breakage:
    """One place in the program, what is wrong there, and which tests must notice."""

    name: str
    why: str
    function: str
    expression: str
    replacement: str
    tests: list[str]
    occurrence: int | None = None


@dataclass(frozen=True)
class Source:
    """One module of the package."""

    path: Path
    text: str

    @cached_property
    def definitions(self) -> list[tuple[str, ast.stmt]]:
        """Functions, methods, classes and constants by their qualified names."""
        return list(_definitions(ast.parse(self.text), ""))

    def offset(self, line: int, column: int) -> int:
        """Where a line and a column of the syntax tree are in the encoded text."""
        lines = self.text.encode().splitlines(keepends=True)
        return sum(map(len, lines[: line - 1])) + column

    def replaced(self, node: ast.expr | ast.stmt, replacement: str) -> str:
        whole = self.text.encode()
        start = self.offset(node.lineno, node.col_offset)
        stop = self.offset(node.end_lineno or 0, node.end_col_offset or 0)
        return (whole[:start] + replacement.encode() + whole[stop:]).decode()


class Package:
    """The modules of a package in which edits are looked up."""

    def __init__(self, folder: Path) -> None:
        self.sources = [Source(path, path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]

    def definitions(self, name: str) -> Iterator[tuple[Source, ast.stmt]]:
        """Every definition of a function, method, class or constant with this name."""
        last = name.rpartition(".")[2]
        for source in self.sources:
            if f"def {last}(" in source.text or f"class {last}" in source.text or last.isupper():
                for qualified, node in source.definitions:
                    if f".{qualified}".endswith(f".{name}"):
                        yield source, node

    def edit(self, breakage: Breakage) -> tuple[Path, str]:
        """The file that a breakage changes, and its text afterwards."""
        pattern = _parsed(breakage.expression)
        structure = ast.dump(pattern)
        definitions = list(self.definitions(breakage.function))
        matches = [
            (source, node)
            for source, definition in definitions
            for node in _in_order(definition)
            if type(node) is type(pattern) and ast.dump(node) == structure
        ]
        if not definitions:
            raise EditError(f"nothing is called {breakage.function}")
        if breakage.occurrence is not None and len(definitions) == 1:
            matches = matches[breakage.occurrence - 1 : breakage.occurrence]
        if len(matches) != 1:
            raise EditError(
                f"{breakage.function} holds {breakage.expression!r} {len(matches)} times, expected once"
            )
        source, node = matches[0]
        if ast.dump(_parsed(breakage.replacement)) == structure:
            raise EditError("the replacement says the same")
        is_expression = isinstance(node, ast.expr) and isinstance(_parsed(breakage.replacement), ast.expr)
        text = source.replaced(node, f"({breakage.replacement})" if is_expression else breakage.replacement)
        try:
            ast.parse(text)
        except SyntaxError as problem:
            raise EditError(f"the replacement does not fit there ({problem})") from problem
        return source.path, text


def read_room(path: Path) -> list[Breakage]:
    """The breakages of one file."""
    room = path.stem
    breakages: list[Breakage] = []
    for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
        kinds = REQUIRED | {key: kind for key, kind in OPTIONAL.items() if key in fields}
        wrong = fields.keys() ^ kinds.keys() or {
            key for key, kind in kinds.items() if not isinstance(fields[key], kind)
        }
        if wrong or not fields["tests"]:
            raise SystemExit(f"{room}/{name}: expected {', '.join(REQUIRED)}; see tests/breakages")
        breakages.append(Breakage(f"{room}/{name}", **fields))
    return breakages


def read_all() -> list[Breakage]:
    return [breakage for path in sorted(HERE.glob("*.toml")) for breakage in read_room(path)]


def _parsed(text: str) -> ast.expr | ast.stmt:
    try:
        body = ast.parse(text).body
    except SyntaxError as problem:
        raise EditError(f"{text!r} is no Python ({problem})") from problem
    if len(body) != 1:
        raise EditError(f"{text!r} is not one expression or statement")
    return body[0].value if isinstance(body[0], ast.Expr) else body[0]


def _definitions(parent: ast.AST, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(parent, ast.FunctionDef):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield prefix + name.id, node
        elif isinstance(node, ast.stmt):
            yield from _definitions(node, prefix)


def _in_order(definition: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a definition as they are read, from the first line to the last."""
    yield definition
    for node in ast.iter_child_nodes(definition):
        yield from _in_order(node)  # type: ignore[arg-type]
