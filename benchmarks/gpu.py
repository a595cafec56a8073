"""What scoring costs on a GPU, in forward passes of the same model in the same run.

    python3 -m benchmarks.gpu                       # everything
    python3 -m benchmarks.gpu 8b:1x2048             # one row; `--help` names them

Models have the shape of real ones and random weights, made where they run. Blocks have 8 tokens, tau is 1e-4, and the query is
the last token.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import rotoscope as rs
from benchmarks.floor import exponentials_per_second, multiply_adds_per_second
from benchmarks.growth import GROWTHS, Growth, grow
from benchmarks.llama import BLOCK, Shape, forward, free, make_batch, make_model, measure, score
from benchmarks.measure import Report, aimed, console
from rotoscope.measures.batches import Batch
from rotoscope.models.reader import HeadReader

HEADS, PLANES = "heads", "with frequencies"


EIGHT = Shape("8b", 32, 4096, 32, 8, 128, 14_336)
ONE = Shape("1b", 16, 2048, 32, 8, 64, 8192)
SMALL = replace(ONE, name="small", layers=4, vocabulary=1024)


@dataclass(frozen=True)
class Target:
    """A ratio that has to be reached, and one to aim at; the memory it may take."""

    bar: float | None = None
    aim: float | None = None
    gigabytes: float | None = None


@dataclass(frozen=True)
class Case:
    """Prompts of a length, and what is scored on them."""

    prompts: int
    tokens: int
    work: dict[str, Target]
    quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.prompts}x{self.tokens}"


NONE = Target()
CASES = {
    EIGHT: (
        Case(1, 2048, {HEADS: Target(1.6, 1.25), PLANES: Target(gigabytes=0.5)}, quick=True),
        Case(8, 2048, {HEADS: Target(1.5, 1.25), PLANES: Target(2.2, 1.8)}, quick=True),
        Case(32, 512, {HEADS: NONE, PLANES: NONE}, quick=True),
        Case(1, 8192, {HEADS: Target(1.5, 1.25), PLANES: Target(3.0, 2.5)}),
        Case(1, 32_768, {HEADS: Target(1.6, 1.3)}),
    ),
    ONE: (Case(1, 2048, {HEADS: NONE, PLANES: NONE}), Case(1, 8192, {HEADS: NONE, PLANES: NONE})),
}


@dataclass
class Row:
    """One measurement, as it is printed and saved."""

    model: str
    case: str
    work: str
    forward_s: float | None = None
    scored_s: float | None = None
    extra_gigabytes: float | None = None
    floor_s: float | None = None
    """What the work on top of the forward pass (for frequencies: on top of the heads) takes at best."""
    share_of_floor: float | None = None
    bar: float | None = None
    aim: float | None = None
    most_gigabytes: float | None = None
    error: str | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.forward_s is None or self.scored_s is None else self.scored_s / self.forward_s

    @property
    def met(self) -> bool | None:
        """Whether it stays within its bars; None where there is none."""
        if self.error is not None:
            return False
        pairs = ((self.ratio, self.bar), (self.extra_gigabytes, self.most_gigabytes))
        asked = [found <= most for found, most in pairs if found is not None and most is not None]
        return all(asked) if asked else None


@dataclass(frozen=True)
class Rates:
    """What the device can do in a second; None where it could not be measured."""

    exponentials: float | None
    multiply_adds: float

    @classmethod
    def of(cls, device: torch.device) -> Rates:
        return cls(exponentials_per_second(device), multiply_adds_per_second(device))

    def floor(self, shape: Shape, batch: Batch, work: str) -> float | None:
        """Seconds: every plane, or every head, at all offsets of all pairs of blocks, both ways."""
        if self.exponentials is None:
            return None
        blocks = batch.blocks_for(batch.queries[-1])
        entries = len(batch.prompts) * len(blocks) * (len(blocks) - 1) * max(blocks.lengths)
        if work == PLANES:
            return shape.planes * entries / self.exponentials
        heads = shape.layers * shape.heads * entries
        return heads / self.exponentials + heads * shape.head_dim / self.multiply_adds


def score_case(shape: Shape, model: Any, reader: HeadReader, case: Case, rates: Rates) -> Iterator[Row]:
    """A row for each work, all of them timed in turns with the forward pass."""
    batch = make_batch(shape.vocabulary, case.prompts, case.tokens)
    works = [partial(score, reader, batch, planes=work == PLANES) for work in case.work]
    plain, *scored = measure([partial(forward, model, batch.tokens.to(reader.device)), *works], reader.device)
    before = plain.seconds
    for (work, target), found in zip(case.work.items(), scored, strict=True):
        row = Row(shape.name, case.name, work, bar=target.bar, aim=target.aim, most_gigabytes=target.gigabytes)
        row.forward_s, row.scored_s, row.error = plain.seconds, found.seconds, plain.error or found.error
        row.floor_s = rates.floor(shape, batch, work)
        if found.gigabytes is not None and plain.gigabytes is not None:
            row.extra_gigabytes = found.gigabytes - plain.gigabytes
        if row.floor_s is not None and found.seconds is not None and before is not None:
            row.share_of_floor = row.floor_s / (found.seconds - before) if found.seconds > before else None
        before = found.seconds
        yield row


def score_model(shape: Shape, cases: Sequence[Case], device: torch.device, rates: Rates) -> list[Row]:
    """All cases of one model, printed as a table."""
    began = time.perf_counter()
    model = make_model(shape, device)
    made = time.perf_counter() - began
    reader = HeadReader(model)
    report = Report(
        f"scores of a Llama model of {shape.name} shape over its own forward pass (blocks of {BLOCK} tokens; made in "
        f"{made:.0f} s, proven in {time.perf_counter() - began - made:.0f} s)",
        "prompts", "scored", "forward", "with scores", "ratio", "aim", "more GB", "share of floor",
    )  # fmt: skip
    rows = [row for case in cases for row in score_case(shape, model, reader, case, rates)]
    for row in rows:
        bars = [f"<= {row.bar}x"] if row.bar is not None else []
        bars += [f"<= {row.most_gigabytes} GB"] if row.most_gigabytes is not None else []
        report.row(row.case, row.work, *_cells(row), target=", ".join(bars), met=row.met)
    report.show()
    for row in rows:
        if row.error is not None:
            console.print(f"{row.case}, {row.work}: {row.error}\n")
    del model, reader
    free(device)
    return rows


def _cells(row: Row) -> list[str]:
    if row.error is not None or row.ratio is None or row.forward_s is None or row.scored_s is None:
        return ["", "failed", "", "", "", ""]
    return [
        f"{1000 * row.forward_s:.1f} ms",
        f"{1000 * row.scored_s:.1f} ms",
        f"{row.ratio:.2f}x",
        aimed(row.ratio, row.aim),
        "" if row.extra_gigabytes is None else f"{row.extra_gigabytes:.2f}",
        "" if row.share_of_floor is None else f"{row.share_of_floor:.0%}",
    ]


def names() -> list[str]:
    return [f"{shape.name}:{case.name}" for shape, cases in CASES.items() for case in cases] + ["growth"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu", description=str(__doc__).splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"only these: {', '.join(names())}")
    parser.add_argument("--quick", action="store_true", help="the short rows alone, without growth")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write what was measured there, too")
    asked = parser.parse_args(arguments)
    unknown = set(asked.rows) - set(names())
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    if not torch.cuda.is_available():
        parser.error("no GPU is there; `make bench` measures a CPU")
    cases = {
        shape: [case for case in of if _wanted(asked, f"{shape.name}:{case.name}", case.quick)]
        for shape, of in CASES.items()
    }
    growths = GROWTHS if _wanted(asked, "growth", quick=False) else ()
    run(torch.device("cuda"), cases, growths, SMALL, asked.json)


def run(
    device: torch.device,
    cases: Mapping[Shape, Sequence[Case]],
    growths: Sequence[Growth],
    growing: Shape,
    file: Path | None,
) -> None:
    """Measure and print it all; write it to a file, too."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "rotoscope": rs.__version__}
    console.print(", ".join(f"{key} {value}" for key, value in found.items()))
    rates = Rates.of(device)
    if rates.exponentials is not None:
        console.print(
            f"{rates.exponentials:.2e} exponentials and {rates.multiply_adds:.2e} multiply-adds a second\n"
        )
    rows = [row for shape, of in cases.items() if of for row in score_model(shape, of, device, rates)]
    found |= asdict(rates) | {"rows": [asdict(row) | {"ratio": row.ratio, "met": row.met} for row in rows]}
    found["growth"] = grow(growths, growing, device) if growths else []
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _wanted(asked: argparse.Namespace, name: str, quick: bool) -> bool:
    return name in asked.rows if asked.rows else quick or not asked.quick


if __name__ == "__main__":
    main()
