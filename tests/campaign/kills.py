"""Runs of every kind, killed at random moments, then the same command again: it ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

from tests.campaign.damage import damaged_bytes, remove
from tests.campaign.kinds import content, difference, end_of, in_a_fork, kill, line, made
from tests.campaign.runner import Case, Part

MOST_KILLS = 4
DAMAGED = 0.15
"""How often a file of the killed run is damaged, too: then the command may also say so."""


def prepare(place: Path, stock: Path) -> Case:
    return _Kills(place, stock)


class _Kills:
    """Counts its kills in `extra`."""

    def __init__(self, place: Path, stock: Path) -> None:
        self.place, self.extra = place, 0
        self.expected = {name: content(stock / name) for name in made(stock)}
        self.took: dict[str, float] = {}
        for needed in ("train", "model", "template.txt"):
            if not (place / needed).exists():
                (shutil.copytree if (stock / needed).is_dir() else shutil.copy)(stock / needed, place / needed)

    def __call__(self, number: int, draw: Random) -> str | None:
        name = draw.choice(sorted(self.expected))
        out, report = self.place / "out", self.place / "report.json"
        remove(out)
        if draw.random() < 0.15 and name != "train":  # in place of another run
            shutil.copytree(self.place / "train", out)
        tokens = [*line(name, "out"), *(["--overwrite"] if out.exists() else [])]
        moments = []
        for _ in range(draw.randrange(1, MOST_KILLS)):
            moments.append(draw.random() * self.took.get(name, 0.5) * 1.05)
            child = in_a_fork(tokens, report)
            time.sleep(moments[-1])
            number = draw.choice((signal.SIGKILL, signal.SIGTERM))
            kill(child, number)
            self.extra += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
        told = f"{name}, killed after {', '.join(f'{moment:.3f}' for moment in moments)} s"
        damaged = draw.random() < DAMAGED and not self._finished(name, out) and self._damage(draw, out)
        began = time.monotonic()
        ended = end_of(in_a_fork(tokens, report), report)
        self.took.setdefault(name, time.monotonic() - began)
        if wrong := ended.wrong(*([2] if damaged else [])):
            return f"{told}{damaged or ''}: {wrong}"
        if ended.code == 2:
            return None
        found = content(out)
        if damaged and "run.json" in found:  # what could not be read is said there
            found["run.json"]["warnings"] = self.expected[name]["run.json"]["warnings"]
        if differs := difference(self.expected[name], found):
            return f"{told}{damaged or ''}: {differs}"
        return None

    @staticmethod
    def _finished(name: str, out: Path) -> bool:
        """Whether the run came to its end before the kill: damage to such runs is for `run_folders`."""
        file = out / "run.json"
        return file.exists() and bool(json.loads(file.read_text())["complete"])

    @staticmethod
    def _damage(draw: Random, out: Path) -> str | None:
        files = sorted(file for file in out.rglob("*") if file.is_file() and file.name != ".lock")
        if not files:
            return None
        file = draw.choice(files)
        file.write_bytes(damaged_bytes(draw, file.read_bytes()))
        return f", {file.relative_to(out)} damaged"


PART = Part("kills", prepare, share=0.24, limit_s=60, counts="killed runs")
