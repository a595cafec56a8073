"""What plans cost: a cache plan of SmolLM2 here, and of a model in the shape of an 8B one where there is a GPU.

    python3 -m benchmarks.plans

With random weights the plan means nothing; it takes as long as any.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import rotoscope as rs
from benchmarks.gpu import EIGHT
from benchmarks.llama import Shape, free, make_model
from benchmarks.measure import Report
from rotoscope.tasks.prefix import words
from rotoscope.tasks.text import manual

BARS = {"smollm2": 300.0, "8b": 120.0}
"""Seconds that a plan may take: on two cores, and on one H200."""


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


def main() -> None:
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
