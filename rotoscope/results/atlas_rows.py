"""A profile as rows of an atlas: what is told of it, and what is not.

Names of folders above a model's own, user names, texts of prompts and of answers stay where they are. What decides whether two
profiles can be compared is hashed whole, and written out only as far as it is a number or one of our own words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from rotoscope.maths.known_patterns import KNOWN
from rotoscope.results.atlas_columns import KEY, TABLES
from rotoscope.results.atlas_types import typed
from rotoscope.results.profile import Profile
from rotoscope.results.record import RunRecord, SubjectRecord, settings_hash
from rotoscope.settings.prompts import DRAWN

OWN_SETTINGS = ("count", "seed")
"""Of a task: which prompts are drawn, not what they are like."""
SCORED_BY = ("gamma", "queries", "input_swaps", "least_mass")
"""What heads, classes and what is at stake rest on beside the prompts."""
UNSAID = {"input_swaps": 0, "least_mass": 0.05}
"""What runs and atlases mean that do not say it; `least_mass` is not written where it is this, as atlases before it had it."""
TOLD = (
    "pairs", "length", "copies", "block_length", "prefix", "granularity", "equal_length", "distinct", "ending", "asked",
    "blocks", "unit", "hops", "texts", "layers", *SCORED_BY,
)  # fmt: skip
"""Settings that may be written out: none of them holds a text or a path."""
PLAIN = re.compile(r"[A-Za-z0-9_.:,-]{1,24}")
HUB = "hub"


def compared_by(run: RunRecord) -> dict[str, Any]:
    """What must be the same of two profiles for their statistics to be compared, tau and the models aside."""
    given = run.settings.get("task_settings")
    sizes = {
        key: value
        for key, value in (given if isinstance(given, dict) else {}).items()
        if key not in OWN_SETTINGS
    }
    found = {"task": run.settings.get("task"), **sizes, **{key: run.settings.get(key) for key in SCORED_BY}}
    found |= {key: usual for key, usual in UNSAID.items() if found[key] is None}  # runs of earlier versions
    if found["least_mass"] == UNSAID["least_mass"]:
        del found["least_mass"]
    if found["task"] not in DRAWN:  # a text of one's own: other texts are another task
        found["prompts_hash"] = run.settings.get("prompts_hash")
    return found


def settings_key(run: RunRecord) -> str:
    """The same settings to compare by, or not the same."""
    return settings_hash(compared_by(run))


def told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that may be written out."""
    return {key: value for key, value in settings.items() if key in TOLD and _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, bool | int | float) or bool(PLAIN.fullmatch(str(value)))


def model_name(run: RunRecord) -> str:
    """The model's name; of one that lies in a folder, the folder's own name and none above it."""
    source = run.subject.source.get("kind") if run.subject is not None else None
    name = run.name.replace("\\", "/")
    return name if source == HUB else PurePosixPath(name).name or "model"


def task_name(run: RunRecord) -> str:
    """The task; one of the user's own by its name, if that is a plain word."""
    name = str(run.settings.get("task"))
    return name if PLAIN.fullmatch(name) else "own"


def profile_key(run: RunRecord, tau: float) -> str:
    """The same model on the same prompts with the same settings at the same tau, or not the same."""
    about = [fingerprint(run), settings_key(run), run.settings.get("prompts_hash"), float(tau)]
    return settings_hash({"profile": about})


def fingerprint(run: RunRecord) -> str:
    """Of the model."""
    known = run.subject.fingerprint if run.subject is not None else ""
    return known or str(run.settings.get("fingerprint", ""))


def model_of(profile: Profile) -> dict[str, Any]:
    """The model's name, shape and precision."""
    known, heads = profile.run.subject or SubjectRecord(), profile.at()
    return {
        "model": model_name(profile.run),
        "architecture": known.architecture,
        "dtype": known.dtype,
        "layers": known.layers or int(heads["layer"].max()) + 1,
        "heads": len(heads),
    }


def rows_of(profile: Profile, tau: float) -> dict[str, pd.DataFrame]:
    """A profile at one tau as rows of an atlas's tables."""
    run, heads, model = profile.run, profile.at(tau), model_of(profile)
    front = {
        KEY: profile_key(run, tau),
        "model": model["model"],
        "fingerprint": fingerprint(run),
        "architecture": model["architecture"],
        "task": task_name(run),
        "seed": _seed(run),
        "tau": float(tau),
    }
    nulls = profile.nulls_at(tau) if profile.null_name is not None else pd.DataFrame()
    about = front | {
        **model,
        "settings_key": settings_key(run),
        "settings": json.dumps(told(compared_by(run)), sort_keys=True),
        "prompts_hash": str(run.settings.get("prompts_hash", "")),
        "prompts": int(profile.prompts["prompt"].nunique()),
        "gamma": profile.gamma,
        "accuracy": np.nan if profile.accuracy is None else profile.accuracy,
        "chance": np.nan if profile.chance is None else profile.chance,
        "null_name": profile.null_name or "none",
        "null_draws": int(nulls["draw"].nunique()) if len(nulls) else 0,
        "proof_difference": _proven(run),
        "rotoscope": run.versions.get("rotoscope", ""),
    }
    tables = {
        "heads": _heads(profile, heads, model["layers"], front),
        "profiles": pd.DataFrame([about])[list(TABLES["profiles"])],
        "statistics": statistics_of(profile, tau).assign(**{KEY: front[KEY]})[list(TABLES["statistics"])],
    }
    return {name: typed(name, table) for name, table in tables.items()}


def statistics_of(profile: Profile, tau: float) -> pd.DataFrame:
    """The statistics of a profile at one tau, with the share of mixed heads, and empty columns where there is no null."""
    found, heads = profile.statistics(tau), profile.at(tau)
    known = heads["head_class"].notna()
    mixed = float((heads.loc[known, "head_class"] == "mixed").mean()) if known.any() else np.nan
    more = pd.DataFrame([{"statistic": "share mixed", "value": mixed}])
    found = pd.concat([found, more], ignore_index=True)
    return typed("statistics", found.reindex(columns=[name for name in TABLES["statistics"] if name != KEY]))


def _heads(profile: Profile, heads: pd.DataFrame, layers: int, front: Mapping[str, Any]) -> pd.DataFrame:
    """One row per head, with its scores as a head of known kinds where there are some."""
    made = heads.drop(columns="tau")
    if "known_heads" in profile.tables:
        made = made.merge(profile.known_heads[["layer", "head", *KNOWN]], on=["layer", "head"], how="left")
    made = made.assign(**front, relative_depth=made["layer"] / max(1, layers - 1))
    return made[[name for name in TABLES["heads"] if name in made]]


def _seed(run: RunRecord) -> int:
    given = run.settings.get("task_settings")
    found = (given if isinstance(given, dict) else {}).get("seed", run.settings.get("seed", 0))
    return int(found) if isinstance(found, int) else 0


def _proven(run: RunRecord) -> float:
    found = None if run.proof is None else run.proof.largest_difference
    return np.nan if found is None else float(found)
