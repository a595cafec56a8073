"""A file layer with faults: at every step that a run takes on the disk, it is killed, finds the disk full, or writes half.

A step is whatever Python announces to its audit hooks (opening to write, renaming, removing, making folders) below the
run folder, and every table and array that other languages write. The undisturbed run is counted first; then the
same command meets one fault at one step, and is run again without any.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.campaign.damage import remove
from tests.campaign.kinds import Ended, content, difference, end_of, forked, in_a_fork, line, made
from tests.campaign.runner import Case, Part

FAULTS = ("kill", "full", "broken", "half", "limit")
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}


class Layer:
    """Counts the steps of this process below a folder, and makes one of them fail; there is no way back."""

    def __init__(self, folder: Path, at: int = 0, fault: str = "") -> None:
        self.folder, self.at, self.fault = str(folder), at, fault
        self.steps = 0
        self._within = False
        sys.addaudithook(self._heard)
        self._wrap()

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or self._within:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if any(isinstance(one, str | os.PathLike) and self._is_ours(one) for one in arguments[:2]):
            self._step(str(arguments[0]))

    def _is_ours(self, path: Any) -> bool:
        return os.path.abspath(os.fspath(path)).startswith(self.folder)

    def _step(self, path: str) -> None:
        self.steps += 1
        if self.steps != self.at:
            return
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "limit":  # from now on no file can be longer than this
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, resource.RLIM_INFINITY))
            return
        code = errno.EIO if self.fault == "broken" else errno.ENOSPC
        raise OSError(code, os.strerror(code), path)

    def _wrap(self) -> None:
        """Writers of other languages announce nothing: they are steps as a whole, and can stop in the middle."""
        import pyarrow.parquet as pq
        import safetensors.torch

        def wrapped(write: Callable[..., Any], place: int) -> Callable[..., Any]:
            def stepped(*args: Any, **options: Any) -> Any:
                file = args[place]
                if isinstance(file, str | os.PathLike) and self._is_ours(file):
                    if self.fault == "half" and self.steps + 1 == self.at:
                        write(*args, **options)
                        self._within = True
                        os.truncate(file, os.path.getsize(file) // 2)
                        self._within = False
                    self._step(str(file))
                return write(*args, **options)

            return stepped

        pq.write_table = wrapped(pq.write_table, 1)
        safetensors.torch.save_file = wrapped(safetensors.torch.save_file, 1)


def prepare(place: Path, stock: Path) -> Case:
    return _Faults(place, stock)


class _Faults:
    """Every step of every kind with every fault, none twice before all were tried."""

    def __init__(self, place: Path, stock: Path) -> None:
        self.place = place
        self.out, self.report = place / "out", place / "report.json"
        for needed in ("train", "model", "template.txt"):
            if not (place / needed).exists():
                (shutil.copytree if (stock / needed).is_dir() else shutil.copy)(stock / needed, place / needed)
        self.expected = {name: content(stock / name) for name in made(stock)}
        self._orders: dict[str, list[tuple[int, str]]] = {}

    def _order(self, name: str) -> list[tuple[int, str]]:
        """Every step of the undisturbed run with every fault."""
        if name not in self._orders:
            remove(self.out)
            steps = self._run(name, 0, "").steps
            self._orders[name] = [(step + 1, fault) for step in range(steps) for fault in FAULTS]
            Random(name).shuffle(self._orders[name])
        return self._orders[name]

    def _run(self, name: str, at: int, fault: str) -> Any:
        """The command with a fault, in a process of its own."""
        from tests.campaign.kinds import run_command

        seen = self.place / "seen.txt"

        def work() -> int:
            layer = Layer(self.out, at, fault)
            ended = run_command(line(name, "out"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            seen.write_text(f"{layer.steps}\n{ended.code}\n{ended.leaked}\n{ended.problem}")
            return 0

        remove(seen)
        code = os.waitstatus_to_exitcode(os.waitpid(forked(work), 0)[1])
        if code != 0:
            return _Seen(0, Ended(code))
        steps, ended_with, leaked, problem = seen.read_text().split("\n", 3)
        return _Seen(int(steps), Ended(int(ended_with), problem, leaked))

    def __call__(self, number: int, draw: Random) -> str | None:
        names = sorted(self.expected)
        name = names[number % len(names)]
        order = self._order(name)
        step, fault = order[number // len(names) % len(order)]
        told = f"{name}, {fault} at step {step}"
        remove(self.out)
        seen = self._run(name, step, fault)
        if wrong := seen.ended.wrong(2, *([-signal.SIGKILL] if fault == "kill" else [])):
            return f"{told}: {wrong}"
        ended = end_of(in_a_fork(line(name, "out"), self.report), self.report)
        if wrong := ended.wrong():
            return f"{told}, and again: {wrong}"
        if differs := difference(self.expected[name], content(self.out)):
            return f"{told}: {differs}"
        return None


class _Seen:
    def __init__(self, steps: int, ended: Ended) -> None:
        self.steps, self.ended = steps, ended


PART = Part("faults", prepare, share=0.1, limit_s=60, counts="faults")
