"""What prompts of up to 131,072 tokens cost on a GPU: seconds, memory, and how both grow.

    python3 -m benchmarks.long_prompts                  # the shape of an 8B model, on a GPU
    python3 -m benchmarks.long_prompts --quick          # a tiny model on the CPU, in seconds

One prompt at a time, in two cuts: blocks of 8 tokens, as many as fit (cost grows as tokens x blocks, so as tokens squared), and
1,024 blocks whatever the length (cost grows as tokens). Then the heaviest swap of those in the prompt itself, which is two more
passes at most. Weights are random, so attention is flat and no swap can be left out:
the dearest case. Random weights say nothing about heads.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import rotoscope as rs
from benchmarks.floor import wait
from benchmarks.growth import exponent
from benchmarks.llama import BLOCK, Shape, forward, free, make_batch, make_model, score
from benchmarks.measure import Report, console, from_here, own_peak
from rotoscope.experiments.depths.swaps import Swapping, swap_at_depths
from rotoscope.models.reader import HeadReader
from rotoscope.models.rerun import Reruns

LONGEST = 131_072
EIGHT = Shape("8b", 32, 4096, 32, 8, 128, 14_336, positions=LONGEST)
TINY = Shape("tiny", 2, 64, 4, 2, 16, 128, vocabulary=256, positions=LONGEST)
LENGTHS = (8192, 32_768, LONGEST)
QUICK = (512, 1024, 2048)
MOST_SECONDS = 200.0
"""After so long nothing new is begun."""
SHORT = 3.0
"""What takes less is done again, and the better time taken."""
FORWARD, EIGHTS, FIXED = "forward", f"blocks of {BLOCK}", "blocks of equal number"
SWAPPED = "the same, and one swap of the prompt"


@dataclass
class Row:
    """One length and one thing done to it."""

    tokens: int
    work: str
    blocks: int = 0
    seconds: float | None = None
    peak_gigabytes: float | None = None
    """Beyond what the weights take; on a CPU, what the process grew by."""
    ratio: float | None = None
    """To the plain forward pass."""
    extra_gigabytes: float | None = None
    """On top of the plain forward pass."""
    error: str | None = None


def timed(function: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds and gigabytes of one call; short ones are called again, and all on a GPU, where the first makes the kernels."""
    free(device)
    on_gpu = device.type == "cuda"
    held = torch.cuda.memory_allocated(device) / 1e9 if on_gpu else from_here()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    found: list[float] = []
    while len(found) < 1 + on_gpu or (len(found) < 3 and found[-1] < SHORT):
        wait(device)
        began = time.perf_counter()
        function()
        wait(device)
        found.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated(device) / 1e9 if on_gpu else own_peak()
    return min(found), peak - held


def rows_of(
    model: Any, reader: HeadReader, shape: Shape, n: int, fixed: int, device: torch.device, until: float
) -> list[Row]:
    """A plain pass, and the two cuts on top of one; what goes wrong, or would begin too late, is said."""
    cuts = {EIGHTS: make_batch(shape.vocabulary, 1, n), FIXED: make_batch(shape.vocabulary, 1, n, fixed)}
    works: dict[str, Callable[[], object]] = {
        FORWARD: partial(forward, model, cuts[EIGHTS].tokens.to(device)),
        **{name: partial(score, reader, batch, planes=False) for name, batch in cuts.items()},
        SWAPPED: partial(swap_at_depths, Reruns(reader), cuts[FIXED], Swapping(swaps=1)),
    }
    blocks = {name: len(batch.blocks_for(n - 1)) for name, batch in cuts.items()}
    blocks[SWAPPED] = blocks[FIXED]
    rows = []
    for name, work in works.items():
        row = Row(n, name, blocks.get(name, 0))
        rows.append(row)
        if time.perf_counter() > until:
            row.error = "left out: no time left"
            continue
        try:
            row.seconds, row.peak_gigabytes = timed(work, device)
        except Exception as problem:
            row.error = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
            continue
        plain = rows[0]
        if name != FORWARD and plain.seconds is not None and plain.peak_gigabytes is not None:
            row.ratio = row.seconds / plain.seconds
            row.extra_gigabytes = row.peak_gigabytes - plain.peak_gigabytes
    return rows


