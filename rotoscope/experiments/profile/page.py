"""The heads of a profile as the page needs them: scores, intervals, nulls, frequencies, examples."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.errors import RunError
from rotoscope.experiments.depths.result import SwapDepths
from rotoscope.experiments.page_data import PageRun, clean, column, columns, packed
from rotoscope.experiments.profile.attention_page import noun_of, shown_tab
from rotoscope.experiments.profile.headline import against_nulls, headline, in_the_prompt
from rotoscope.experiments.profile.result import Profile
from rotoscope.experiments.profile.screen import failed, head_steps, with_missing_caveats
from rotoscope.runs.result import NextStep
from rotoscope.scores.attention import KNOWN
from rotoscope.scores.classes import CLASSES, GAMMA, pure_regions
from rotoscope.stats.aggregate import (
    ALL_SCORES,
    ENDS,
    INDEX,
    LEAST_MASS,
    SCORES,
    frequency_table,
    little_at_stake,
    own_measures,
)
from rotoscope.stats.intervals import INTERVAL
from rotoscope.stats.statistics import class_words

HEAD_COLUMNS = (
    *(f"{score}{end}" for score in ALL_SCORES for end in ("", "_low", "_high")),
    "covered_share",
    "carry_depth",
    "class_share",
    "class_stability",
    "stable",
    "little_at_stake",
    "entropy",
    "relative_entropy",
    "swapped_mass",
    "effective_swaps",
    "prompts",
    "missing_reason",
    "weighted_frequency_id",
    "dominant_frequency_id",
)
BAND = [INTERVAL[0], 0.5, INTERVAL[1]]
SMALL = 3_000_000
"""Bytes of frequency scores up to which two bytes a score are spent, and intervals are kept."""


def heads_tab(page_run: PageRun) -> dict[str, Any] | None:
    """Everything about heads; parts that cannot be made are left out with a sentence in `page_run.problems`."""
    profile = page_run.opened()
    least_mass = page_run.attempt("the least mass", lambda: getattr(profile, "least_mass", LEAST_MASS))
    least_mass = LEAST_MASS if least_mass is None else least_mass
    heads = page_run.attempt("the heads", lambda: _heads(profile, least_mass))
    if heads is None or heads.empty:
        if heads is not None:
            page_run.problems.append("the run has no heads yet")
        return None
    gamma = page_run.attempt("the tolerance gamma", lambda: profile.gamma)
    gamma = GAMMA if gamma is None else gamma
    places = heads[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
    nulls = page_run.attempt("the null", lambda: _nulls(profile))
    own = own_measures(page_run.tables["prompts"]) if isinstance(profile, Profile) else []
    own = [name for name in own if name in heads]
    taus = [float(tau) for tau in dict.fromkeys(heads["tau"])]
    at = [
        page_run.attempt(f"the heads at tau = {tau:g}", partial(_at, heads, places, tau, own)) for tau in taus
    ]
    tab: dict[str, Any] = {
        "taus": [tau for tau, tau_tab in zip(taus, at, strict=True) if tau_tab],
        "gamma": gamma,
        "least_mass": least_mass,
        "pure": pure_regions(gamma),
        "layer": column(places["layer"]),
        "head": column(places["head"]),
        "at": [tau_tab for tau_tab in at if tau_tab],
        "permuted": "input_class" in heads,
        "measures": own,
        "noun": page_run.attempt("what is swapped", lambda: noun_of(page_run)) or "token",
        "density_cells": CELLS,
        "null": None if nulls is None or nulls.empty else str(nulls["null_name"].iloc[0]),
    }
    if not tab["at"]:
        return None
    for tau, tau_tab in zip(tab["taus"], tab["at"], strict=True):
        if nulls is not None and len(nulls):
            tau_tab |= page_run.attempt("the null", partial(_null_at, nulls, tau, tau_tab, own)) or {}
        if "prompts" in page_run.tables:
            tau_tab["statistics"] = page_run.attempt("the summary figures", partial(_statistics, profile, tau))
    tables = page_run.tables
    for name, title, make in (
        ("frequencies", "the frequencies", lambda: _frequencies(tables, tab["taus"])),
        ("known", "the known scores", lambda: _known(tables.get("known_heads"), places)),
        ("accuracy", "the answers", lambda: _accuracy(tables.get("answers"), getattr(profile, "chance", None))),
    ):
        tab[name] = page_run.attempt(title, make)
    for tau, tau_tab in zip(tab["taus"], tab["at"], strict=True):
        tau_tab["headline"] = page_run.attempt("the headline", partial(_headline, heads, tau, tab, tau_tab))
    left = min(page_run.room - len(json.dumps(tab, separators=(",", ":"))), 2 * page_run.room // 5)
    tab["shown"] = page_run.attempt("the prompt", lambda: shown_tab(page_run, places, left))
    steps: list[NextStep] = page_run.attempt("what to run next", lambda: head_steps(page_run.run)) or []
    tab["next"] = [step._asdict() for step in steps]
    stable = pd.DataFrame({"stable": tab["at"][0].get("stable", [])})
    tab["warnings"] = with_missing_caveats(page_run.run.warnings, tab["null"], stable)
    return tab


def _heads(profile: Profile | SwapDepths, least_mass: float) -> pd.DataFrame:
    """The heads, with a column that says where little is at stake."""
    if isinstance(profile, SwapDepths):
        return _stored(profile, "turns")
    heads = _stored(profile, "heads")
    if "little_at_stake" not in heads and "head_class" in heads:
        heads = heads.assign(little_at_stake=little_at_stake(heads, least_mass))
    return heads


def _nulls(profile: Profile | SwapDepths) -> pd.DataFrame:
    """The null's heads: one row per (null_name, draw, layer, head, tau)."""
    if isinstance(profile, Profile):
        return _stored(profile, "nulls")
    rows = profile.null_prompts
    if not len(rows):
        return pd.DataFrame()
    return rows[rows["own"]].groupby(["null_name", "draw", *INDEX])[SCORES].mean().reset_index()


