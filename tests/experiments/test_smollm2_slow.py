"""P1's figures on SmolLM2, at the sizes the documentation reports: minutes of work."""

from __future__ import annotations

import pytest
import torch

import rotoscope as rs


@pytest.mark.slow
@pytest.mark.parametrize(("pairs", "prompts"), [(16, 8), (32, 16)])
def test_chat_prefix(smollm2: rs.Subject, pairs: int, prompts: int) -> None:
    found = (
        rs.profile(smollm2, rs.tasks.binding(smollm2, pairs, prompts), null="random")
        .statistics()
        .set_index("statistic")
    )
    assert -0.97 <= found.loc["correlation", "value"] <= -0.80
    assert found.loc["correlation", "null_value"] < -0.7  # and random weights give it too
    decline = found.loc["positional decline"]
    assert decline["value"] > 0
    assert decline["verdict"] == "beyond the null"


@pytest.mark.slow
def test_start_token_only(smollm2: rs.Subject) -> None:
    found = rs.profile(smollm2, rs.tasks.binding(smollm2, 32, 8, prefix="start"), null="none")
    assert found.summary().early_symbolic > 0.95
    assert found.summary().early_positional < 0.2
    assert any("sink inside a block" in warning for warning in found.run.warnings)


@pytest.mark.slow
def test_gating_bands(smollm2: rs.Subject) -> None:
    """Repetition needs its slow planes, and symbolic heads do not need their fastest."""
    prompts = rs.tasks.repeats(smollm2, 32, 8, blocks="first")
    classes = rs.profile(smollm2, prompts, null="none")
    losses = {}
    for planes in ("21-24", "1-4"):
        summary = rs.gate(
            smollm2, prompts, remove=planes, heads="symbolic", classes=classes, controls=0, scores=False
        ).summary.set_index(["condition", "source"])
        losses[planes] = summary.loc[(f"remove {planes}", "task"), "loss"]
        plain = summary.loc[("nothing gated", "task"), "loss"]
    assert losses["21-24"] > plain + 5
    assert abs(losses["1-4"] - plain) < 1


@pytest.mark.slow
@pytest.mark.parametrize(("task", "right", "sure"), [("lookup", 31, 24), ("recall", 43, 36)])
def test_tasks_it_can_do(smollm2: rs.Subject, task: str, right: int, sure: int) -> None:
    """Of 48 prompts, `right` were measured; `sure` is what three standard errors leave."""
    made = getattr(rs.tasks, task)
    prompts = [prompt for seed in (0, 1) for prompt in made(smollm2, count=24, seed=seed)]
    found = sum(predicted(smollm2, prompt) == prompt.answers[0] for prompt in prompts)
    assert sure <= found
    assert abs(found - right) <= 2  # another machine rounds otherwise


@pytest.mark.slow
def test_base_prompts_ask_what_chat_prompts_ask(smollm2: rs.Subject) -> None:
    """Two facts, 24 prompts: of those that end in "Answer:" none is answered."""
    right = {
        ending: sum(
            predicted(smollm2, prompt) == prompt.answers[0]
            for prompt in rs.tasks.binding(smollm2, 2, 24, prefix="fact", distinct=True, ending=ending)
        )
        for ending in ("answer", "likes")
    }
    assert right["answer"] == 0
    assert right["likes"] >= 3


def predicted(subject: rs.Subject, prompt: rs.Prompt) -> int:
    with torch.no_grad():
        return int(subject.model(torch.tensor([prompt.tokens])).logits[0, -1].argmax())
