"""Environments with packages of others, made when a test first asks for one.

Each lies on top of this environment: whatever is here is found there, so only what is missing is installed.
"""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".venv-others"
PACKAGES = {
    "lens": ("transformer-lens==4.3.0", "nnsight==0.8.1"),
    "hooked": ("transformer-lens==3.9.0",),  # the last with a HookedTransformer
}
ALONE = {"kvpress": ("torch==2.13.0", "kvpress==0.5.5")}
"""Packages that want other versions than ours: nothing of this environment is found there."""


def python_of(name: str, packages: tuple[str, ...] | None = None) -> Path:
    """The interpreter of an environment, with packages of its own; the test is skipped where they cannot be had."""
    place, packages = PLACE / name, packages or (PACKAGES | ALONE)[name]
    python, ready = place / "bin" / "python", place / "ready.txt"
    if not ready.is_file() or ready.read_text() != " ".join(packages):
        venv.create(place, clear=True, with_pip=True)
        wanted = list(packages)
        if name not in ALONE:
            inside = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
            (inside / "below.pth").write_text(sysconfig.get_path("purelib"))
            wanted = ["--constraint", str(ROOT / "constraints.txt"), *packages]
        made = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *wanted], capture_output=True, text=True, check=False
        )
        if made.returncode:
            why = made.stderr.strip().splitlines()[-1:]
            pytest.skip(f"{' and '.join(packages)} cannot be installed here: {' '.join(why)}")
        ready.write_text(" ".join(packages))
    return python
