"""How often is a model that learned nothing called beyond the null?

A random model is one more draw of its own null, so whatever is called beyond the null about it is an error.
At most 5 % of random models may have one.
"""

from __future__ import annotations

import argparse
import itertools
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rotoscope as rs
from benchmarks.measure import Report
from rotoscope.experiments.ask.result import wilson
from rotoscope.measures.null import fresh_model
from rotoscope.stats.verdict import BEYOND, LEVEL
from rotoscope.tasks.prompt import Prompts, from_tokens

SCALES = (0.02, 0.1)
"""Standard deviations of the weights; transformers initialises with 0.02."""
PROMPTS = (6, 16)
LAYERS, HEADS, WORDS = 8, 6, 512
BLOCKS, WIDTH = 12, 4


def main(repetitions: int = 40) -> None:
    report = Report(
        "Random models called beyond the null",
        *("scale", "prompts", "random models", "beyond the null", "95 % interval"),
    )
    for scale, prompts in itertools.product(SCALES, PROMPTS):
        errors = sum(is_error(scale, prompts, repetition) for repetition in range(repetitions))
        low, high = wilson(errors, repetitions)
        cells = (f"{scale:g}", f"{prompts}", f"{repetitions}", f"{errors}", f"{low:.0%} to {high:.0%}")
        report.row(*cells, target=f"at most {LEVEL:.0%}", met=low <= LEVEL)
    report.show()


def is_error(scale: float, prompts: int, repetition: int) -> bool:
    """Whether a random model has any statistic beyond the null."""
    seed = random.Random(f"0 {scale} {prompts} {repetition}").getrandbits(32)
    subject, shown = random_subject(scale, seed), random_prompts(prompts, seed)
    profile = rs.profile(subject, shown, examples=False, seed=seed, show_progress=False)
    return bool((profile.statistics()["verdict"] == BEYOND).any())


def random_subject(scale: float, seed: int) -> rs.Subject:
    """A small Llama with random weights of the given standard deviation."""
    config = LlamaConfig(
        hidden_size=16 * HEADS,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=32 * HEADS,
        vocab_size=WORDS,
        max_position_embeddings=512,
        initializer_range=scale,
    )
    return rs.load((fresh_model(LlamaForCausalLM, config, seed), None), name=f"random {seed}")


def random_prompts(count: int, seed: int) -> Prompts:
    """Random tokens: a first one, blocks of equal length, and the query."""
    last = 1 + BLOCKS * WIDTH
    tokens = torch.randint(WORDS, (count, last + 1), generator=torch.Generator().manual_seed(seed))
    return from_tokens(tokens, [(first, first + WIDTH) for first in range(1, last, WIDTH)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=40)
    main(parser.parse_args().repetitions)
