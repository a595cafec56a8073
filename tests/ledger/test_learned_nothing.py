"""Models that learned nothing are put in the subject's place: no claim about training or trained models is theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.ledger import language_figures
from rotoscope.ledger.claim import BesideModels
from rotoscope.ledger.claim_runs import ClaimRuns, UntrainedRuns
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.language_figures import (
    NULLS,
    SUBJECT,
    LanguageFigures,
    Setting,
    figure_rows,
    measure_language,
    setting_figures,
)
from rotoscope.ledger.p1_models import FIGURES, over_models, together
from rotoscope.ledger.verdicts import AS_IN_NULL, IN_PART, NOT, REPRODUCED, UNDECIDED
from rotoscope.runs.record import RunRecord
from tests.tiny_models import tiny

IN_UNTRAINED = {"p1-canonical-scores": 1, "ours-cache-frontier": 1}
"""Parts of a rule that untrained models meet: Retrieval heads with slow planes are near the symbolic corner before any step, and
all rankings of key heads are alike. Trained models that meet no more are as in the null."""
LEARNED = [claim for claim in CLAIMS.values() if isinstance(claim.compute, BesideModels)]


def test_untrained_models_meet_no_rule_about_learning() -> None:
    untrained = UntrainedRuns()
    levels = {claim.id: claim.compute.look(untrained).level for claim in LEARNED}  # type: ignore[attr-defined]
    assert {name: level for name, level in levels.items() if level} == IN_UNTRAINED


def test_every_claim_about_training_has_a_null() -> None:
    rest = {
        claim.id for claim in CLAIMS.values() if claim not in LEARNED and claim.kind in ("empirical", "ours")
    }
    own_draws = {
        "ours-number-place",
        "ours-letter-fact",
        "ours-carried",
        "ours-none-symbolic",
        "ours-positional-stay",
    }
    own_draws |= {"ours-carry-depth", "p2-number-frequencies", "p2-letter-frequencies"}
    language = {claim.id for claim in CLAIMS.values() if claim.needs.startswith("language")}
    assert rest - own_draws - language == {"p2-table-3-number", "p2-table-3-letter"}


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_language_models_are_granted_nothing(seed: int, smollm2: rs.Subject) -> None:
    """Freshly initialised, every other one with larger weights, whatever they answer."""
    sizes = {"vocab_size": len(smollm2.tokenizer), "max_position_embeddings": 1024, "num_hidden_layers": 2}
    model = rs.load((tiny("llama", seed=seed, sharp=(5.0, 1.0)[seed % 2], **sizes), smollm2.tokenizer))
    run = LanguageFigures(RunRecord(), setting_figures(model, "chat-32", Setting(4, prompts=2), draws=19))
    granted = {name: judge(run).verdict for name, judge in FIGURES.items()}
    assert not {REPRODUCED, IN_PART} & set(granted.values()), granted
    assert run.right("chat-32") < 0.5


@pytest.mark.slow
def test_a_language_model_is_measured_and_kept(
    smollm2: rs.Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_figures, "PLACES", {"pairs": 4, "count": 6})
    monkeypatch.setattr(language_figures, "REPEATS", {"length": 8, "count": 2, "blocks": "first"})
    model = tiny("llama", vocab_size=len(smollm2.tokenizer), max_position_embeddings=1024, num_hidden_layers=2)
    settings = {"chat-32": Setting(4, prompts=2), "start-32": Setting(4, prompts=2, prefix="start")}
    out = tmp_path / "figures"
    run = measure_language(
        (model, smollm2.tokenizer), settings=settings, draws=2, controls=2, places=6, out=out
    )
    assert set(run.accuracy["setting"]) == {"chat-32", "start-32", "places", "gating"}
    assert run.run.proof is not None
    again = LanguageFigures.open(out)
    assert again.figures.equals(run.figures)
    assert sum(file.stat().st_size for file in out.iterdir()) < 100_000


# Verdicts of made-up figures.


def language_run(right: float, value: float = -0.95, null: float = -0.5, draws: int = 19) -> LanguageFigures:
    """A model with one figure, beside two nulls."""
    rows = figure_rows("chat-32", SUBJECT, -1, {"correlation": value}, {"correlation": 0.01})
    for name in NULLS:
        for draw in range(draws):
            rows += figure_rows("chat-32", name, draw, {"correlation": null + 0.001 * draw}, {})
    accuracy = pd.DataFrame([{"setting": "chat-32", "pairs": 32, "prompts": 16, "accuracy": right}])
    return LanguageFigures(RunRecord(), {"figures": pd.DataFrame(rows), "accuracy": accuracy})


@pytest.mark.parametrize(
    ("models", "verdict"),
    [
        ([language_run(0.9)], REPRODUCED),
        ([language_run(0.1)], UNDECIDED),  # it does not do the task
        ([language_run(0.9), language_run(0.1, value=-0.1)], REPRODUCED),  # the other one does not count
        ([language_run(0.9), language_run(0.9, value=-0.1)], IN_PART),
        ([language_run(0.9, value=-0.1)], NOT),
        ([language_run(0.9, null=-0.95)], AS_IN_NULL),
        ([language_run(0.9, null=-1.2)], AS_IN_NULL),  # further than the null, the other way
        ([language_run(0.9, draws=5)], None),  # too few draws to confirm
    ],
)
def test_the_verdict_is_that_of_models_that_do_the_task(
    models: list[LanguageFigures], verdict: str | None, runs: ClaimRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "language_models", lambda: models)
    finding = over_models(FIGURES["p1-anticorrelation"])(runs)
    assert finding.verdict == verdict or (verdict is None and finding.verdict != NOT)
    assert finding.value.count("right)") == len(models)
    assert ("none of these models answers" in finding.note) == all(run.right("chat-32") < 0.5 for run in models)


def test_one_verdict_on_several_models() -> None:
    assert together([]) == UNDECIDED
    assert together([NOT, AS_IN_NULL]) == AS_IN_NULL
    assert together([REPRODUCED, NOT]) == IN_PART


def test_norms_are_centred_over_keys(smollm2: rs.Subject) -> None:
    """A constant on all keys leaves the norm alone, as softmax does; brute force over one layer."""
    model = tiny("llama", seed=0, vocab_size=len(smollm2.tokenizer), num_hidden_layers=1)
    prompts = rs.tasks.from_tokens([[5, 9, 2, 7, 1, 3]])
    layers: list[rs.LayerHeads] = []

    @rs.measure
    def look(heads: rs.LayerHeads) -> dict[str, torch.Tensor]:
        layers.append(heads)
        return {"first_key": heads.keys[:, :1, 0, 0].expand(-1, heads.heads)}

    measures = [language_figures.plane_norms, look]
    run = rs.profile(model, prompts, null="none", measures=measures, examples=False)
    logits = layers[0].plane_logits[0].numpy()  # [heads, n, planes]
    norms = np.sqrt(((logits - logits.mean(1, keepdims=True)) ** 2).sum(1))
    ours = run.prompts[[f"{language_figures.NORM}{k + 1}" for k in range(norms.shape[1])]].to_numpy()
    assert ours == pytest.approx(norms, rel=1e-4)


def test_runs_of_figures_can_be_named(runs: ClaimRuns, tmp_path: Path) -> None:
    """A folder of figures is judged as it is; no model is loaded."""
    language_run(0.9).save(tmp_path / "figures")
    chosen = ClaimRuns(Path("nowhere"), model=tmp_path / "figures")
    assert [run.right("chat-32") for run in chosen.language_models()] == [0.9]
