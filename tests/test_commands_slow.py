"""The commands of the README and of the documentation, run in a fresh clone: minutes of work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACEHOLDERS = {
    "URL": "needs an endpoint of your own",
    "SERVER": "needs an endpoint of your own",
    "NAME": "needs an endpoint of your own",
    "path/to": "needs a model of your own",
    "gemma": "needs weights from the hub",
    "mine.txt": "needs a template of your own",
    "runs/number-paper-0": "needs a run of your own",
    "--preset paper": "needs a GPU, or minutes more",
    "pip install": "is what made this environment",
    "rotoscope serve": "runs until it is stopped; its own tests start it",
}


def commands() -> list[str]:
    """Every command shown: lines after $ in console blocks, and indented lines that begin with rotoscope."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
            found += [line[2:] for line in block.splitlines() if line.startswith("$ ")]
        found += re.findall(r"^    (rotoscope [a-z].*)$", text, flags=re.MULTILINE)
    cleaned = [re.sub(r"\s+#.*$", "", command).strip() for command in found]
    return list(dict.fromkeys(c for c in cleaned if not any(mark in c for mark in PLACEHOLDERS)))


def test_there_are_commands_to_run() -> None:
    assert {"make demo", "make test", "rotoscope doctor"} <= set(commands())
    assert len(commands()) >= 12


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone that borrows this environment, so that only the project itself is new."""
    place = tmp_path_factory.mktemp("clone") / "rotoscope"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True)
    environment = Path(sys.executable).parents[1]
    (place / ".venv").symlink_to(environment)
    (environment / ".ready").touch()
    return place


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in commands() if c != "make test"])
def test_command(command: str, clone: Path) -> None:
    words = shlex.split(command)
    if words[0] == "rotoscope":
        words[0] = str(Path(sys.executable).with_name("rotoscope"))
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
