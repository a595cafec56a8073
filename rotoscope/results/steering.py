"""What came of trainings that favour a kind of heads: accuracy where they were trained and beyond, and what their heads are."""

from __future__ import annotations

import pandas as pd

from rotoscope.results.saved import SavedRun
from rotoscope.results.table import Table

FEWEST_SEEDS = 3
"""Trainings of each kind from which something is concluded."""
TRAINING = ["task", "favour", "strength", "seed"]


class Steering(SavedRun):
    """Models that differ in the kind they favour, by task, strength and seed."""

    kind = "steering"

    accuracy = Table(
        "One row per (training, order of the letters, length), with a 95 % interval; longer inputs have more in front."
    )
    heads = Table(
        "One row per (training, layer, head): scores, class (gamma = .1), variance of the logits, both penalties."
    )

    def overview(self) -> pd.DataFrame:
        """By (task, favour, strength): means over seeds of what the heads are and of the accuracy on every kind of inputs."""
        by = TRAINING[:-1]
        heads = self.heads.assign(
            positional=self.heads["head_class"] == "positional", symbolic=self.heads["head_class"] == "symbolic"
        )
        named = ["positional", "symbolic", "positional_penalty", "symbolic_penalty"]
        shares = heads.groupby(by, sort=False)[named].mean()
        seeds = self.heads.groupby(by, sort=False)["seed"].nunique().rename("seeds")
        right = self.accuracy.assign(on=self.accuracy["order"] + " " + self.accuracy["length"].astype(str))
        columns = right.drop_duplicates("on")["on"]
        wide = right.pivot_table(index=by, columns="on", values="accuracy", sort=False)[list(columns)]
        return shares.join(seeds).join(wide).reset_index()

    def comparisons(self) -> pd.DataFrame:
        """Every favoured kind beside none and beside the opposite, on every kind of inputs: better, worse, or neither.

        Better means that with at least three seeds of both, the worst of the one is above the best of the other, and that
        their 95 % intervals do not touch; worse the reverse. Anything else is neither, and nothing follows from it.
        """
        rows = []
        for (task, order, length), found in self.accuracy.groupby(["task", "order", "length"], sort=False):
            kinds = dict(list(found.groupby(["favour", "strength"], sort=False)))
            for (favour, strength), own in kinds.items():
                opposite = {"symbolic": "positional", "positional": "symbolic"}.get(favour)
                for against, others in kinds.items():
                    if favour != "none" and against in (("none", 0.0), (opposite, strength)):
                        about = {
                            "task": task,
                            "order": order,
                            "length": length,
                            "favour": favour,
                            "strength": strength,
                        }
                        rows.append(about | {"against": against[0]} | _compared(own, others))
        return pd.DataFrame(rows)


def _compared(own: pd.DataFrame, others: pd.DataFrame) -> dict[str, object]:
    """Two sets of trainings on the same inputs."""
    seeds = min(own["seed"].nunique(), others["seed"].nunique())
    found = "neither"
    if seeds >= FEWEST_SEEDS:
        found = "better" if own["low"].min() > others["high"].max() else found
        found = "worse" if own["high"].max() < others["low"].min() else found
    means = {"accuracy": own["accuracy"].mean(), "against_accuracy": others["accuracy"].mean()}
    return {"seeds": seeds, **means, "found": found}
