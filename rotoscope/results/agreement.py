"""Is a class a property of the head or of the prompt? The same heads on several tasks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.results.aggregate import HEAD, SCORES
from rotoscope.results.components import COMPONENTS, variance_components
from rotoscope.results.intervals import INTERVAL, one_row_per_input
from rotoscope.results.profile import Profile
from rotoscope.results.saved import SavedRun, Tables
from rotoscope.results.table import Table
from rotoscope.results.verdict import holm

SHUFFLES = 2000
COMPONENT_SHUFFLES = 200


class Agreement(SavedRun):
    """Classes and scores of one model's heads on several tasks, at the first tau."""

    kind = "agreement"

    tasks = Table("One row per task: prompts, the model's own accuracy, chance, and the heads of each class.")
    heads = Table("One row per (task, layer, head): both scores and the class.")
    pairs = Table(
        "One row per two tasks: the share of heads with the same class in both, and what labels shuffled among the "
        "heads of a layer give (`null_share`, where 95 % of them lie, `p_value` after Holm's correction)."
    )
    components = Table(
        "One row per (score, component): its variance, its share of all, and the variance that is left when heads are "
        "shuffled within their layer in every task (`null_variance`); empty with fewer than two prompts a task.",
        optional=True,
    )

    def classes(self) -> pd.DataFrame:
        """One row per (layer, head): its class on each task, and whether it is the same on all of them."""
        wide = _classes(self.heads)
        same = wide.notna().all(axis=1) & (wide.nunique(axis=1) == 1)
        return wide.assign(same_on_all=same).rename_axis(columns=None).reset_index()

    def caveats(self) -> list[str]:
        """What a reader must know before trusting the numbers."""
        found = []
        if not len(self.components):
            found.append(
                "no variance components: they need two heads with scores and two prompts in every task"
            )
        if self.pairs["p_value"].isna().all():
            found.append("no null: every layer has one head, and there is nothing to shuffle")
        return found

    def __repr__(self) -> str:
        pairs = ", ".join(f"{row.task} and {row.other_task} {row.share:.0%}" for row in self.pairs.itertuples())
        return f"Agreement({self.name!r}: heads of one class in {pairs})"


def agreement_tables(profiles: Mapping[str, Profile], seed: int = 0) -> Tables:
    """The tables of an `Agreement` from profiles of one model, by the name of their task."""
    if len(profiles) < 2:
        raise RotoscopeError(f"agreement needs profiles on two tasks at least, found {len(profiles)}")
    heads = pd.concat(
        [one.at()[[*HEAD, *SCORES, "head_class"]].assign(task=task) for task, one in profiles.items()],
        ignore_index=True,
    )[["task", *HEAD, *SCORES, "head_class"]]
    tables = {
        "tasks": pd.DataFrame([_about(task, one) for task, one in profiles.items()]),
        "heads": heads,
        "pairs": class_agreement(heads, seed),
    }
    components = score_components(profiles, seed)
    return tables | ({"components": components} if len(components) else {})


def _about(task: str, profile: Profile) -> dict[str, object]:
    numbers = {
        "prompts": profile.prompts["prompt"].nunique(),
        "accuracy": np.nan if profile.accuracy is None else profile.accuracy,
        "chance": np.nan if profile.chance is None else profile.chance,
    }
    return {"task": task, **numbers, **profile.summary().classes}


def class_agreement(heads: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The share of heads that have the same class on two tasks, for every two of them, beside shuffled labels.

    Labels are shuffled among the heads of a layer, so that two tasks do not agree because both say what depth says. A
    head without a score on either task does not count.
    """
    wide = _classes(heads)
    dice = np.random.default_rng(seed)
    rows = []
    for one, other in itertools.combinations(wide.columns, 2):
        known = wide[[one, other]].dropna()
        a, b = (known[task].to_numpy(dtype=str) for task in (one, other))
        layers = known.index.get_level_values("layer").to_numpy()
        agreed = int((a == b).sum())
        row = {"task": one, "other_task": other, "heads": len(known), "agreed": agreed}
        row |= {"share": agreed / len(known) if len(known) else np.nan}
        rows.append(row | _null(a, b, layers, dice))
    table = pd.DataFrame(rows)
    table["p_value"] = holm(table["p_value"].to_numpy(dtype=float))
    return table


def _classes(heads: pd.DataFrame) -> pd.DataFrame:
    """The class of every head, a column per task in the order given."""
    return heads.pivot(index=HEAD, columns="task", values="head_class")[list(dict.fromkeys(heads["task"]))]


def _null(a: np.ndarray, b: np.ndarray, layers: np.ndarray, dice: np.random.Generator) -> dict[str, float]:
    """What independent labels give; nothing where no layer has two heads."""
    if len(layers) == len(set(layers.tolist())):
        return dict.fromkeys(("null_share", "null_low", "null_high", "p_value"), np.nan)
    shares = np.array([(a == b[shuffled_within(layers, dice)]).mean() for _ in range(SHUFFLES)])
    low, high = np.quantile(shares, INTERVAL)
    beyond = 1 + int((shares >= (a == b).mean()).sum())
    return {
        "null_share": float(shares.mean()),
        "null_low": float(low),
        "null_high": float(high),
        "p_value": beyond / (1 + SHUFFLES),
    }


def shuffled_within(layers: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """For every head, a random one of its layer, each taken once."""
    order = np.empty(len(layers), dtype=int)
    order[np.argsort(layers, kind="stable")] = np.lexsort((dice.random(len(layers)), layers))
    return order


def score_components(profiles: Mapping[str, Profile], seed: int = 0) -> pd.DataFrame:
    """The variance of both scores over head, task and prompt; of every task as many prompts as the fewest have.

    Heads without a score on some prompt are left out. Empty where there are not two of everything.
    """
    rows = []
    for score in SCORES:
        scores, layers = _cube(profiles, score)
        if min(scores.shape) < 2:
            return pd.DataFrame()
        dice = np.random.default_rng(seed)
        found = variance_components(scores)
        shuffled = [variance_components(_shuffled(scores, layers, dice)) for _ in range(COMPONENT_SHUFFLES)]
        whole = sum(max(0.0, value) for value in found.values())
        for name in COMPONENTS:
            share = max(0.0, found[name]) / whole if whole else np.nan
            null = float(np.mean([one[name] for one in shuffled]))
            rows.append(
                {"score": score, "component": name, "variance": found[name], "share": share}
                | {"null_variance": null, "heads": len(scores), "prompts": scores.shape[2]}
            )
    return pd.DataFrame(rows)


def _cube(profiles: Mapping[str, Profile], score: str) -> tuple[np.ndarray, np.ndarray]:
    """[heads, tasks, prompts] and the layer of each head."""
    wide = []
    for one in profiles.values():
        rows = one_row_per_input(one.prompts, [*HEAD, "tau"])
        rows = rows[rows["tau"] == one.taus[0]]
        wide.append(rows.pivot(index=HEAD, columns="prompt", values=score).sort_index())
    fewest = min(table.shape[1] for table in wide)
    cut = [table.iloc[:, :fewest].dropna() for table in wide]
    kept = cut[0].index
    for table in cut[1:]:
        kept = kept.intersection(table.index)
    cube = np.stack([table.loc[kept].to_numpy(dtype=float) for table in cut], axis=1)
    return cube, kept.get_level_values("layer").to_numpy()


def _shuffled(scores: np.ndarray, layers: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Every task with heads of its own in each layer's places."""
    return np.stack([scores[shuffled_within(layers, dice), task] for task in range(scores.shape[1])], axis=1)
