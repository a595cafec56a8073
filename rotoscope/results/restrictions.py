"""Models whose heads have some frequencies only, beside unrestricted ones: what each still learns.

A task fails under a restriction only where at least three seeds say so: every one of them is right in less than half of the cases,
while every unrestricted seed, three at least, has learned it. What lies between is shown, and nothing is claimed of it.
"""

from __future__ import annotations

import pandas as pd

from rotoscope.maths.purity import AT_ITS_LAYER
from rotoscope.results.saved import SavedRun
from rotoscope.results.table import Table
from rotoscope.results.training import LEARNED
from rotoscope.settings.angles import UNRESTRICTED

HALF = 0.5
"""Fewer than half are right: the task fails."""
LEAST_SEEDS = 3
LEARNS, FAILS, BETWEEN, NO_CLAIM = "learned", "fails", "in between", "no claim"
MODEL = ["task", "restriction"]


class Restrictions(SavedRun):
    """Trainings by task, restriction and seed. Frequency ids count from 1, the fastest; layers and heads from 0."""

    kind = "restrictions"

    accuracy = Table("One row per (task, restriction, seed, hops): accuracy on the test sequences, and chance.")
    heads = Table(
        "One row per (task, restriction, seed, layer, head): scores and class at the end of training, where they were watched.",
        optional=True,
    )

    def by_hops(self) -> pd.DataFrame:
        """Accuracy over seeds for each task, restriction and number of hops, and what follows from it (`outcome`)."""
        groups = self.accuracy.groupby([*MODEL, "hops"], sort=False)["accuracy"]
        table = groups.agg(["mean", "std", "min", "max", "count"]).reset_index()
        table = table.rename(columns={"mean": "accuracy", "std": "spread", "count": "seeds"})
        whole = table[table["restriction"] == UNRESTRICTED].set_index(["task", "hops"])
        asked = pd.MultiIndex.from_frame(table[["task", "hops"]])
        beside = whole.reindex(asked).reset_index(drop=True)
        table["unrestricted"] = beside["accuracy"]
        table["chance"] = self.accuracy.groupby("task")["chance"].mean().reindex(table["task"]).to_numpy()
        enough = (table["seeds"] >= LEAST_SEEDS) & (beside["seeds"] >= LEAST_SEEDS)
        fails = enough & (beside["min"] >= LEARNED) & (table["max"] < HALF)
        learned = (table["seeds"] >= LEAST_SEEDS) & (table["min"] >= LEARNED)
        known = enough & (beside["min"] >= LEARNED)
        table["outcome"] = NO_CLAIM
        table.loc[known, "outcome"] = BETWEEN
        table.loc[learned, "outcome"] = LEARNS
        table.loc[fails, "outcome"] = FAILS
        return table

    def table(self) -> pd.DataFrame:
        """One row per task and restriction: mean accuracy and spread over seeds by hops, chance, scores and pure heads."""
        found = self.by_hops()
        wide = found.groupby(MODEL, sort=False).agg({"seeds": "min", "chance": "first"})
        for hops, rows in found.groupby("hops"):
            own = rows.set_index(MODEL)
            wide[f"hops_{hops}"], wide[f"hops_{hops}_spread"] = own["accuracy"], own["spread"]
        if "heads" in self.tables:
            groups = self.heads.groupby(MODEL, sort=False)
            wide = wide.join(groups[["positional_score", "symbolic_score"]].mean())
            counts = self.heads.groupby([*MODEL, "head_class"]).size().unstack(fill_value=0)
            for kind in AT_ITS_LAYER[:2]:
                wide[f"{kind}_heads"] = counts.get(kind, 0) / wide["seeds"]
        return wide.reset_index()

    def sentences(self) -> list[str]:
        """What can be said of each restriction, with the figures; nothing where nothing can."""
        said = []
        for (task, restriction), rows in self.by_hops().groupby(MODEL, sort=False):
            if restriction == UNRESTRICTED:
                continue
            failing, learned = (rows[rows["outcome"] == outcome] for outcome in (FAILS, LEARNS))
            if len(failing):
                worst, all_of = failing["max"].max(), failing["unrestricted"].min()
                said.append(
                    f"{task} fails with the angles {restriction} at {_hops(failing)} (at most {worst:.2f} in "
                    f"{int(failing['seeds'].min())} seeds, unrestricted {all_of:.2f}, chance {rows['chance'].iloc[0]:.2f})"
                )
            elif len(learned) == len(rows):
                said.append(
                    f"{task} is learned with the angles {restriction} (at least {learned['min'].min():.2f} in "
                    f"{int(learned['seeds'].min())} seeds)"
                )
        return said

    def __repr__(self) -> str:
        table = self.table()
        return f"Restrictions({', '.join(dict.fromkeys(table['restriction']))}; {table['seeds'].min()} seeds)"


def _hops(rows: pd.DataFrame) -> str:
    found = [str(hops) for hops in rows["hops"]]
    return f"{' and '.join([', '.join(found[:-1]), found[-1]]) if len(found) > 1 else found[0]} hop{'s' * (found != ['1'])}"
