"""What plans cost: a cache plan of SmolLM2 here, and of a model in the shape of an 8B one where there is a GPU.

    python3 -m benchmarks.plans
    python3 -m benchmarks.plans --model qwen2.5-coder-0.5b --out runs/qwen-cache

With random weights the plan means nothing; it takes as long as any. The second line plans a model's cache at many shares, on repeats,
lookup and text, beside the known baselines and random choices, and keeps the run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import rotoscope as rs
from benchmarks.gpu import EIGHT
from benchmarks.llama import Shape, free, make_model
from benchmarks.measure import Report
from rotoscope.tasks.prompt import words
from rotoscope.tasks.text import manual

BARS = {"smollm2": 300.0, "8b": 120.0}
"""Seconds that a plan may take: on two cores, and on one H200."""
FRONTIER: dict[str, Any] = {"keep": 0.25, "frontier": (0.05, 0.1, 0.2, 0.3, 0.5, 0.75), "window": 64}


def word_by_word(size: int) -> Any:
    """A tokenizer for a model of random weights: the words of every source, and as many more as it has tokens."""
    known = ["<s>", "<unk>", *words("names.txt"), *words("colours.txt"), *manual().split(), ":", "."]
    vocabulary = {word: k for k, word in enumerate(dict.fromkeys(known))}
    for k in range(len(vocabulary), size):
        vocabulary[f"<{k}>"] = k
    tokenizer = Tokenizer(models.WordLevel(dict(list(vocabulary.items())[:size]), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", unk_token="<unk>")


def cache_seconds(subject: Any, **settings: Any) -> tuple[float, rs.experiments.CachePlan]:
    """How long a cache plan takes, the reading's proof included."""
    began = time.perf_counter()
    plan = rs.plan.cache(subject, show_progress=False, **settings)
    return time.perf_counter() - began, plan


def measure(shape: Shape, device: torch.device, **settings: Any) -> tuple[float, rs.experiments.CachePlan]:
    """A cache plan of a model of random weights."""
    model = make_model(shape, device)
    subject = rs.load((model, word_by_word(shape.vocabulary)), name=shape.name)
    found = cache_seconds(subject, **settings)
    del model, subject
    free(device)
    return found


def frontier(model: Any, out: Path, **changes: Any) -> rs.experiments.CachePlan:
    """A cache plan at many shares, with what was measured and decided printed."""
    plan: rs.experiments.CachePlan = rs.plan.cache(model, out=out, **{**FRONTIER, **changes})
    for title, table in plan.overview():
        print(f"{title}\n{table.round(3).to_string(index=False)}\n", flush=True)
    print("\n".join(plan.sentences()))
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description="Plan the cache of a model, or measure what plans cost.")
    parser.add_argument("--model", help="a short name, a folder or a .gguf file: plan its cache at many shares")
    parser.add_argument("--out", type=Path, default=Path("runs/cache"), help="the run folder of that plan")
    parser.add_argument("--prompts", type=int, default=16, help="prompts of each source")
    parser.add_argument("--task", default="repeats", help="what heads are ranked on: repeats, lookup or text")
    options = parser.parse_args()
    if options.model is None:
        bars()
    else:
        frontier(rs.load(options.model), options.out, prompts=options.prompts, task=options.task)


def bars() -> None:
    """Time a plan with the usual settings."""
    report = Report("a cache plan with the usual settings", "model", "points", "time")
    if torch.cuda.is_available():
        name, (seconds, plan) = "8b", measure(EIGHT, torch.device("cuda"))
    else:
        name, (seconds, plan) = "smollm2", cache_seconds(rs.load("smollm2"))
    points = len(plan.points.drop_duplicates(["ranking", "draw", "kept_share"]))
    report.row(name, str(points), f"{seconds:.0f} s", target=f"{BARS[name]:.0f} s", met=seconds <= BARS[name])
    report.show()


if __name__ == "__main__":
    main()
