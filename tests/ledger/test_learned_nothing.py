"""Models that learned nothing are put in the subject's place: no claim about training or trained models is theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import rotoscope as rs
from rotoscope.experiments.gate.result import Gating
from rotoscope.ledger import language_figures
from rotoscope.ledger.claim import BesideModels
from rotoscope.ledger.claim_runs import ClaimRuns, UntrainedRuns
from rotoscope.ledger.judge import CLAIMS
from rotoscope.ledger.language_figures import (
    NULLS,
    P_VALUE,
    SUBJECT,
    LanguageFigures,
    Setting,
    figure_rows,
    gate_figures,
    measure_language,
    setting_figures,
)
from rotoscope.ledger.p1_models import (
    FIGURES,
    middle_is_lost,
    over_models,
    significance,
    slow_half_matters,
    together,
)
from rotoscope.ledger.verdicts import AS_IN_NULL, IN_PART, NOT, NOT_RUN, REPRODUCED, UNDECIDED
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


def test_random_groups_are_compared_on_the_prompts_they_were_shown() -> None:
    """Prompts differ by ten times what a gate does; the heads lose what every random group loses, prompt by prompt."""
    rows = []
    for condition, action, loss in (
        ("nothing gated", "remove", 0.0),
        ("remove all", "remove", 4.0),
        ("keep 1-4", "keep", 2.0),
        ("keep 5-8", "keep", 1.0),
    ):
        for draw in range(-1, 19 if action == "keep" else 0):
            for prompt in range(8 if draw < 0 else 2):
                cost = loss * (1 + 10 * (prompt > 1))
                rows.append(
                    (condition, action, draw >= 0, draw, "task", prompt, 5.0 * prompt + cost + 0.01 * draw, 0.0)
                )
    columns = ["condition", "action", "control", "draw", "source", "prompt", "loss", "accuracy"]
    figures, _ = gate_figures(Gating(RunRecord(), {"conditions": pd.DataFrame(rows, columns=columns)}))
    table = pd.DataFrame(figures).set_index(["figure", "null"])["value"]
    for figure, share in (("loss without slow half", 0.5), ("loss without fast half", 0.25)):
        assert table.loc[figure, SUBJECT].item() == pytest.approx(share)
        assert table.loc[figure, "other heads"].min() == pytest.approx(share + 0.01 / 4)
        assert len(table.loc[figure, "other heads"]) == 19


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
    assert ("no model that was measured answers" in finding.note) == all(
        run.right("chat-32") < 0.5 for run in models
    )


def shuffled(nulls: tuple[str, ...], draws: int, p: float = 0.5, own: float = 5e-5) -> LanguageFigures:
    rows = figure_rows("chat-32", SUBJECT, -1, {P_VALUE: own}, {})
    for name in nulls:
        for draw in range(draws):
            rows += figure_rows("chat-32", name, draw, {P_VALUE: p if draw == 0 else 0.5}, {})
    return LanguageFigures(RunRecord(), {"figures": pd.DataFrame(rows)})


@pytest.mark.parametrize(
    ("run", "verdict"),
    [
        (shuffled(NULLS, 19), REPRODUCED),
        (shuffled((), 0), UNDECIDED),
        (shuffled(NULLS[:1], 19), UNDECIDED),
        (shuffled(NULLS, 5), UNDECIDED),
        (shuffled(NULLS, 19, p=5e-5), AS_IN_NULL),
        (shuffled(NULLS, 19, own=0.01), NOT),
    ],
)
def test_a_p_value_without_nulls_is_undecided(run: LanguageFigures, verdict: str) -> None:
    assert significance(run).verdict == verdict


@pytest.mark.parametrize(("nulls", "verdict"), [(NULLS, REPRODUCED), (NULLS[1:], UNDECIDED), ((), UNDECIDED)])
def test_what_one_null_alone_says_is_undecided(nulls: tuple[str, ...], verdict: str) -> None:
    run = language_run(0.9)
    rows = run.figures[run.figures["null"].isin([SUBJECT, *nulls])]
    part = LanguageFigures(RunRecord(), run.tables | {"figures": rows})
    finding = FIGURES["p1-anticorrelation"](part)
    assert finding.verdict == verdict
    assert ("not measured: random" in finding.note) == ("random" not in nulls)


def test_gating_that_was_not_run_is_no_failure() -> None:
    assert slow_half_matters(language_run(0.9)).verdict == NOT_RUN
    assert middle_is_lost(language_run(0.9)).verdict == NOT_RUN


@pytest.mark.parametrize(
    ("trend", "error", "draws", "verdict"),
    [
        (0.5, 0.05, 19, REPRODUCED),
        (0.5, 0.05, 1, UNDECIDED),
        (0.05, 0.09, 19, UNDECIDED),
        (-0.3, 0.1, 19, NOT),
        (0.5, 0.05, 0, UNDECIDED),
    ],
)
def test_the_middle_is_lost_or_not_or_undecided(trend: float, error: float, draws: int, verdict: str) -> None:
    rows = figure_rows("places", SUBJECT, -1, {"log_likelihood": trend}, {"log_likelihood": error})
    for draw in range(draws):
        rows += figure_rows("places", "random", draw, {"log_likelihood": 0.01 * draw - 0.1}, {})
    assert middle_is_lost(LanguageFigures(RunRecord(), {"figures": pd.DataFrame(rows)})).verdict == verdict


def test_models_that_were_not_measured_say_nothing(runs: ClaimRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "language_models", lambda: [language_run(0.9)])
    finding = over_models(middle_is_lost, "places")(runs)
    assert (finding.verdict, finding.note) == (NOT_RUN, "")
    assert finding.value.endswith(": not measured")


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
