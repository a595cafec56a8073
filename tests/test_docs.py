"""The code blocks of the README and the documentation run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rotoscope as rs

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")] if "```python" in page.read_text()
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(
    page: Path, smollm2: rs.Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
    code = code.replace("count=16", "count=1")  # the README's example, on one prompt
    exec(compile(code, page.name, "exec"), {})


def test_rooms_import_one_way() -> None:
    """Data walks one way: a room imports only from rooms above it."""
    rooms = ["maths", "tasks", "results", "reading", "lab", "analysis", "figures", "report", "cli"]
    for level, room in enumerate(rooms):
        for file in (ROOT / "rotoscope" / room).rglob("*.py"):
            used = re.findall(r"^\s*from rotoscope\.(\w+)", file.read_text(), flags=re.MULTILINE)
            later = [name for name in used if name in rooms[level + 1 :]]
            assert not later, f"{file.relative_to(ROOT)} imports from {later}"
