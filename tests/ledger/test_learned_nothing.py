"""Models that learned nothing are put in the subject's place: no claim about training or trained models is theirs.

Eight random language models and three untrained GPT-Js, in all rows; the quick tests take fewer and smaller ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rotoscope as rs
from rotoscope.lab.settings import TrainSettings
from rotoscope.ledger import claim_runs as workshop
from rotoscope.ledger import ours_depths as depths
from rotoscope.ledger import ours_models as ours
from rotoscope.ledger import p1_canonical as canonical
from rotoscope.ledger import p1_models as models
from rotoscope.ledger import p2_layers as layers
from rotoscope.ledger import p2_learning as learning
from rotoscope.ledger import p2_lengths as lengths
from rotoscope.ledger.claim import Claim
from rotoscope.ledger.claim_runs import Untrained, Workshop
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.verdicts import IN_PART, REPRODUCED
from tests.tiny_models import tiny

SLOW = pytest.mark.slow
SMALL: dict[str, Any] = {"layers": 2, "width": 16, "positions": 32}
LITTLE = {"training": workshop.FEW["training"] | dict.fromkeys(("validation_sequences", "test_sequences"), 40)}
MULTIHOP = [claim for room in (canonical, learning, layers, lengths) for claim in room.CLAIMS if claim.learned]
MULTIHOP += [claim for claim in depths.CLAIMS if claim.needs == "depths"]
PLANNED = ("ours-cache-frontier", "ours-copying-slow-planes")
MULTIHOP += [claim for claim in ours.CLAIMS if claim.id not in PLANNED]
LANGUAGE = [claim for claim in (*models.CLAIMS, *depths.LANGUAGE) if claim.learned]
LANGUAGE += [claim for claim in ours.CLAIMS if claim.id in PLANNED]
PROFILED = [claim for claim in LANGUAGE if claim.needs == "profile"]


def granted(claims: list[Claim], shop: Workshop) -> dict[str, str]:
    """What the models of a workshop are said to have, though they have learned nothing."""
    found = {claim.id: claim.compute(shop) for claim in claims}
    assert all(one.null for one in found.values())  # every one beside others that learned nothing
    return {
        name: f"{one.value} (null {one.null})"
        for name, one in found.items()
        if one.verdict in (REPRODUCED, IN_PART)
    }


def test_every_claim_about_training_is_asked_of_models_that_learned_nothing() -> None:
    about_training = {claim.id for claim in (*MULTIHOP, *LANGUAGE)}
    assert about_training == {claim.id for claim in CLAIMS.values() if claim.learned}
    rest = {name for name in set(CLAIMS) - about_training if not name.startswith("theory-")}
    assert rest == {
        "p1-metric", "p1-exclusion-heads", "p2-tasks", "p2-answer-positions", "p2-cost-training", "p2-cost-scoring",
        "p2-cost-storage", "p2-table-3-selection", "p2-table-3-number", "p2-table-3-letter",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "claims"),
    [(0, PROFILED), *(pytest.param(seed, LANGUAGE, marks=SLOW) for seed in range(8))],
)
@pytest.mark.usefixtures("few")
def test_random_language_models_are_granted_nothing(
    seed: int, claims: list[Claim], smollm2: rs.Subject, tmp_path: Path
) -> None:
    """Freshly initialised, every other one with larger weights, so that its attention is not flat."""
    sizes: dict[str, Any] = {"vocab_size": len(smollm2.tokenizer), "max_position_embeddings": 1024}
    if claims is PROFILED:
        sizes["num_hidden_layers"] = 2
    model = tiny("llama", seed=seed, sharp=(5.0, 1.0)[seed % 2], **sizes)
    shop = Workshop(tmp_path, "quick", (model, smollm2.tokenizer), device="cpu")
    assert granted(claims, shop) == {}


def test_a_small_untrained_gptj_is_granted_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TrainSettings.presets, "paper", SMALL)
    monkeypatch.setattr(workshop, "FEW", LITTLE)
    monkeypatch.setattr(workshop, "SEEDS", 1)
    shop = Untrained(Workshop(tmp_path, "quick", device="cpu"), first=10)
    assert granted([claim for claim in learning.CLAIMS if claim.learned], shop) == {}


@pytest.mark.slow
def test_untrained_gptjs_are_granted_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them for each task, and toy heads, other ones than those they stand beside."""
    monkeypatch.setattr("rotoscope.experiments.lengths.run.HEAD_INPUTS", 4)
    shop = Untrained(Workshop(tmp_path, "quick", device="cpu"), first=10)
    assert granted(MULTIHOP, shop) == {}
