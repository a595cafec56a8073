"""A whole model in a few figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rotoscope.maths.purity import CLASSES

__all__ = ["Summary", "summarise"]


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


def summarise(heads: pd.DataFrame) -> Summary:
    """Summarise a head table at one tau."""
    scored = heads.dropna(subset=["positional_score", "symbolic_score"])
    early = scored["layer"] < (heads["layer"].max() + 1) / 2
    positional, symbolic = scored["positional_score"], scored["symbolic_score"]
    varies = len(scored) > 2 and positional.std() > 0 and symbolic.std() > 0
    return Summary(
        heads=len(heads),
        missing=len(heads) - len(scored),
        correlation=float(np.corrcoef(positional, symbolic)[0, 1]) if varies else None,
        early_positional=float(positional[early].median()),
        late_positional=float(positional[~early].median()),
        early_symbolic=float(symbolic[early].median()),
        late_symbolic=float(symbolic[~early].median()),
        classes={name: int((scored["head_class"] == name).sum()) for name in CLASSES},
    )
