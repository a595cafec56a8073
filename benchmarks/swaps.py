"""The closed form against brute force, and against a plain forward pass, on SmolLM2."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import torch

import rotoscope as rs
from benchmarks.measure import Report, aimed, best_of, console, peak_gigabytes
from rotoscope.measures.batches import Batch, batches
from rotoscope.measures.scoring import Scoring, score_batch
from rotoscope.models.layer import LayerReading
from rotoscope.models.loading import Subject
from rotoscope.models.reader import HeadReader
from rotoscope.tasks.prompt import from_tokens
from tests.twin import model_scores

TWIN_LAYERS = (0, 15)
BLOCK = 4


def against_twin(subject: Subject, reader: HeadReader) -> None:
    """Scores of all heads on one prompt: ours, and every swap really carried out by the model itself."""
    report = Report(
        f"closed form against brute force (batched swaps, measured on {len(TWIN_LAYERS)} of {reader.layers} layers "
        "and scaled; both times with the plain forward pass)",
        "pairs", "tokens", "swaps", "ours", "brute force", "ratio",
    )  # fmt: skip
    for pairs, target in ((8, None), (16, None), (32, 60), (64, 300)):
        batch = batches(rs.tasks.binding(subject, pairs, 1), "last", 1)[0]
        blocks = batch.prompts[0].blocks
        assert blocks is not None
        spans = blocks.spans
        plain, ours = best_of(3, partial(forward, subject, batch), partial(score, subject, reader, batch))
        began = time.perf_counter()
        model_scores(reader, batch.tokens, spans, 1e-4, TWIN_LAYERS)
        twin = plain + (time.perf_counter() - began - plain) / len(TWIN_LAYERS) * reader.layers
        ratio = twin / ours
        report.row(
            str(pairs), str(batch.tokens.shape[1]), str(pairs * (pairs - 1) // 2),
            f"{ours:.2f} s", f"{twin:.1f} s", f"{ratio:.0f}x",
            target=f">= {target}x" if target else "", met=ratio >= target if target else None,
        )  # fmt: skip
    report.show()


def against_forward(subject: Subject) -> None:
    """A profile of all heads (no null, examples or self-check) over plain forward passes of the same prompts."""
    report = Report("a profile of all heads over plain forward passes of the same 4 prompts (blocks of 4 tokens)",
                    "tokens", "forward", "profile", "ratio", "aim")  # fmt: skip
    for n in (512, 1024):
        ids, blocks = synthetic(n, count=4)

        def plain(ids: torch.Tensor = ids) -> None:
            with torch.inference_mode():
                for row in ids:
                    subject.model(row[None], use_cache=False, logits_to_keep=1)

        heads_alone: dict[str, Any] = {
            "null": "none",
            "examples": False,
            "prove": False,
            "show_progress": False,
        }
        whole = partial(rs.profile, subject, tokens=ids, blocks=blocks, batch_tokens=1, **heads_alone)
        forward_time, profile_time = best_of(3, plain, whole)
        ratio = profile_time / forward_time
        report.row(str(n), f"{forward_time:.2f} s", f"{profile_time:.2f} s", f"{ratio:.2f}x", aimed(ratio, 1.3),
                   target="<= 1.4x", met=ratio <= 1.4)  # fmt: skip
    report.show()


def frequencies(subject: Subject, reader: HeadReader) -> None:
    """All heads, and all heads at all planes, in plain forward passes of the same prompt."""
    report = Report(
        "all heads, and every plane of every head, in plain forward passes (blocks of 4 tokens)",
        "tokens", "planes", "forward", "heads", "with planes", "heads / forward", "all / forward", "aim",
    )  # fmt: skip
    planes = sum(n * layout.planes for n, layout in zip(reader.head_counts, reader.layouts, strict=True))
    for n, target in ((512, 3.0), (1024, 4.0)):
        ids, blocks = synthetic(n)
        batch = batches(from_tokens(ids, blocks), "last", 1)[0]
        asked = Scoring((1e-4,), frequencies=True)
        plain, without, ours = best_of(
            3,
            partial(forward, subject, batch),
            partial(score, subject, reader, batch),
            partial(score_batch, reader, batch, asked, None),
        )
        ratio = ours / plain
        report.row(str(n), str(planes), f"{plain:.2f} s", f"{without:.2f} s", f"{ours:.2f} s", f"{without / plain:.2f}x",
                   f"{ratio:.2f}x", aimed(ratio, 2.0), target=f"<= {target:.0f}x", met=ratio <= target)  # fmt: skip
    report.show()


def memory() -> None:
    """Peak memory of a process that profiles 2,048 tokens, blocks and single tokens."""
    report = Report("peak memory of a profile, model included", "tokens", "swaps of", "peak")
    for n, title, arguments, target in (
        (2048, "blocks of 4 tokens", "blocks=blocks", 2.5),
        (2048, "single tokens", "blocks=None", 2.5),
        (1024, "blocks of 4 tokens, every frequency", "blocks=blocks, frequencies=True", 3.0),
    ):
        peak = peak_gigabytes(
            "import rotoscope as rs\nfrom benchmarks.swaps import synthetic\n"
            f"ids, blocks = synthetic({n})\n"
            f"rs.profile(rs.load('smollm2', device='cpu'), tokens=ids, {arguments})"
        )
        report.row(str(n), title, f"{peak:.2f} GB", target=f"<= {target} GB", met=peak <= target)
    report.show()


def growth(subject: Subject, reader: HeadReader) -> None:
    """The scoring part alone, by length."""
    report = Report("growth of the scoring part (blocks of 4 tokens)", "tokens", "scoring", "exponent")
    before: tuple[int, float] | None = None
    for n in (256, 512, 1024, 2048):
        ids, blocks = synthetic(n)
        batch = batches(from_tokens(ids, blocks), "last", 1)[0]
        plain, ours = best_of(2, partial(read_only, reader, batch), partial(score, subject, reader, batch))
        spent = ours - plain
        slope = "" if before is None else f"n^{math.log(spent / before[1]) / math.log(n / before[0]):.2f}"
        report.row(str(n), f"{spent:.2f} s", slope)
        before = (n, spent)
    report.show()


def synthetic(n: int, count: int = 1) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Random tokens; blocks everywhere but at both ends."""
    ids = torch.randint(100, 40_000, (count, n), generator=torch.Generator().manual_seed(n))
    return ids, [(p, p + BLOCK) for p in range(16, n - 20, BLOCK)]


def forward(subject: Subject, batch: Batch) -> None:
    with torch.inference_mode():
        subject.model(batch.tokens, use_cache=False, logits_to_keep=1)


def score(subject: Subject, reader: HeadReader, batch: Batch) -> None:
    score_batch(reader, batch, Scoring((1e-4,)), subject.tokenizer)


def read_only(reader: HeadReader, batch: Batch) -> None:
    def visit(layer: LayerReading) -> None:
        pass

    reader.read(batch.tokens, batch.queries, visit)


def main() -> None:
    subject = rs.load("smollm2", device="cpu")
    reader = HeadReader(subject.model)
    console.print(f"{subject.name}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    against_twin(subject, reader)
    against_forward(subject)
    frequencies(subject, reader)
    growth(subject, reader)
    memory()
