"""Plans with made-up numbers or of small random models, for pages and pictures."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

import rotoscope as rs
from rotoscope.experiments.plan.result import CachePlan, RotationPlan
from rotoscope.experiments.plan.settings import CacheSettings
from rotoscope.runs.record import RunRecord
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny


def cache_plan(prompts: int = 4, layers: int = 6, key_heads: int = 3) -> CachePlan:
    """Rankings of which each is a little worse than the one before it, and random ones that are much worse."""
    settings = CacheSettings.make(prompts=prompts)
    dice, rows = np.random.default_rng(0), []
    for source, share in itertools.product(settings.sources, (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)):
        names = settings.rankings if 0 < share < 1 else ("any",)
        for k, name in enumerate(sorted(names, key=lambda one: (one == "random", one))):
            for draw in range(20) if name == "random" else (-1,):
                for purpose in ("judging", "choosing"):
                    if purpose == "choosing" and (name in ("random", "any") or source != "repeats"):
                        continue
                    about = {"ranking": name, "draw": draw, "kept_share": share, "kept_heads": round(18 * share), "purpose": purpose, "source": source}  # fmt: skip
                    worse = (8.0 if name == "random" else 0.3 * k) * (1 - share)
                    rows += [
                        about
                        | {"prompt": p, "loss": 2.0 + worse + 0.1 * p + dice.normal(0, 0.05), "accuracy": 0.5}
                        for p in range(prompts)
                    ]
    heads = list(itertools.product(range(layers), range(key_heads)))
    places = dice.permutation(len(heads))
    scores = [
        {
            "ranking": name,
            "draw": -1,
            "layer": layer,
            "key_head": head,
            "place": int(place),
            "number": 1.0 - place / 20,
        }
        for name in settings.rankings
        for (layer, head), place in zip(heads, places, strict=True)
    ]
    plan = [
        {"layer": layer, "key_head": head, "streams": bool(place >= 4), "place": int(place)}
        for (layer, head), place in zip(heads, places, strict=True)
    ]
    tables = {"points": pd.DataFrame(rows), "scores": pd.DataFrame(scores), "heads": pd.DataFrame(plan)}
    about = {"model": "a-model-with-a-long-name", "fingerprint": "0123456789abcdef", **settings.stored()}
    return CachePlan(RunRecord(kind="cache-plan", settings=about, complete=True), tables)


def planes_plan(losses: dict[str, float], draws: int = 20, prompts: int = 6) -> RotationPlan:
    """Losses at 2 of 8 planes; random draws lose 5 to 5.4, and prompts differ by a tenth."""
    rows = []
    for ranking, loss in {**losses, "random": 5.0}.items():
        for draw in range(draws) if ranking == "random" else (-1,):
            for purpose in ("judging",) if ranking == "random" else ("choosing", "judging"):
                labels = {"ranking": ranking, "draw": draw, "planes": 2, "purpose": purpose, "source": "text"}
                for prompt in range(prompts):
                    value = loss + 0.02 * max(draw, 0) + 0.1 * (prompt % 2)
                    rows.append(labels | {"prompt": prompt, "loss": value, "accuracy": 0.5})
    plan = pd.DataFrame({"layer": 0, "key_head": 0, "frequency_id": range(1, 9), "rank": range(8)})
    settings = {"planes": 2, "model": "m", "fingerprint": "f", "sources": ["text"], "prompts": prompts}
    record = RunRecord("rotation-plan", settings | {"rankings": [*losses, "random"]})
    return RotationPlan(record, {"points": pd.DataFrame(rows), "plan": plan})


@cache
def rotation_plan() -> Any:
    """Of a small random model, with most of its rankings."""
    how: dict[str, Any] = {
        "planes": 2,
        "budgets": (4,),
        "sources": ("repeats",),
        "length": 8,
        "prompts": 2,
    }
    return rs.plan.rotation(_small(), show_progress=False, **how)


def _small() -> rs.Subject:
    model = tiny("llama", num_hidden_layers=2)
    return rs.load((model, word_tokenizer()), name="a-model-with-a-long-name")
