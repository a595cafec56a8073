"""Which frequencies a head uses, and its queries and keys in the plane it uses most."""

from __future__ import annotations

import pandas as pd

from rotoscope.results.aggregate import HEAD, dominant_planes, plane_weights, weighted_id
from rotoscope.results.saved import SavedRun
from rotoscope.results.table import Table


def frequency_use(frequencies: pd.DataFrame, scaling: float) -> pd.DataFrame:
    """How much each head uses each frequency, from the frequencies of a profile.

    P2 leaves the weights undefined. `weight` takes the logits as the head attends with them; `product_weight`
    the plain products of query and key, before they are multiplied by `scaling`.
    """
    use = frequencies.groupby([*HEAD, "frequency_id"], as_index=False)[["angle", "max_logit"]].mean()
    weights = {"weight": 1.0, "product_weight": scaling}
    return use.assign(**{name: plane_weights(use, HEAD, factor) for name, factor in weights.items()})


class Geometry(SavedRun):
    """Frequency use and vectors of a multi-hop model. Frequency ids count from 1, the fastest."""

    kind = "geometry"

    @property
    def task(self) -> str:
        """The multi-hop task of the model: number or letter."""
        return str(self.run.settings["task"])

    use = Table(
        "One row per (layer, head, frequency_id): largest logit over keys (mean over inputs) and its weight."
    )
    vectors = Table("Mean un-rotated query and key of every token in the dominant plane of every head.")

    def weighted_ids(self) -> pd.DataFrame:
        """The weighted-average frequency id of every head (P2's Table 1), and its dominant plane.

        `weighted_id` weighs by the logits the head attends with, `product_weighted_id` by the products before
        scaling.
        """
        top = dominant_planes(self.use, HEAD)
        found = {
            "weighted_id": weighted_id(self.use, HEAD, self.use["weight"]),
            "product_weighted_id": weighted_id(self.use, HEAD, self.use["product_weight"]),
            "dominant_id": top["frequency_id"].astype(int),
            "dominant_angle": top["angle"],
        }
        return pd.DataFrame(found).rename_axis(HEAD).reset_index()

    def __repr__(self) -> str:
        ids = ", ".join(f"{x:.0f}" for x in self.weighted_ids()["weighted_id"])
        return f"Geometry({self.task}; weighted-average frequency ids {ids})"
