"""Swaps of the prompt itself: runs of the end of a prompt against whole forward passes, on SmolLM2."""

from __future__ import annotations

import time

import rotoscope as rs
from benchmarks.measure import Report
from benchmarks.swaps import forward
from rotoscope.experiments.depths.swaps import Swapping, swap_at_depths
from rotoscope.measures.batches import batches
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns

PAIRS, SWAPS = 32, 64


def main() -> None:
    """64 swaps of a prompt of 32 facts, everything included, against 64 plain forward passes in turns with it."""
    subject = rs.load("smollm2", device="cpu")
    runs = Reruns(HeadReader(subject.model))
    report = Report(
        f"the prompt permuted: {SWAPS} swaps of {PAIRS} facts, in plain forward passes a swap",
        "prompt", "tokens", "forward", "all swaps", "ratio", "8 prompts",
    )  # fmt: skip
    for number, batch in enumerate(batches(rs.tasks.binding(subject, PAIRS, 2), "last", 1)):
        began = time.perf_counter()
        for _ in range(4):
            forward(subject, batch)
        plain = (time.perf_counter() - began) / 4
        began = time.perf_counter()
        swap_at_depths(runs, batch, Swapping(swaps=SWAPS))
        swapped = time.perf_counter() - began
        ratio = swapped / SWAPS / plain
        report.row(str(number), str(batch.tokens.shape[1]), f"{plain:.2f} s", f"{swapped:.1f} s", f"{ratio:.2f}x",
                   f"{8 * swapped / 60:.1f} min", target="<= 1x, 4 min", met=ratio <= 1 and 8 * swapped <= 240)  # fmt: skip
    report.show()
