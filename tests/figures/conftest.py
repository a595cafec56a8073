"""Runs to draw: measured on tiny models, stored with the package, or made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.experiments.gate.result import Gating
from rotoscope.experiments.lengths.result import Lengths
from rotoscope.experiments.lengths.run import stored_lengths
from rotoscope.experiments.roles.result import Geometry, Roles
from rotoscope.experiments.train.dynamics import Dynamics
from rotoscope.runs.record import RunRecord
from rotoscope.tasks.multihop import letter
from tests.tiny_models import tiny, tokens

MODELS = Path(rs.__file__).parent / "stored"


@pytest.fixture(scope="package")
def found() -> rs.Profile:
    return rs.profile(tiny("llama"), tokens=tokens(3, 14), null="none")


@pytest.fixture(scope="package")
def full() -> rs.Profile:
    return rs.profile(
        tiny("llama"), tokens=tokens(3, 14), frequencies=True, null="random", null_draws=2, examples=True
    )


@pytest.fixture(scope="package")
def number() -> Dynamics:
    return rs.dynamics("number")


@pytest.fixture(scope="package")
def roles() -> Roles:
    return Roles.open(MODELS / "letter" / "roles")


@pytest.fixture(scope="package")
def lengths() -> Lengths:
    """Two models of the stored measurement."""
    whole = stored_lengths()
    kept = {name: t[t["model"].isin(["letter-0-22500", "number-0-22500"])] for name, t in whole.tables.items()}
    return Lengths(whole.run, kept)


@pytest.fixture(scope="package")
def shape() -> Geometry:
    """Twelve layers of one head, four planes each; layer l uses plane 1 + l % 4 most."""
    rows = [
        {
            "layer": layer,
            "head": 0,
            "frequency_id": f,
            "angle": 1 / f,
            "max_logit": 3.0 if f == 1 + layer % 4 else 1.0,
        }
        for layer in range(12)
        for f in range(1, 5)
    ]
    use = pd.DataFrame(rows)
    use = use.assign(weight=np.where(use["max_logit"] == 3, 1.0, 0.0), product_weight=0.25)
    vectors = pd.DataFrame(
        [
            {"layer": 3, "head": 0, "kind": kind, "token": token, "re": re, "im": 0.5}
            for kind in ("query", "key")
            for token, re in (("a3", 1.0), ("ab", 2.0))
        ]
    )
    return Geometry(RunRecord(settings={"task": "letter"}), {"use": use, "vectors": vectors})


@pytest.fixture(scope="package")
def flow() -> SimpleNamespace:
    """One input whose last state looks at what it points to, in the second of two layers."""
    one = letter(hops=2, count=1, seed=0)[0]
    last = len(one.tokens) - 1
    cells = pd.DataFrame(
        [
            {"layer": layer, "position": p, "token": one.tokens[p], "ahead": None if p == 0 else 0}
            for layer in range(3)
            for p in range(len(one.tokens))
        ]
    )
    attention = torch.zeros(2, 1, last + 1, last + 1)
    attention[1, 0, last, one.path[1]] = 1.0
    return SimpleNamespace(sequence=one, answered=one.answer, cells=cells, attention=attention)


@pytest.fixture(scope="package")
def gating() -> Gating:
    """Two bands kept and removed, at a loss that tells which it was."""
    rows = [
        {"condition": f"{action} {first}", "action": action, "head_group": "all", "control": False, "draw": -1, "first_id": first,
         "last_id": first + 1, "gated_heads": 3, "source": source, "prompt": 0, "loss": loss + first, "accuracy": 0.0}
        for source in ("task", "text")
        for action, loss in (("keep", 1.0), ("remove", 5.0))
        for first in (1, 3)
    ]  # fmt: skip
    rows += [rows[k] | {"condition": "nothing gated", "first_id": 0, "last_id": 0, "loss": 0.5} for k in (0, 4)]
    return Gating(
        RunRecord(settings={"model": "m", "task": "binding", "prompts": 1, "passages": 1}),
        {"conditions": pd.DataFrame(rows)},
    )
