"""Cases one after the other, in processes that are watched: one that crashes or hangs is a finding, not the end.

A **part** makes a function that tries one case, drawn from a generator that is seeded by the campaign's seed, the part's
name and the number of the case; so every case can be made again by its number.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from tests.campaign.scratch import require

Case = Callable[[int, Random], "str | None"]
"""Tries one case; says what went wrong, or nothing."""
BOARD = struct.Struct("qdqq")


@dataclass(frozen=True)
class Part:
    """One of the campaign's fuzzers."""

    name: str
    prepare: Callable[[Path, Path], Case]
    """From a folder of its own and the stock of runs."""
    share: float
    """Of the budget."""
    limit_s: float = 30.0
    """No case may take longer."""
    counts: str = "bad inputs"
    """What its cases are."""


@dataclass
class Finding:
    part: str
    case: int
    seed: int
    what: str

    @property
    def again(self) -> str:
        """The line that makes it again."""
        return f"python -m tests.campaign --seed {self.seed} --case {self.part}:{self.case}"


@dataclass
class Tally:
    """What came of a part."""

    cases: int = 0
    extra: int = 0
    """What a part counts beside its cases: kills."""
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def stored(self) -> dict[str, object]:
        return asdict(self) | {"findings": [asdict(one) | {"again": one.again} for one in self.findings]}


def drawing(seed: int, part: str, number: int) -> Random:
    """The generator of a case."""
    return Random(f"{seed}/{part}/{number}")


class Board:
    """What a worker is at, where whoever watches it can see it."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, BOARD.size)

    def write(self, case: int, began: float, done: int, extra: int = 0) -> None:
        self._shared[:] = BOARD.pack(case, began, done, extra)

    def read(self) -> tuple[int, float, int, int]:
        return BOARD.unpack(self._shared[:])  # type: ignore[return-value]


def attempt(part: Part, case: Case, number: int, seed: int) -> str | None:
    """One case; whatever it raises is a finding too."""
    from tests.campaign.kinds import where

    require()
    try:
        return case(number, drawing(seed, part.name, number))
    except Exception as problem:
        return f"traceback: {where(problem)}"


def work(
    part: Part, place: Path, stock: Path, seed: int, numbers: Iterator[int], until: float, board: Board
) -> None:
    """Try cases until the time is over; findings go to a file, one line each."""
    require()
    place.mkdir(parents=True, exist_ok=True)
    os.chdir(place)
    board.write(-1, time.monotonic(), 0)
    case = part.prepare(place, stock)
    findings = (place.parent / f"{place.name}.findings").open("a", buffering=1)
    gc.freeze()
    done = 0
    for number in numbers:
        if time.monotonic() > until:
            break
        board.write(number, time.monotonic(), done, getattr(case, "extra", 0))
        what = attempt(part, case, number, seed)
        done += 1
        if what is not None:
            findings.write(json.dumps([number, what]) + "\n")
    board.write(-1, time.monotonic(), done, getattr(case, "extra", 0))
    close = getattr(case, "close", None)
    if close is not None:
        close()


class Worker:
    """A process that tries cases of a part, started again where it crashed or hung."""

    def __init__(
        self, part: Part, place: Path, stock: Path, seed: int, first: int, step: int, seconds: float
    ) -> None:
        self.part, self.place, self.stock, self.seed = part, place, stock, seed
        self.next, self.step = first, step
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.tally = Tally()
        self._start()

    def _start(self) -> None:
        self.board = Board()
        self.board.write(-1, time.monotonic(), 0)
        self.child = os.fork()
        if self.child == 0:
            code = 1
            try:
                os.setsid()
                numbers = iter(range(self.next, 1 << 60, self.step))
                work(self.part, self.place, self.stock, self.seed, numbers, self.until, self.board)
                code = 0
            finally:
                if code:
                    import traceback

                    traceback.print_exc()
                os._exit(code)

    def going(self) -> bool:
        """Look after the process; whether it still works."""
        ended, status = os.waitpid(self.child, os.WNOHANG)
        number, began, _, _ = self.board.read()
        late = time.monotonic() - began > (self.part.limit_s if number >= 0 else 120)
        if not ended and not late:
            return True
        if not ended:
            os.killpg(self.child, signal.SIGKILL)
            status = os.waitpid(self.child, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        self._collect()
        if code == 0:
            return False
        what = (
            f"hang: more than {self.part.limit_s:g} s" if not ended else f"crash: the process ended with {code}"
        )
        self.tally.findings.append(Finding(self.part.name, number, self.seed, what))
        if number < 0:  # nothing can be prepared: no use in trying again
            return False
        self.next = number + self.step
        if time.monotonic() < self.until:
            self._start()
            return True
        return False

    def _collect(self) -> None:
        number, _, done, extra = self.board.read()
        self.tally.cases += done + (number >= 0)
        self.tally.extra += extra
        self.tally.seconds = time.monotonic() - self.began
        file = self.place.parent / f"{self.place.name}.findings"
        if file.exists():
            for text in file.read_text().splitlines():
                case, what = json.loads(text)
                self.tally.findings.append(Finding(self.part.name, case, self.seed, what))
            file.unlink()


def run_parts(
    parts: list[Part], place: Path, stock: Path, seed: int, budget_s: float, workers: int = 2
) -> dict[str, Tally]:
    """Every part for its share of the budget, on so many processes at a time."""
    whole = sum(part.share for part in parts)
    waiting = [
        (part, first, budget_s * part.share / whole)
        for part in sorted(parts, key=lambda one: -one.share)
        for first in range(workers)
    ]
    tallies = {part.name: Tally() for part in parts}
    at_work: list[Worker] = []
    while waiting or at_work:
        while waiting and len(at_work) < workers:
            part, first, seconds = waiting.pop(0)
            at_work.append(Worker(part, place / f"{part.name}-{first}", stock, seed, first, workers, seconds))
        time.sleep(0.02)
        for worker in [one for one in at_work if not one.going()]:
            at_work.remove(worker)
            found, whole_of = worker.tally, tallies[worker.part.name]
            whole_of.cases += found.cases
            whole_of.extra += found.extra
            whole_of.seconds += found.seconds
            whole_of.findings += found.findings
            print(
                f"{worker.part.name}: {found.cases} cases in {found.seconds:.0f} s, {len(found.findings)} findings",
                flush=True,
            )
    return tallies
