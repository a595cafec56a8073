"""From scores per prompt to scores per head: means, spread, class."""

from __future__ import annotations

import pandas as pd

from rotoscope.maths.purity import purity_class

__all__ = ["AT_TAU", "INDEX", "MEASURES", "head_table"]

INDEX = ["layer", "head", "tau"]

AT_TAU = [
    "positional_score",
    "symbolic_score",
    "renormalised_positional_score",
    "renormalised_symbolic_score",
    "centred_positional_score",
    "centred_symbolic_score",
    "effective_swaps",
    "renormalised_effective_swaps",
]
"""What depends on tau."""

MEASURES = [
    *AT_TAU,
    "entropy",
    "relative_entropy",
    "swapped_mass",
    "logit_variance",
    "d_pos",
    "d_sym",
]
"""Every number a head has on a prompt."""


def head_table(prompts: pd.DataFrame, gamma: float) -> pd.DataFrame:
    """One row per (layer, head, tau): means over prompts, standard deviation of the two scores, class.

    Prompts on which the head sees no swap do not count; a head that never sees one has no score, and
    `missing_reason` says so.
    """
    present = [name for name in MEASURES if name in prompts]
    groups = prompts.astype(dict.fromkeys(present, "float64")).groupby(INDEX, sort=True)
    heads = groups[present].mean()
    for score in ("positional_score", "symbolic_score"):
        heads[f"{score}_std"] = groups[score].std(ddof=1)
    heads["prompts"] = groups["positional_score"].count()
    heads = heads.reset_index()
    heads["head_class"] = [
        purity_class(p, s, gamma)
        for p, s in zip(heads["positional_score"], heads["symbolic_score"], strict=True)
    ]
    heads["missing_reason"] = None
    heads.loc[heads["prompts"] == 0, "missing_reason"] = "the query sees no block in any prompt"
    return heads
