"""What a user waits for: whole calls of `rs.profile` and the page, in plain forward passes of the same prompts.

    python -m benchmarks.user_waits                                  # SmolLM2 on the CPU
    python -m benchmarks.user_waits --device cuda --out waits.json   # a random model of the shape of Llama 3.1 8B in bfloat16
    python -m benchmarks.user_waits --draws 39                       # 39 random models beside `rotoscope profile number --prompts 8`
    python -m benchmarks.user_waits --tiny                           # a tiny random model, to try the benchmark itself

Each row is one call: the first of all, the first on a model that another call has not seen, the second on the same subject,
and the page. Its parts come from a call of the same kind with a clock around each of them, which waits for the device.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import rotoscope as rs
from benchmarks.gpu import EIGHT
from benchmarks.llama import Shape, forward, make_model
from benchmarks.measure import Report, console
from rotoscope.experiments.profile.settings import ProfileSettings
from rotoscope.measures.batches import batches, most_tokens
from rotoscope.measures.built_in import WhereAttentionGoes
from rotoscope.measures.null import draw_weights, fresh_model
from rotoscope.measures.scoring import BatchScores
from rotoscope.models.devices import one_thread
from rotoscope.models.reader import HeadReader
from rotoscope.runs.run import Run
from rotoscope.tasks.prompt import Prompts, from_tokens

TINY = Shape("tiny", 2, 64, 4, 2, 16, 96, vocabulary=256, positions=1024)
REPEATS = 3
RUN = "rotoscope.experiments.profile.run"
PARTS: dict[str, list[tuple[Any, str]]] = {
    "loading": [(RUN, "load")],
    "identity": [(RUN, "subject_settings")],
    "proof": [(RUN, "_proven_reader")],
    "reading": [(HeadReader, "read")],
    "scoring": [(BatchScores, "_score")],
    "nulls": [(RUN, "null_passes")],
    "permuted prompts": [(RUN, "_permute_prompts")],
    "tables": [
        ("rotoscope.measures.scoring", "score_tables"),
        ("rotoscope.experiments.profile.result", "head_table"),
        (WhereAttentionGoes, "sinks"),
        (WhereAttentionGoes, "answers"),
        (Run, "finish"),
    ],
    "examples": [(RUN, "examples")],
    "page": [("rotoscope.report", "write_report")],
}
"""Which functions belong to a part: a module's or a class's; what one calls of another part counts there."""
TARGETS = {
    ("8x2048", "second"): 1.8,
    ("1x2048", "second"): 3.0,
    ("8x2048 with frequencies", "second"): 2.4,
    ("8 prompts of 32 facts", "second"): 1.5,
    ("4 prompts of 1,024 tokens", "second"): 1.5,
}
"""The bars, in forward passes."""
MOST_PASSES = 1.3
"""The bar of a draw of the null, in forward passes beside the making of its weights."""


@dataclass
class Wait:
    """One call: its seconds, those of the plain forward passes, and of its parts in a call that is timed part by part."""

    prompts: str
    call: str
    seconds: float
    forward_s: float
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.seconds / self.forward_s


class Clock:
    """Seconds by part, each without what it calls of another part."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.parts = device, dict.fromkeys(PARTS, 0.0)
        self.stack: list[str] = []
        self.since = 0.0

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _switch(self) -> None:
        now = self.now()
        if self.stack:
            self.parts[self.stack[-1]] += now - self.since
        self.since = now

    @contextmanager
    def running(self) -> Iterator[dict[str, float]]:
        with ExitStack() as patches:
            for part, functions in PARTS.items():
                for owner, name in functions:
                    place = import_module(owner) if isinstance(owner, str) else owner
                    patches.enter_context(
                        mock.patch.object(place, name, self._timed(part, getattr(place, name)))
                    )
            yield self.parts

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self.stack.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self.stack.pop()

        return timed


def seconds(function: Callable[[], object], device: torch.device) -> float:
    clock = Clock(device)
    began = clock.now()
    function()
    return clock.now() - began


def waits(model: Any, tokenizer: Any, prompts: Prompts, name: str, **settings: Any) -> Iterator[Wait]:
    """All calls on one set of prompts."""
    subject = rs.load((model, tokenizer))
    device = subject.device
    options: dict[str, Any] = {"null": "none", "show_progress": False} | settings
    cut = batches(prompts, "last", most_tokens(subject, ProfileSettings()))

    def plain() -> None:
        for batch in cut:
            forward(model, batch.tokens.to(device))

    def call(of: rs.Subject) -> rs.Profile:
        profile = rs.profile(of, prompts, **options)
        assert len(profile.heads)
        return profile

    def page(profile: rs.Profile) -> None:
        with tempfile.TemporaryDirectory() as folder:
            profile.report(Path(folder) / "page.html")

    plain()
    best = min(seconds(plain, device) for _ in range(REPEATS))
    clock = Clock(device)
    with clock.running() as parts:  # kernels are compiled, which happens once
        cold = seconds(partial(call, subject), device)
    yield Wait(name, "first of all", cold, best, dict(parts))
    fresh = [rs.load((model, tokenizer)) for _ in range(REPEATS)]
    yield timed(
        device,
        name,
        "first",
        partial(call, rs.load((model, tokenizer))),
        [partial(call, one) for one in fresh],
        best,
    )
    again = partial(call, subject)
    yield timed(device, name, "second", again, [again] * REPEATS, best)
    profiles = [call(subject) for _ in range(2)]
    yield timed(device, name, "page", partial(page, profiles[0]), [partial(page, profiles[1])], best)


