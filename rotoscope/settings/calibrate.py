"""How verdicts are put to the test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rotoscope.settings.base import Settings
from rotoscope.settings.bounds import SEED, amount, count


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings(Settings):
    """Random models that are put in the subject's place, and a trained one."""

    title: ClassVar = "What is put to the test"
    bounds: ClassVar = {
        "repetitions": count(100_000, "every one is a random subject with draws of its own"),
        "scales": amount(1e-6, 1, "weights so small are nothing, and transformers initialises with at most 1"),
        "prompts": count(10_000, "a standard error takes at least two prompts", least=2),
        "null_draws": count(1_000, "a verdict needs at least two draws", least=2),
        "seed": SEED,
    }

    repetitions: int = 40
    """Random subjects for every scale and number of prompts."""
    scales: tuple[float, ...] = (0.02, 0.1)
    """Standard deviations of the subjects' weights; 0.02 is what transformers initialises with."""
    prompts: tuple[int, ...] = (6, 16)
    """Numbers of prompts."""
    null_draws: int = 5
    """How often the null is drawn beside every subject."""
    trained: str = "smollm2"
    """A trained model whose figures should be beyond the null: a name, a folder or a hub id, at 32 pairs and 16 prompts. none
    leaves it out."""
    seed: int = 0
    """Of subjects, prompts and draws."""