def _stored(profile: Profile | SwapDepths, name: str) -> pd.DataFrame:
    """A table that a finished run stores; made from the prompts of one that is not finished, or in memory."""
    table: pd.DataFrame = profile.tables[name] if name in profile.tables else getattr(profile, name)
    if len(table) and (missing := {*INDEX} - set(table)):
        raise RunError(f"its table '{name}' has no {', '.join(sorted(missing))}")
    return table


def _at(heads: pd.DataFrame, places: pd.DataFrame, tau: float, own: list[str]) -> dict[str, Any]:
    known = heads[heads["tau"] == tau].drop_duplicates(["layer", "head"])
    rows = places.merge(known, on=["layer", "head"], how="left")
    tab: dict[str, Any] = columns(rows, (*HEAD_COLUMNS, *own))
    if not rows["missing_reason"].notna().any() if "missing_reason" in rows else True:
        tab.pop("missing_reason", None)
    kinds = {name: code for code, name in enumerate(CLASSES)}
    tab["head_class"] = [kinds.get(name, -1) for name in rows["head_class"]]
    within = rows["input_class"].tolist() if "input_class" in rows else [None] * len(rows)
    if "input_class" in rows:
        tab["input_class"] = [kinds.get(str(name), -1) for name in within]
    pairs = zip(rows["head_class"], within, strict=True)
    tab["at_its_layer"] = [isinstance(name, str) and class_words(name, other) != name for name, other in pairs]
    return tab


def _statistics(profile: Profile | SwapDepths, tau: float) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = clean(profile.statistics(tau).to_dict("records"))
    return records


def _headline(heads: pd.DataFrame, tau: float, tab: dict[str, Any], at: dict[str, Any]) -> list[str]:
    """What came out, and what stands beside it; a model that cannot do the task says so first."""
    rows = heads[heads["tau"] == tau]
    right = tab["accuracy"] or {"accuracy": None, "chance": None}
    fails = [f"{words[0].upper()}{words[1:]}." for words in failed(right["accuracy"], right["chance"])]
    beside = (in_the_prompt(rows), against_nulls(at.get("statistics") or [], tab["null"]))
    return [" ".join([*fails, headline(rows, tab["noun"])]), " ".join(filter(None, beside))]


def _null_at(nulls: pd.DataFrame, tau: float, heads: dict[str, Any], own: list[str]) -> dict[str, Any]:
    """Where the null's heads lie: how densely, the band that holds 95 % of them, and the share below each head of the run."""
    rows = nulls[nulls["tau"] == tau].dropna(subset=SCORES)
    banded = [*SCORES, *(name for name in own if name in rows)]
    bands = {name: column(rows[name].quantile(BAND)) for name in banded if len(rows)}
    ranks = {score: np.sort(rows[score].to_numpy(dtype=float)) for score in SCORES}
    above = {
        score: clean(
            [None if x is None else np.searchsorted(ranks[score], x) / len(rows) for x in heads[score]]
        )
        for score in SCORES
        if len(rows)
    }
    bands_of_tau = {"null_band": bands, "null_heads": len(rows), "above_null": above}
    return bands_of_tau | ({"null_density": packed(density(rows).ravel(), 8)} if len(rows) else {})


CELLS = 48
"""Cells of the plane along each side, in which the null's heads are counted."""


