"""Progress of long work: a bar with the remaining time on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, runtime_checkable

FIRST_S, EVERY_S = 10.0, 30.0
"""Seconds until work counts as long and a log gets its first line, and between two lines."""


@runtime_checkable
class Progress(Protocol):
    """Told how far the work is."""

    def advance(self, amount: float = 1) -> None: ...


@runtime_checkable
class Saying(Progress, Protocol):
    """Told what is being done, too."""

    def doing(self, words: str) -> None: ...


class _Silent:
    def advance(self, amount: float = 1) -> None:
        pass

    def doing(self, words: str) -> None:
        pass


class _Lines:
    """For logs: short work says nothing, long work where it stands now and then, and when it is done."""

    def __init__(
        self,
        title: str,
        total: float | None,
        clock: Callable[[], float],
        write: Callable[[str], object],
        once: bool,
    ) -> None:
        self.title, self.total, self.clock, self.write, self.once = title, total, clock, write, once
        self.done = 0.0
        self.began = clock()
        self.due = self.began + FIRST_S
        self.written = False
        self.words = ""

    def doing(self, words: str) -> None:
        self.words = f"; {words}" if words else ""

    def advance(self, amount: float = 1) -> None:
        self.done += amount
        now = self.clock()
        over = self.total is not None and self.done >= self.total
        if self.done > 0 and not (self.once and self.written) and (now >= self.due or (self.written and over)):
            self.due, self.written = now + EVERY_S, True
            self.write(self.line(now))

    def line(self, now: float) -> str:
        if self.total is None:
            return f"{self.title}: {self.done:.0f} done{self.words}\n"
        share = min(self.done / self.total, 1.0) if self.total else 1.0
        left = timedelta(seconds=round((now - self.began) * (1 - share) / share))
        return f"{self.title}: {self.done:.0f}/{self.total:.0f} ({share:.0%}), {left} left{self.words}\n"


@contextmanager
def says_loading() -> Iterator[None]:
    """A word on a terminal while libraries and a model are read, which takes seconds; it is gone when they are there."""
    shown = sys.stderr.isatty()
    if shown:
        print("loading…", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def progress_bar(
    title: str,
    total: float | None,
    show: bool | None = None,
    *,
    once: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Saying]:
    """Progress on standard error: a bar where a person is looking, a line now and then elsewhere, or a single one (`once`),
    nothing if `show` is False. Without a `total`, nobody knows how much there is to do."""
    if show is False:
        yield _Silent()
        return
    if not (show or sys.stderr.isatty()):
        yield _Lines(title, total, clock, lambda line: print(line, end="", file=sys.stderr, flush=True), once)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        class _Shown:
            def advance(self, amount: float = 1) -> None:
                bar.advance(task, amount)

            def doing(self, words: str) -> None:
                bar.update(task, description=f"{title}: {words}" if words else title)

        yield _Shown()
