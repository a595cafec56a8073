"""Memory that is not there is a sentence, not a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rotoscope import cli
from rotoscope.command import make_app

PROGRAM = """
import re, resource, sys
import torch, rotoscope.experiments.profile.run, rotoscope.cli
taken = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (taken + 300_000_000, resource.RLIM_INFINITY))
rotoscope.cli.main(sys.argv[1:])
"""


def test_a_cpu_without_memory(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bytes than any machine can address: torch says no in its own words."""
    monkeypatch.setattr(cli, "app", lambda: make_app({"profile": lambda: int(torch.empty(10**15)[0])}))
    code, _, problem = run("profile")
    assert (code, problem) == (
        2,
        "rotoscope: out of memory: use fewer or shorter prompts, smaller batches, a smaller model or another --device\n",
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux limits the memory of a process")
def test_a_process_under_a_limit(tmp_path: Path) -> None:
    """A limit that the system sets and nobody is told of: work that does not fit says so."""
    line = [
        "canonical",
        "index",
        "--preset",
        "paper",
        "--seeds",
        "1000",
        "--device",
        "cpu",
        "--out",
    ]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line, str(tmp_path / "run")], capture_output=True, text=True
    )
    assert ended.returncode == 2, ended.stderr
    assert "rotoscope: out of memory: use fewer" in ended.stderr
    assert "Traceback" not in ended.stderr
