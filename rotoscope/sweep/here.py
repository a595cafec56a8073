"""Items in processes of this machine: one per GPU, or one per two cores, each with one torch thread.

A process is kept for several items, so that libraries are read once. One that dies takes nothing with it but its own try:
another takes its place, and the item goes on where its run was.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rotoscope.errors import RotoscopeError
from rotoscope.results.items import FAILED, FINISHED, Outcome, close, outcome_of
from rotoscope.sweep.items import Item

CORES_EACH = 2
MOST_TRIES = 5
"""How often an item is begun whose process is killed, before it counts as failed."""
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Several processes on few cores must not fight for them; and a result must not depend on how many there are."""
WORKER, DRIVER = "rotoscope.sweep.worker", "SWEEP_DRIVER"
"""The program of a process, and the variable that tells it who started it."""
VISIBLE = "CUDA_VISIBLE_DEVICES"

Ended = Callable[[Item, Outcome], object]


def cores() -> int:
    """That this program may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # no such question on this system
        return os.cpu_count() or 1


def gpus() -> list[str]:
    """The GPUs of this machine that this program may use, as their driver calls them."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    return named[:count] if named else [str(k) for k in range(count)]


def environments(workers: int | None, items: Sequence[Item]) -> list[dict[str, str]]:
    """What each process is started with: a GPU of its own where there are some and items may use them.

    Items that are spread over several devices have all of them, one item after the other.
    """
    cards = [] if all(item.on_cpu for item in items) else gpus()
    if cards and any(item.spread for item in items):
        return [dict(THREADS)]
    usual = len(cards) or max(1, cores() // CORES_EACH)
    count = min(workers or usual, max(1, len(items)))
    return [THREADS | ({VISIBLE: cards[k % len(cards)]} if cards else {}) for k in range(count)]


@dataclass
class Pool:
    """Processes that wait for items."""

    places: list[Mapping[str, str]]
    held: tuple[int, ...] = ()
    """Open files that the processes hold as long as they live: the locks of the sweep."""
    workers: list[_Worker] = field(default_factory=list)

    def run(
        self,
        items: Sequence[Item],
        folder: Path,
        ended: Ended,
        doing: Callable[[Sequence[str]], object],
    ) -> None:
        """Run all items; `ended` is told of each, `doing` what is running."""
        left, tries = list(items), dict[str, int]()
        with selectors.DefaultSelector() as answers:
            for worker in self.workers:
                answers.register(worker.output, selectors.EVENT_READ, worker)
            while left or self._running():
                for worker in [one for one in self.workers if one.item is None]:
                    item = next(iter(left), None)
                    if item is not None and worker.give(item, folder):
                        left.remove(item)
                        tries[item.name] = tries.get(item.name, 0) + 1
                doing([item.name for item in self._running()])
                for key, _ in answers.select():
                    worker = key.data
                    for outcome in worker.heard():
                        ended(worker.put_down(), outcome)
                    if worker.gone:
                        answers.unregister(worker.output)
                        fresh = self._replaced(worker)
                        answers.register(fresh.output, selectors.EVENT_READ, fresh)
                        code, item = worker.end(), worker.item
                        if item is None:
                            continue
                        outcome = outcome_of(folder / item.name)
                        if outcome.state == FINISHED:  # and killed before it could say so
                            ended(item, outcome)
                        elif tries[item.name] < MOST_TRIES:
                            left.insert(0, item)
                        else:
                            ended(item, _given_up(item, folder, code))

    def _replaced(self, worker: _Worker) -> _Worker:
        """Another process in place of one that has died."""
        fresh = _Worker(worker.place, self.held)
        self.workers[self.workers.index(worker)] = fresh
        return fresh

    def _running(self) -> list[Item]:
        return [worker.item for worker in self.workers if worker.item is not None]


@contextmanager
def pool(places: Sequence[Mapping[str, str]], held: tuple[int, ...] = ()) -> Iterator[Pool]:
    """Processes that are started now, and gone at the end."""
    made = Pool(list(places), held)
    try:
        for place in places:
            made.workers.append(_Worker(place, held))
        yield made
    finally:
        for worker in made.workers:
            worker.end()


class _Worker:
    """One process, and the item it is at."""

    def __init__(self, place: Mapping[str, str], held: tuple[int, ...]) -> None:
        self.place = place
        self.item: Item | None = None
        self.gone = False
        self._said = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **place, DRIVER: str(os.getpid())},
            pass_fds=held,
            bufsize=0,
        )

    @property
    def output(self) -> IO[bytes]:
        """Where it says how items ended."""
        assert self.process.stdout is not None
        return self.process.stdout

    def give(self, item: Item, folder: Path) -> bool:
        """Hand over an item; not where the process has just died, which the end of its output will tell."""
        assert self.process.stdin is not None
        words = {"words": item.line(folder), "folder": str(folder / item.name)}
        try:
            self.process.stdin.write(json.dumps(words).encode() + b"\n")
        except OSError:
            return False
        self.item = item
        return True

    def heard(self) -> list[Outcome]:
        """How its items ended, as far as it has said so since the last time."""
        new = os.read(self.output.fileno(), 1 << 16)
        self.gone = not new
        *whole, self._said = (self._said + new).split(b"\n")
        return [Outcome(**json.loads(line)) for line in whole]

    def put_down(self) -> Item:
        """The item it was at; now it is free."""
        assert self.item is not None
        item, self.item = self.item, None
        return item

    def end(self) -> int:
        """End the process, if it has not ended; how it did."""
        self.process.kill()
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        return code


def _given_up(item: Item, folder: Path, code: int) -> Outcome:
    """An item that has lost its process again and again."""
    how = f"killed ({signal.Signals(-code).name})" if code < 0 else f"ended (exit code {code})"
    said = f"its process was {how} {MOST_TRIES} times; memory may be short: run fewer at once (--workers), or a smaller item"
    outcome = Outcome(FAILED, None, said)
    with suppress(RotoscopeError):  # where nothing can be written, the sweep's own table tells
        close(folder / item.name, outcome)
    return outcome