def timed(
    device: torch.device,
    name: str,
    call: str,
    in_parts: Callable[[], object],
    tries: Sequence[Callable[[], object]],
    best: float,
) -> Wait:
    """The best of several tries, and the parts of one more."""
    total = min(seconds(function, device) for function in tries)
    with Clock(device).running() as parts:
        in_parts()
    return Wait(name, call, total, best, dict(parts))


def random_prompts(vocabulary: int, count: int, n: int) -> Prompts:
    """Random tokens, in blocks of 8 but at both ends."""
    ids = torch.randint(3, vocabulary, (count, n), generator=torch.Generator().manual_seed(n))
    return from_tokens(ids, [(p, p + 8) for p in range(16, n - 20, 8)])


def on_cuda(shape: Shape, sizes: Sequence[tuple[int, int]], device: torch.device) -> Iterator[Wait]:
    """A random model; whole heads, then all frequencies as well."""
    model = make_model(shape, device)
    for frequencies in (False, True):
        for count, n in sizes:
            name = f"{count}x{n}" + " with frequencies" * frequencies
            yield from waits(
                model, None, random_prompts(shape.vocabulary, count, n), name, frequencies=frequencies
            )


def on_cpu() -> Iterator[Wait]:
    """SmolLM2 on facts, and on prompts of 1,024 tokens."""
    subject = rs.load("smollm2", device="cpu")
    facts = rs.tasks.binding(subject, pairs=32, count=8, seed=0)
    yield from waits(subject.model, subject.tokenizer, facts, "8 prompts of 32 facts")
    long = random_prompts(subject.model.config.vocab_size, 4, 1024)
    yield from waits(subject.model, subject.tokenizer, long, "4 prompts of 1,024 tokens")


@dataclass
class DrawCost:
    """Processor seconds of one draw of the random null, of making its weights, and of a plain forward pass of its prompts."""

    draw: float
    weights: float
    forward: float

    @property
    def ratio(self) -> float:
        """The draw without its weights, in forward passes."""
        return (self.draw - self.weights) / self.forward


def draw_cost(subject: rs.Subject, prompts: Prompts, draws: int) -> DrawCost:
    """From a profile with so many draws and one with a single one; none is read from the cache."""

    def processor(function: Callable[[], object], times: int = 1) -> float:
        began = time.process_time()
        for _ in range(times):
            function()
        return (time.process_time() - began) / times

    def profile(count: int) -> None:
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, ROTOSCOPE_CACHE=cache):
            rs.profile(subject, prompts, null="random", null_draws=count, examples=False, show_progress=False)

    cut = batches(prompts, "last", most_tokens(subject, ProfileSettings()))
    threads = partial(one_thread, subject.reader().small)
    model = fresh_model(type(subject.model), subject.model.config, 0)

    def plain() -> None:
        with threads():
            for batch in cut:
                forward(model, batch.tokens)

    def weights() -> None:
        with threads():
            draw_weights(model, 0)

    for function in (plain, weights, partial(profile, 1)):
        function()
    beside = processor(partial(profile, 1 + draws)) - processor(partial(profile, 1))
    return DrawCost(beside / draws, processor(weights, 3), processor(plain, 3))


def show_draws(draws: int) -> None:
    """What draws of the null cost beside the multi-hop models, as they are profiled by default, and beside SmolLM2."""
    report = Report(
        "A draw of the random null", "prompts", "seconds", "of which weights", "rest in forward passes"
    )
    small, language = rs.load("number"), rs.load("smollm2", device="cpu")
    facts = rs.tasks.binding(language, pairs=32, count=2, seed=0)
    for name, subject, prompts, count in (
        ("number, 8 prompts", small, rs.tasks.number(8).prompts(), draws),
        ("SmolLM2, 2 prompts of 32 facts", language, facts, 1),
    ):
        cost = draw_cost(subject, prompts, count)
        cells = (name, f"{cost.draw:.2f}", f"{cost.weights:.2f}", f"{cost.ratio:.2f}")
        report.row(*cells, target=f"{MOST_PASSES}x", met=cost.ratio <= MOST_PASSES)
    report.show()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--draws", type=int, default=0)
    chosen = parser.parse_args(arguments)
    if chosen.draws:
        show_draws(chosen.draws)
        return
    device = torch.device(chosen.device)
    if chosen.tiny:
        rows = on_cuda(TINY, [(2, 64)], device)
    elif device.type == "cuda":
        rows = on_cuda(EIGHT, [(8, 2048), (1, 2048), (16, 512)], device)
    else:
        rows = on_cpu()
    report = Report("What a user waits for", "prompts", "call", "seconds", "in forward passes", "largest parts")
    found: list[dict[str, Any]] = []
    for row in rows:
        largest = sorted(row.parts.items(), key=lambda part: -part[1])[:4]
        words = ", ".join(f"{part} {value:.2f} s" for part, value in largest if value >= 0.01)
        bar = TARGETS.get((row.prompts, row.call))
        cells = (row.prompts, row.call, f"{row.seconds:.2f}", f"{row.ratio:.2f}", words)
        report.row(*cells, target=f"{bar}x" if bar else "", met=None if bar is None else row.ratio <= bar)
        console.print("  ".join(cells))
        found.append(asdict(row) | {"ratio": row.ratio})
        if chosen.out:  # row by row, so that a run that is stopped leaves what it has
            chosen.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    report.show()


if __name__ == "__main__":
    main()
