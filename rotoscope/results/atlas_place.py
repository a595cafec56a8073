"""Where does a model lie among others? Its statistics beside those of an atlas on the same task with the same settings.

Only profiles with the same task, sizes, prefix, tolerances and tau stand beside each other: scores depend on all of them.
A model counts once, with the mean over its profiles; the model that is placed is not compared with itself, in whatever
precision it was read.

"Above all" or "below all" is said where the whole 95 % interval of the statistic lies beyond every other model. That is a
description and no test: among n other models, one more of the same sort is outermost 2 times in n + 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.errors import RotoscopeError
from rotoscope.results.atlas_columns import KEY
from rotoscope.results.atlas_models import count_models, one_precision, other_precisions
from rotoscope.results.atlas_rows import (
    UNSAID,
    compared_by,
    fingerprint,
    model_name,
    model_of,
    settings_key,
    statistics_of,
    task_name,
    told,
)
from rotoscope.results.profile import Profile
from rotoscope.results.saved import SavedRun

ABOVE, BELOW, AMONG, UNTOLD = "above all", "below all", "among them", "no interval"
MOST_NAMED = 4


@dataclass(frozen=True)
class Placement:
    """A profile among the models of an atlas."""

    model: str
    task: str
    tau: float
    table: pd.DataFrame
    """One row per statistic: `value` with its interval (`low`, `high`), what its own null gives (`null_value`), `models` to
    compare with, how many of them lie `below`, their `least`, `median` and `greatest`, and `where` the model lies; without
    models to compare with only its own figures."""
    others: pd.DataFrame
    """One row per other model and statistic: its mean over its profiles, and what its null gives."""
    words: list[str]
    """What can be said, and why nothing can be where nothing can."""

    @property
    def models(self) -> int:
        """How many other models there are to compare with."""
        return int(self.others["fingerprint"].nunique()) if len(self.others) else 0

    def __repr__(self) -> str:
        return f"Placement({self.model!r} on {self.task}: {' '.join(self.words)})"


def place(
    profiles: pd.DataFrame, statistics: pd.DataFrame, profile: SavedRun, tau: float | None = None
) -> Placement:
    """Where every statistic of a profile lies among those of other models."""
    if not isinstance(profile, Profile):
        raise RotoscopeError(f"only a profile can be placed in an atlas, found a {type(profile).__name__}")
    wanted = profile.tau_or_first(tau)
    own = statistics_of(profile, wanted)[["statistic", "value", "low", "high", "null_value"]]
    on_task = profiles[profiles["task"] == task_name(profile.run)]
    alike = on_task[(on_task["settings_key"] == settings_key(profile.run)) & np.isclose(on_task["tau"], wanted)]
    mine = model_of(profile)
    foreign = alike[alike["fingerprint"] != fingerprint(profile.run)]
    again = other_precisions(foreign, mine)
    precisions = sorted(foreign.loc[again, "dtype"].unique())
    foreign = one_precision(foreign[~again], mine["dtype"])
    others = _others(foreign, statistics)
    words = _words(profile, wanted, on_task, alike, foreign, precisions)
    table = own if others.empty else _beside(own, others)
    return Placement(model_name(profile.run), task_name(profile.run), wanted, table, others, words)


def _others(profiles: pd.DataFrame, statistics: pd.DataFrame) -> pd.DataFrame:
    """Every other model's statistics, each the mean over its profiles."""
    joined = profiles[[KEY, "model", "fingerprint"]].merge(statistics, on=KEY)
    by = ["model", "fingerprint", "statistic"]
    found = joined.groupby(by, sort=True)[["value", "null_value"]].mean().reset_index()
    return found.dropna(subset=["value"])


def _beside(own: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for one in own.itertuples():
        values = others.loc[others["statistic"] == one.statistic, "value"].to_numpy(dtype=float)
        known = len(values) > 0 and not np.isnan(one.value)
        rows.append(
            {
                "models": len(values),
                "below": int((values < one.value).sum()) if known else 0,
                "least": values.min() if len(values) else np.nan,
                "median": np.median(values) if len(values) else np.nan,
                "greatest": values.max() if len(values) else np.nan,
                "where": where_it_lies(one.low, one.high, values) if known else "",
            }
        )
    return pd.concat([own, pd.DataFrame(rows)], axis=1)


def where_it_lies(low: float, high: float, others: np.ndarray) -> str:
    """Beyond every other value with its whole interval, or among them; without an interval nobody can say."""
    if np.isnan(low) or np.isnan(high):
        return UNTOLD
    if low > others.max():
        return ABOVE
    return BELOW if high < others.min() else AMONG


def _words(
    profile: Profile,
    tau: float,
    on_task: pd.DataFrame,
    alike: pd.DataFrame,
    foreign: pd.DataFrame,
    precisions: list[str],
) -> list[str]:
    task = task_name(profile.run)
    if on_task.empty:
        return [f"The atlas has no model on this task ({task}), so nothing is compared."]
    if alike.empty:
        why = _differences(on_task, profile, tau)
        return [
            f"The atlas has {_count(count_models(on_task))} on this task ({task}), none with these settings: {why}. Nothing is compared."
        ]
    itself = _itself(fingerprint(profile.run) in set(alike["fingerprint"]), precisions)
    if foreign.empty:
        return [
            f"The only model of the atlas on this task ({task}) with these settings is this one: nothing is compared.",
            *itself[1:],
        ]
    models = count_models(foreign)
    names = sorted(foreign["model"].unique())
    named = ", ".join(names[:MOST_NAMED]) + (" and others" if len(names) > MOST_NAMED else "")
    return [
        f"Compared with {_count(models)} on the same task ({task}) with the same settings: {named}.",
        *itself,
        f"Where it lies is a description and no test: outside {_outside(models)}.",
    ]


def _itself(there: bool, precisions: list[str]) -> list[str]:
    said = ["It is in the atlas itself, and not compared with itself."] if there or precisions else []
    if precisions:
        said.append(
            f"A model of its name and shape is there in {' and '.join(precisions)}: it is taken for the same one, and left out."
        )
    return said


def _count(models: int) -> str:
    return f"{models} model" if models == 1 else f"{models} models"


def _outside(models: int) -> str:
    if models == 1:
        return "a single other model, everything lies on one side or the other"
    return f"all of {models}, one more of the same sort would lie 2 times in {models + 1}"


def _differences(on_task: pd.DataFrame, profile: Profile, tau: float) -> str:
    """What the nearest profile of the atlas has otherwise, in words."""
    here: dict[str, Any] = UNSAID | told(compared_by(profile.run)) | {"tau": tau}
    found = list[list[str]]()
    for row in on_task.drop_duplicates(["settings_key", "tau"]).itertuples():
        there: Mapping[str, Any] = UNSAID | json.loads(row.settings) | {"tau": row.tau}
        names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
        found.append(
            [f"{name} is {_said(here.get(name))} here and {_said(there.get(name))} there" for name in names]
        )
    return "; ".join(sorted(found, key=len)[0]) or "they differ in what is not written out, such as the text"


def _said(value: object) -> str:
    return "not set" if value is None else str(value)
