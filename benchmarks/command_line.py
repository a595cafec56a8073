"""What a user waits for before anything happens, and what a minute of training is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import rotoscope as rs
from benchmarks.measure import Report

MOST_HELP, MOST_MINI, MOST_WATCHING = 0.7, 300.0, 0.15


def processor_seconds(*command: str) -> float:
    """User and system time of a program."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    report = Report("the command line and the mini training", "what", "measured")
    spent = min(processor_seconds(str(Path(sys.executable).with_name("rotoscope")), "--help") for _ in range(3))
    report.row(
        "rotoscope --help, processor time", f"{spent:.2f} s", target=f"< {MOST_HELP} s", met=spent < MOST_HELP
    )
    for task in ("number", "letter"):
        run = rs.lab.train(task, "mini", on_evaluate=rs.experiments.Watch(), device="cpu", show_progress=False)
        total = run.run.timings["total_s"]
        report.row(
            f"mini training, {task}", f"{total:.0f} s", target=f"< {MOST_MINI:.0f} s", met=total < MOST_MINI
        )
        for place in sorted(Path(rs.__file__).parent.glob(f"stored/{task}/**/run.json")):
            kept = rs.open(place.parent)
            if isinstance(kept, rs.lab.Training):
                share = kept.run.timings["watching_s"] / kept.run.timings["training_s"]
                report.row(
                    f"scoring heads in the stored training {task} {place.parent.name}", f"{share:.1%}",
                    target=f"<= {MOST_WATCHING:.0%}", met=share <= MOST_WATCHING,
                )  # fmt: skip
    report.show()
