"""Items in processes of this machine: one per GPU, or one per two cores, each with one torch thread.

Every process is an executor of its own with one worker, so that a process that dies takes only its own item with it: another
takes its place, and the item goes on where its run was.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rotoscope.errors import RotoscopeError
from rotoscope.sweeps.items import Item
from rotoscope.sweeps.result import FAILED, FINISHED, Outcome, close, outcome_of
from rotoscope.sweeps.run_item import run_item

CORES_EACH = 2
MOST_LOSSES = 5
"""How often an item may lose its process before it counts as failed."""
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Results must not depend on the number of processes, nor processes compete for cores."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
TASK: Callable[[Sequence[str], Path], Outcome] = run_item
"""What a process does with an item's command line and folder."""

Ended = Callable[[Item, Outcome], object]


def cores() -> int:
    """The processor cores that this program may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def gpus() -> list[str]:
    """The GPUs that this program may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    return names[:count] if names else [str(k) for k in range(count)]


def environments(workers: int | None, items: Sequence[Item]) -> list[dict[str, str]]:
    """The environment of each process: a GPU of its own, where there are GPUs and an item may use them.

    Items that spread a model over several devices see all GPUs and run one after the other.
    """
    cards = [] if all(item.on_cpu for item in items) else gpus()
    if cards and any(item.spread for item in items):
        return [dict(THREADS)]
    usual = len(cards) or max(1, cores() // CORES_EACH)
    count = min(workers or usual, max(1, len(items)))
    return [THREADS | ({VISIBLE: cards[k % len(cards)]} if cards else {}) for k in range(count)]


class LocalPool:
    """One executor with one process for each environment."""

    def __init__(self, environments: Sequence[Mapping[str, str]]) -> None:
        self.environments = environments
        self._spawn = multiprocessing.get_context("spawn")
        self._alive, self._driver = self._spawn.Pipe(duplex=False)
        self._executors = [self._executor() for _ in environments]

    def _executor(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            1, mp_context=self._spawn, initializer=_end_with_driver, initargs=(self._alive,)
        )

    def run(
        self, items: Sequence[Item], folder: Path, ended: Ended, doing: Callable[[Sequence[str]], object]
    ) -> None:
        """Run all items; `ended` is called with each outcome, `doing` with the names of the items that are running."""
        waiting, losses = deque(items), Counter[str]()
        idle = list(range(len(self._executors)))
        running: dict[Future[Outcome], tuple[int, Item]] = {}
        while waiting or running:
            while waiting and idle:
                k, item = idle.pop(0), waiting.popleft()
                running[self._submit(k, item, folder)] = k, item
            doing([item.name for _, item in running.values()])
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                k, item = running.pop(future)
                idle.append(k)
                try:
                    ended(item, future.result())
                except BrokenProcessPool:
                    self._executors[k] = self._executor()
                    losses[item.name] += 1
                    outcome = outcome_of(folder / item.name)
                    if outcome.state == FINISHED:  # it was killed after its last word
                        ended(item, outcome)
                    elif losses[item.name] < MOST_LOSSES:
                        waiting.appendleft(item)
                    else:
                        ended(item, _given_up(folder / item.name))

    def _submit(self, k: int, item: Item, folder: Path) -> Future[Outcome]:
        with _starting(self.environments[k]):
            return self._executors[k].submit(TASK, item.line(folder), folder / item.name)

    def end(self) -> None:
        """End all processes, whatever they are doing."""
        self._driver.close()
        for executor in self._executors:
            executor.shutdown(wait=True, cancel_futures=True)
        self._alive.close()


@contextmanager
def pool(environments: Sequence[Mapping[str, str]]) -> Iterator[LocalPool]:
    """Processes that are gone when the block ends."""
    processes = LocalPool(environments)
    try:
        yield processes
    finally:
        processes.end()


@contextmanager
def _starting(environment: Mapping[str, str]) -> Iterator[None]:
    """Start a process with this environment, and without running the caller's script in it once more."""
    main = sys.modules["__main__"].__dict__
    hidden: dict[str, Any] = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    before = {name: os.environ.get(name) for name in environment}
    main["__spec__"] = None
    os.environ.update(environment)
    try:
        yield
    finally:
        main.update(hidden)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end_with_driver(alive: Connection) -> None:
    """Make this process end as soon as its driver has ended, however it did; Ctrl-C is the driver's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        alive.poll(None)  # until the driver's end of the pipe is closed
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _given_up(folder: Path) -> Outcome:
    """Note that an item has lost its process again and again."""
    reason = f"its process was killed {MOST_LOSSES} times; memory may be short: run fewer at once (--workers), or make the item smaller"
    outcome = Outcome(FAILED, None, reason)
    with suppress(RotoscopeError):  # where nothing can be written, the sweep's own table says it
        close(folder, outcome)
    return outcome
