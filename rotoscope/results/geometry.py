"""Which frequencies a head uses, and its queries and keys in the plane it uses most."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rotoscope.results.saved import SavedRun

__all__ = ["TABLE_1", "Geometry", "frequency_use"]

TABLE_1 = {
    "number": (1, 2, 2, 2, 10, 39, 38, 38, 38, 37, 37, 38),
    "letter": (18, 32, 42, 37, 40, 38, 41, 38, 41, 39, 38, 40),
}
"""Weighted-average frequency id per layer as P2's Table 1 prints it, for comparison."""


def frequency_use(frequencies: pd.DataFrame, scaling: float) -> pd.DataFrame:
    """How much each head uses each frequency: the softmax over frequencies of its largest logit over keys.

    P2 leaves the weights undefined. `weight` takes the logits as the head attends with them; `product_weight` the plain
    products of query and key, before they are multiplied by `scaling`. Takes the frequencies of a profile.
    """
    use = frequencies.groupby(["layer", "head", "frequency_id"], as_index=False)[["angle", "max_logit"]].mean()
    above = use["max_logit"] - use.groupby(["layer", "head"])["max_logit"].transform("max")
    for name, factor in (("weight", 1.0), ("product_weight", 1 / scaling)):
        raw = np.exp(factor * above)
        use[name] = raw / raw.groupby([use["layer"], use["head"]]).transform("sum")
    return use


class Geometry(SavedRun):
    """Frequency use and vectors of a multi-hop model. Frequency ids count from 1, the fastest."""

    kind = "geometry"

    @property
    def task(self) -> str:
        """The multi-hop task of the model: number or letter."""
        return str(self.run.settings["task"])

    @property
    def use(self) -> pd.DataFrame:
        """One row per (layer, head, frequency_id): largest logit over keys (mean over inputs) and its weight."""
        return self.tables["use"]

    @property
    def vectors(self) -> pd.DataFrame:
        """Mean un-rotated query and key of every token in the dominant plane of every head."""
        return self.tables["vectors"]

    def weighted_ids(self) -> pd.DataFrame:
        """P2's Table 1: the weighted-average frequency id of every head, its dominant id, and the paper's value.

        `weighted_id` weighs by the logits the head attends with, `product_weighted_id` by the products before scaling.
        """
        rows = []
        for (layer, head), of in self.use.groupby(["layer", "head"]):
            top = of.loc[of["max_logit"].idxmax()]
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "weighted_id": float((of["frequency_id"] * of["weight"]).sum()),
                    "product_weighted_id": float((of["frequency_id"] * of["product_weight"]).sum()),
                    "dominant_id": int(top["frequency_id"]),
                    "dominant_angle": float(top["angle"]),
                }
            )
        table = pd.DataFrame(rows)
        printed = TABLE_1.get(self.task, ())
        same_shape = len(printed) == len(table) and len(self.use["frequency_id"].unique()) == 64
        return table.assign(
            paper_id=list(printed) if same_shape else pd.array([pd.NA] * len(table), dtype="Int64")
        )

    def __repr__(self) -> str:
        ids = ", ".join(f"{x:.0f}" for x in self.weighted_ids()["weighted_id"])
        return f"Geometry({self.task}; weighted-average frequency ids {ids})"
