"""How often is a model that learned nothing called beyond the null, and how often is one that learned something not?

A random model is one more draw of its own null, so whatever is called beyond the null about it is an error. Of many draws of
one shape every random subject is one, and its null some of the others, chosen anew for each: at most 5 % of random subjects
may have any figure beyond the null. The power is that of the same null beside a trained model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rotoscope as rs
from benchmarks.measure import Report
from rotoscope.experiments.ask.result import wilson
from rotoscope.measures.null import fresh_model
from rotoscope.stats.statistics import statistics
from rotoscope.stats.verdict import AS_IN, BEYOND, LEVEL, NO_VERDICT, UNDECIDED, Figure, verdicts
from rotoscope.tasks.prompt import Prompts, from_tokens

DRAWS, SUBJECTS, PROMPTS = 240, 200, 16
NULL_DRAWS = (19, 39)
LAYERS, HEADS, WORDS = 8, 6, 512
BLOCKS, WIDTH = 12, 4
POWER = 0.9
LEARNED = {"letter": "share symbolic", "number": "late symbolic"}
"""A figure of a trained model that random models do not have."""


@dataclass(frozen=True)
class Drawn:
    """The figures of a model and of many random models of its shape, with their standard errors [1 + draws, figures]."""

    names: list[str]
    values: np.ndarray
    errors: np.ndarray

    def family(self, subject: int, draws: np.ndarray) -> list[Figure]:
        """The figures of one row, beside those of others."""
        columns = zip(self.values[subject], self.errors[subject], self.values[draws].T, strict=True)
        return [Figure(value, error, beside.tolist()) for value, error, beside in columns]

    def answers(self, subjects: Iterator[int], count: int, seed: int = 0) -> Iterator[list[str]]:
        """The verdicts on each subject beside so many random models."""
        generator = np.random.default_rng(seed)
        for subject in subjects:
            others = np.setdiff1d(np.arange(1, len(self.values)), [subject])
            draws = generator.choice(others, count, replace=False)
            yield [verdict.verdict for verdict in verdicts(self.family(subject, draws))]


def main(draws: int = DRAWS, subjects: int = SUBJECTS) -> None:
    size = Report(
        "Random models called beyond the null",
        *("shape", "draws", "random models", "beyond the null", "95 % interval"),
        *("of all figures: as in the null", "undecided"),
    )
    power = Report(
        "Trained models called beyond the null",
        "model",
        "figure",
        "draws",
        "beyond the null",
        "undecided figures",
    )
    shapes = {"GPT-J, 12 x 1, letter": rs.load("letter"), "GPT-J, 12 x 1, number": rs.load("number")}
    shapes["Llama, 8 x 6"] = random_subject(0.1, 0)
    for name, subject in shapes.items():
        shown = random_prompts(PROMPTS, 0) if "Llama" in name else getattr(rs.tasks, subject.name)(PROMPTS)
        drawn = drawn_figures(subject, shown, draws)
        for count in NULL_DRAWS:
            families = list(drawn.answers(iter(1 + np.arange(subjects) % draws), count))
            wrong = sum(BEYOND in family for family in families)
            low, high = wilson(wrong, subjects)
            answers = pd.Series([answer for family in families for answer in family if answer != NO_VERDICT])
            shares = [f"{(answers == answer).mean():.0%}" for answer in (AS_IN, UNDECIDED)]
            cells = (name, f"{count}", f"{subjects}", f"{wrong}", f"{low:.1%} to {high:.1%}", *shares)
            size.row(*cells, target=f"1 % to {LEVEL:.0%}", met=low <= LEVEL and high >= 0.01)
            if subject.name in LEARNED:
                figure = LEARNED[subject.name]
                own = list(drawn.answers(iter([0] * subjects), count))
                found = np.mean([family[drawn.names.index(figure)] == BEYOND for family in own])
                judged = [answer for family in own for answer in family if answer != NO_VERDICT]
                cells = (
                    subject.name,
                    figure,
                    f"{count}",
                    f"{found:.2f}",
                    f"{judged.count(UNDECIDED) / len(judged):.0%}",
                )
                power.row(
                    *cells,
                    target=f"at least {POWER:g} with 39",
                    met=bool(count < max(NULL_DRAWS) or found >= POWER),
                )
    size.show()
    power.show()


def drawn_figures(subject: rs.Subject, prompts: Prompts, draws: int) -> Drawn:
    """The figures of a subject, and those of every draw of its random null as if it were a subject itself."""
    profile = rs.profile(subject, prompts, null="random", null_draws=draws, examples=False, show_progress=False)
    null = profile.tables["null_prompts"].groupby("draw", sort=True)
    tables = [profile.prompts, *(rows.drop(columns=["null_name", "draw"]) for _, rows in null)]
    figures = [statistics({"prompts": rows}, profile.taus[0], profile.gamma) for rows in tables]
    values, errors = (np.stack([table[name] for table in figures]) for name in ("value", "error"))
    return Drawn(figures[0]["statistic"].tolist(), values, errors)


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
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--subjects", type=int, default=SUBJECTS)
    options = parser.parse_args()
    main(options.draws, options.subjects)