def density(rows: pd.DataFrame) -> np.ndarray:
    """How many of the null's heads lie about each cell of the plane, [symbolic, positional], as a share of the fullest one."""
    edges = np.linspace(0, 1, CELLS + 1)
    counts, _, _ = np.histogram2d(rows["symbolic_score"], rows["positional_score"], bins=(edges, edges))
    near = np.exp(-0.5 * (np.subtract.outer(np.arange(CELLS), np.arange(CELLS)) / 1.5) ** 2)
    near /= near.sum(1, keepdims=True)
    smooth = near @ counts @ near.T
    return np.asarray(smooth / max(float(smooth.max()), 1e-12))


def _frequencies(tables: dict[str, pd.DataFrame], taus: list[float]) -> dict[str, Any] | None:
    """Scores and intervals of every plane, packed as [head, frequency id]; the norm of the logits does not depend on tau."""
    stored = tables.get("frequencies")
    if stored is None and "prompt_frequencies" not in tables:
        return None
    whole = stored if stored is not None else frequency_table(tables["prompt_frequencies"])
    ids = sorted(int(i) for i in whole["frequency_id"].unique())
    places = whole[["layer", "head"]].drop_duplicates().sort_values(["layer", "head"])
    size = len(places) * len(ids) * len(taus)
    shown = [*SCORES, *ENDS] if 6 * size <= SMALL and {*ENDS} <= set(whole) else SCORES
    bits = 16 if 2 * len(shown) * size <= SMALL else 8
    bands = _null_bands(tables)

    def grid(rows: pd.DataFrame, value: str, size: int) -> dict[str, Any]:
        wide = rows.pivot(index=["layer", "head"], columns="frequency_id", values=value)
        wide = wide.reindex(index=pd.MultiIndex.from_frame(places), columns=ids)
        return packed(wide.to_numpy(dtype=float).ravel(), size)

    tab: dict[str, Any] = {
        "ids": ids,
        "layer": column(places["layer"]),
        "head": column(places["head"]),
        "angles": _angles(whole, ids),
        "at": [],
    }
    for tau in taus:
        rows = whole[whole["tau"] == tau]
        grids = {name: grid(rows, name, bits) for name in shown}
        tab["at"].append(grids | {"null": bands.get(tau)})
    tab["logit_norm"] = grid(whole[whole["tau"] == whole["tau"].iloc[0]], "logit_norm", bits)
    return tab


def _angles(whole: pd.DataFrame, ids: list[int]) -> dict[str, Any]:
    """Angle by frequency id; layers with the same angles share one list."""
    wide = whole.groupby(["layer", "frequency_id"])["angle"].first().unstack().reindex(columns=ids)
    lists: list[list[Any]] = []
    by_layer: dict[str, int] = {}
    for layer, row in zip(wide.index, wide.to_numpy(dtype=float), strict=True):
        angles = clean(row.tolist(), 4)
        if angles not in lists:
            lists.append(angles)
        by_layer[str(layer)] = lists.index(angles)
    return {"lists": lists, "of_layer": by_layer}


def _null_bands(tables: dict[str, pd.DataFrame]) -> dict[float, dict[str, Any]]:
    """For every frequency id, where 95 % of the planes of the null beside the scores lie (each the mean over prompts)."""
    table = tables.get("null_prompt_frequencies")
    if table is None or table.empty:
        return {}
    table = table[
        table["null_name"] == table["null_name"].max()
    ]  # the random one of two, as in `Profile.null_name`
    heads = table.groupby(["tau", "frequency_id", "draw", "layer", "head"])[SCORES].mean()
    spread = heads.groupby(["tau", "frequency_id"]).quantile(BAND).astype(float)
    by_tau: dict[float, dict[str, Any]] = {}
    for tau, rows in spread.groupby(level=0):
        wide = rows.droplevel(0).unstack()
        ends = dict(zip(("low", "middle", "high"), BAND, strict=True))
        bands = {score: {end: column(wide[score][q], 3) for end, q in ends.items()} for score in SCORES}
        by_tau[float(tau)] = bands | {"ids": [int(i) for i in wide.index]}
    return by_tau


def _known(scores: pd.DataFrame | None, places: pd.DataFrame) -> dict[str, Any] | None:
    """How much every head is a previous-token, induction, ... head."""
    return None if scores is None else columns(places.merge(scores, on=["layer", "head"], how="left"), KNOWN)


def _accuracy(answers: pd.DataFrame | None, chance: float | None) -> dict[str, Any] | None:
    if answers is None or answers.empty:
        return None
    correct = float(np.mean(answers["correct"].astype(float)))
    return {"accuracy": clean(correct), "answers": len(answers), "chance": clean(chance)}