def growth(rows: Sequence[Row]) -> dict[str, float | None]:
    """Exponents in the number of tokens: of the plain pass, and of what each cut adds to it in time and memory at its peak."""
    plain = {row.tokens: row for row in rows if row.work == FORWARD and row.seconds is not None}
    found: dict[str, float | None] = {}
    for work in (FORWARD, EIGHTS, FIXED, SWAPPED):
        these = [row for row in rows if row.work == work and row.seconds is not None and row.tokens in plain]
        sizes = [row.tokens for row in these]
        added = [
            (row.seconds or 0.0) - (0.0 if work == FORWARD else plain[row.tokens].seconds or 0.0)
            for row in these
        ]
        found[f"{work}: seconds"] = exponent(sizes, added) if added else None
        peaks = [row.peak_gigabytes or 0.0 for row in these]
        found[f"{work}: memory"] = exponent(sizes, peaks) if peaks else None
    return found


def run(
    shape: Shape,
    lengths: Sequence[int],
    fixed: int,
    device: torch.device,
    most: float = MOST_SECONDS,
    file: Path | None = None,
) -> dict[str, Any]:
    """Measure, print, and write it to a file where one is named."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "rotoscope": rs.__version__}
    console.print(", ".join(f"{key} {value}" for key, value in found.items()))
    began = time.perf_counter()
    model = make_model(shape, device)
    reader = HeadReader(model)
    weights = sum(weight.nbytes for weight in model.parameters()) / 1e9
    console.print(f"{shape.name}: {weights:.1f} GB of weights, ready in {time.perf_counter() - began:.0f} s\n")
    rows: list[Row] = []
    for n in lengths:
        rows += rows_of(model, reader, shape, n, fixed, device, began + most)
        for row in rows[-4:]:
            took = row.error or f"{row.seconds:.2f} s, {row.peak_gigabytes:.2f} GB beyond the weights"
            console.print(f"{n:>8,} tokens, {row.work}: {took}")
    report = Report(
        f"\none prompt of a Llama model of {shape.name} shape", "tokens", "work", "blocks", "seconds", "ratio", "peak GB",
        "more GB",
    )  # fmt: skip
    for row in rows:
        numbers = (row.seconds, row.ratio, row.peak_gigabytes, row.extra_gigabytes)
        cells = ["" if number is None else f"{number:.2f}" for number in numbers]
        report.row(f"{row.tokens:,}", row.work, f"{row.blocks:,}" if row.blocks else "", *cells)
    report.show()
    exponents = growth(rows)
    for what, slope in exponents.items():
        console.print(f"{what} grows as tokens^{'?' if slope is None else f'{slope:.2f}'}")
    found |= {
        "weights_gigabytes": weights,
        "rows": [asdict(row) for row in rows],
        "exponents": exponents,
        "seconds": time.perf_counter() - began,
    }
    console.print(f"{found['seconds']:.0f} s in all")
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks.long_prompts", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--tokens", nargs="+", type=int, metavar="N", help="only these lengths")
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument(
        "--most", type=float, default=MOST_SECONDS, help="seconds after which nothing new is begun"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write what was measured there, too")
    asked = parser.parse_args(arguments)
    if not asked.quick and not torch.cuda.is_available():
        parser.error("no GPU is there; --quick measures a tiny model on the CPU")
    shape, lengths, fixed = (TINY, QUICK, 32) if asked.quick else (EIGHT, LENGTHS, 1024)
    lengths = tuple(asked.tokens or lengths)
    if min(lengths) < 256 or max(lengths) > LONGEST:
        parser.error(f"--tokens {' '.join(map(str, lengths))}: from 256 to {LONGEST} are measured")
    shape = replace(shape, layers=asked.layers or shape.layers)
    run(shape, lengths, fixed, torch.device("cpu" if asked.quick else "cuda"), asked.most, asked.json)


if __name__ == "__main__":
    main()
