"""Are verdicts to be trusted? Models that learned nothing, profiled as any subject is, with draws of their own.

A random subject is one more draw of its own null. Whatever is called beyond the null about it is an error, and no more than
5 % of the subjects may have one. What a trained model has beyond the null shows that the rule still sees something.
"""

from __future__ import annotations

import itertools
import random
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rotoscope.analysis.nulls import fresh_model
from rotoscope.analysis.profiling import profile
from rotoscope.analysis.prompts import make_prompts
from rotoscope.progress import progress_bar
from rotoscope.reading import Subject, load
from rotoscope.results.calibration import Calibration
from rotoscope.results.run import Run
from rotoscope.results.saved import Tables
from rotoscope.settings import CalibrateSettings, PromptSettings
from rotoscope.tasks import Prompts, from_tokens

LAYERS, HEADS, WORDS = 8, 6, 512
BLOCKS, WIDE = 12, 4
"""A prompt is a first token, so many blocks of so many tokens each, and the query."""


def calibrate(
    settings: CalibrateSettings | None = None,
    *,
    device: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool | None = None,
    **changes: Any,
) -> Calibration:
    """How often random models of 8 layers × 6 heads are called beyond the null, and whether a trained one is.

    Every subject has weights, prompts and null draws of its own; all of it goes through `profile` as it is for everybody.
    Settings are given as `settings`, or as fields of `CalibrateSettings`.
    """
    wanted = CalibrateSettings.make(settings, **changes)
    run = Run(Calibration, wanted.stored(), out, overwrite=overwrite)
    if run.finished is not None:
        return run.finished
    cells = list(itertools.product(wanted.scales, wanted.prompts, range(wanted.repetitions)))
    with progress_bar("calibrating", len(cells), show_progress) as bar:
        for number, cell in enumerate(cells):
            run.piece(f"subject-{number:06d}", partial(_judged, wanted, *cell, device))
            bar.advance()
    if wanted.trained != "none":
        run.piece("trained", partial(_trained, wanted, device, show_progress))
    return run.finish()


def _judged(
    wanted: CalibrateSettings, scale: float, prompts: int, repetition: int, device: str | None
) -> Tables:
    """The figures of one random subject, each with its verdict."""
    seed = random.Random(f"{wanted.seed} {scale} {prompts} {repetition}").getrandbits(32)
    subject = random_subject(scale, seed, device)
    found = profile(
        subject,
        random_prompts(prompts, seed),
        null_draws=wanted.null_draws,
        examples=False,
        seed=seed,
        show_progress=False,
    ).statistics()
    about = {"scale": scale, "prompts": prompts, "repetition": repetition}
    kept = found[["statistic", "value", "null_value", "null_draws", "p_value", "verdict"]]
    return {"subjects": kept.assign(**about)[[*about, *kept]]}


def random_subject(scale: float, seed: int, device: str | None = None) -> Subject:
    """A small Llama that learned nothing, its weights drawn with the given standard deviation."""
    config = LlamaConfig(
        hidden_size=16 * HEADS,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=32 * HEADS,
        vocab_size=WORDS,
        max_position_embeddings=512,
        initializer_range=scale,
    )
    return load((fresh_model(LlamaForCausalLM, config, seed), None), device=device, name=f"random {seed}")


def random_prompts(count: int, seed: int) -> Prompts:
    """Random tokens in blocks of equal length, with a token before them and the query behind."""
    last = 1 + BLOCKS * WIDE
    tokens = torch.randint(WORDS, (count, last + 1), generator=torch.Generator().manual_seed(seed))
    return from_tokens(tokens, [(first, first + WIDE) for first in range(1, last, WIDE)])


def _trained(wanted: CalibrateSettings, device: str | None, show_progress: bool | None) -> Tables:
    subject = load(wanted.trained, device=device)
    prompts = make_prompts(subject, PromptSettings(seed=wanted.seed))
    how: dict[str, Any] = {"null_draws": wanted.null_draws, "examples": False, "show_progress": show_progress}
    found = profile(subject, prompts, seed=wanted.seed, **how).statistics()
    return {"trained": found.drop(columns=["meaning", "reason"])}
