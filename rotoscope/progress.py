"""Progress of long work: a bar with an estimate on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Progress", "progress"]


class Progress(Protocol):
    """Told how far the work is."""

    def advance(self, amount: float = 1) -> None: ...


class _Silent:
    def advance(self, amount: float = 1) -> None:
        pass


@contextmanager
def progress(title: str, total: float, show: bool | None = None) -> Iterator[Progress]:
    """A progress bar on standard error; by default only where a person is looking."""
    if not (sys.stderr.isatty() if show is None else show):
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        class _Shown:
            def advance(self, amount: float = 1) -> None:
                bar.advance(task, amount)

        yield _Shown()
