"""A whole model in a few figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.maths.purity import AT_ITS_LAYER, CLASSES
from rotoscope.results.aggregate import LEAST_MASS, SCORES, little_at_stake


@dataclass(frozen=True)
class Summary:
    """Figures of P1's section on language models, over all heads that have a score."""

    heads: int
    missing: int
    correlation: float | None
    """Pearson's r between the positional and the symbolic score; None where either does not vary."""
    early_positional: float
    late_positional: float
    early_symbolic: float
    late_symbolic: float
    """Medians over the heads of the first and of the second half of the layers."""
    classes: dict[str, int]
    little_at_stake: dict[str, int]
    """How many of each class put less than `least_mass` of their attention on what is swapped."""
    least_mass: float
    followed: int | None = None
    """How many of the symbolic heads are pure symbolic also with the prompt itself permuted; None where it was not."""

    @property
    def counted(self) -> dict[str, str]:
        """Each class with its heads and, in brackets, those of them with little at stake (see `stake_words`)."""
        found = {name: f"{n} {name} ({self.little_at_stake[name]})" for name, n in self.classes.items()}
        note = (
            "at their layer" if self.followed is None else f"at their layer, {self.followed} also in the prompt"
        )
        return found | {"symbolic": f"{found['symbolic']} {note}"}

    @property
    def stake_words(self) -> str:
        """What the brackets hold."""
        return (
            f"in brackets, little at stake: under {self.least_mass:.0%} of their attention on what is swapped"
        )


def class_words(head_class: str, input_class: object = None) -> str:
    """A head's class in words. A pure symbolic head follows the symbol only if it does so with the prompt permuted."""
    followed = head_class != "symbolic" or input_class == "symbolic"
    return head_class if followed else "symbolic at its layer"


def first_half(layers: np.ndarray, count: int) -> np.ndarray:
    """Which rows stand in the first half of so many layers; the middle one of an odd number belongs to it."""
    half: np.ndarray = np.asarray(layers) < count / 2
    return half


def correlation(positional: np.ndarray, symbolic: np.ndarray) -> np.ndarray:
    """Pearson's r of the two scores over heads (last axis); NaN where either does not vary."""
    if not positional.shape[-1]:
        return np.full(positional.shape[:-1], np.nan)
    p, s = (scores - scores.mean(-1, keepdims=True) for scores in (positional, symbolic))
    size = np.sqrt((p * p).sum(-1) * (s * s).sum(-1))
    return np.asarray(np.divide((p * s).sum(-1), size, out=np.full(np.shape(size), np.nan), where=size > 0))


def depth_medians(positional: np.ndarray, symbolic: np.ndarray, early: np.ndarray) -> dict[str, Any]:
    """Medians over the heads (last axis) of either half of the layers, and how far apart they are."""
    found = {
        f"{half}_{kind}": median(scores[..., mask])
        for kind, scores in (("positional", positional), ("symbolic", symbolic))
        for half, mask in (("early", early), ("late", ~early))
    }
    found["positional_decline"] = found["early_positional"] - found["late_positional"]
    found["symbolic_rise"] = found["late_symbolic"] - found["early_symbolic"]
    return found


def median(scores: np.ndarray) -> np.ndarray:
    """Over the last axis; of nothing it is NaN."""
    return np.asarray(np.median(scores, axis=-1) if scores.shape[-1] else np.full(scores.shape[:-1], np.nan))


def summarise(heads: pd.DataFrame, least_mass: float = LEAST_MASS) -> Summary:
    """Summarise a head table at one tau."""
    scored = heads.dropna(subset=SCORES)
    positional, symbolic = (scored[score].to_numpy(dtype=float)[None] for score in SCORES)
    early = first_half(scored["layer"].to_numpy(), int(heads["layer"].max()) + 1)
    measured = {"correlation": correlation(positional, symbolic), **depth_medians(positional, symbolic, early)}
    found = {name: float(value[0]) for name, value in measured.items()}
    little = little_at_stake(scored, least_mass).fillna(False)
    permuted = "input_class" in heads
    told_apart = CLASSES if permuted else AT_ITS_LAYER
    known = len(scored) > 2 and not np.isnan(found["correlation"])
    return Summary(
        heads=len(heads),
        missing=len(heads) - len(scored),
        correlation=found["correlation"] if known else None,
        **{name: value for name, value in found.items() if name.startswith(("early", "late"))},
        classes={name: int((scored["head_class"] == name).sum()) for name in told_apart},
        little_at_stake={name: int(little[scored["head_class"] == name].sum()) for name in told_apart},
        least_mass=least_mass,
        followed=int(((scored["head_class"] == "symbolic") & (scored["input_class"] == "symbolic")).sum())
        if permuted
        else None,
    )
