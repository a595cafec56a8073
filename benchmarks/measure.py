"""Timing and memory, and the table that says whether a target is met."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

console = Console(highlight=False, width=110)


def best_of(repeats: int, *functions: Callable[[], object]) -> list[float]:
    """Seconds of each function: interleaved, after a warm-up, the best of several tries."""
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(repeats):
        for k, function in enumerate(functions):
            began = time.perf_counter()
            function()
            times[k].append(time.perf_counter() - began)
    return [min(found) for found in times]


def aimed(ratio: float, aim: float | None) -> str:
    """Whether a ratio came as far down as is aimed at."""
    return "" if aim is None else f"{aim}x {'reached' if ratio <= aim else 'missed'}"


def peak_gigabytes(program: str) -> float:
    """Peak memory of a Python program in a process of its own."""
    output = subprocess.run(
        [sys.executable, "-c", f"{program}\nfrom benchmarks.measure import own_peak; print(own_peak())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(output.stdout.split()[-1])


def own_peak() -> float:
    """Peak resident memory of this process alone. The `ru_maxrss` of a child may be its parent's, so Linux is asked."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def from_here() -> float:
    """Begin the peak of this process anew where the system can (Linux); it is then what is held now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return own_peak()


class Report:
    """Rows of a benchmark, printed as they come in one table at the end."""

    def __init__(self, title: str, *columns: str) -> None:
        self.title = title
        self.table = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            self.table.add_column(column, justify="right")
        self.table.add_column("target")
        self.table.add_column("")

    def row(self, *cells: str, target: str = "", met: bool | None = None) -> None:
        verdict = "" if met is None else "[green]met[/]" if met else "[red]not met[/]"
        self.table.add_row(*cells, target, verdict)

    def show(self) -> None:
        console.print(f"[bold]{self.title}[/]")
        console.print(self.table)
        console.print()
