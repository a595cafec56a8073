"""The worked story (docs/story.md) told again: its commands and its Python, block by block, in a folder of its own.

`python -m tests.story` puts what they print, and their pictures, into the documentation: about ten minutes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "story.md"
FENCE = re.compile(r"```(console|python|text)\n(.*?)```", flags=re.DOTALL)
PICTURES = {"story_plane.png": "runs/story/plane.png", "story_depth_curves.png": "story_depth_curves.png"}


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and content of every block, in the order of the page."""
    return FENCE.findall(page)


def tell(page: str, place: Path) -> Iterator[tuple[str, str]]:
    """Run the page in a folder: for every block of text under Python, what the page shows and what was printed."""
    names: dict[str, Any] = {}
    said = None
    with contextlib.chdir(place):
        for language, block in blocks(page):
            if language == "console":
                run(block, place)
            elif language == "python":
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(block, PAGE.name, "exec"), names)
                said = printed.getvalue()
            elif said is not None:
                yield block, said
            if language != "python":
                said = None


def run(block: str, place: Path) -> None:
    """The commands of a block."""
    for line in block.splitlines():
        program, *words = shlex.split(line.removeprefix("$ "), comments=True)
        command = [str(Path(sys.executable).with_name(program)), *words]
        subprocess.run(command, cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(sys.argv[1] if len(sys.argv) > 1 else folder)  # a folder given keeps its finished runs
        for shown, said in tell(page, place):
            page = page.replace(f"```text\n{shown}```", f"```text\n{said}```", 1)
        for name, file in PICTURES.items():
            shutil.copyfile(place / file, ROOT / "docs" / "images" / name)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
