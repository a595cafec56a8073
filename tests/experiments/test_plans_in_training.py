"""Plans of a model in the middle of its training: losses are those without dropout, and the model goes on training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rotoscope as rs
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

WORDS = " ".join(f"w{3 + k * k % 97}" for k in range(400))
DROPOUT = {"hidden_dropout": 0.5, "attention_dropout": 0.5}


def drops(training: bool) -> rs.Subject:
    """A model with much dropout, but for its last layer, which somebody holds still."""
    model = tiny("gpt_neox", num_hidden_layers=2, max_position_embeddings=64, **DROPOUT).train(training)
    model.gpt_neox.layers[1].eval()
    return rs.load((model, word_tokenizer()), name="drops")


def cache(subject: rs.Subject, text: str) -> Any:
    how: dict[str, Any] = {"sources": ("repeats",), "length": 8, "window": 4, "sinks": 1, "prompts": 2}
    plan = rs.plan.cache(
        subject, rankings=("far_task", "gradient"), frontier=(0.5,), show_progress=False, **how
    )
    return plan.points


def rotation(subject: rs.Subject, text: str) -> Any:
    how: dict[str, Any] = {
        "sources": ("repeats",),
        "length": 8,
        "prompts": 2,
        "planes": 1,
        "budgets": (1,),
    }
    plan = rs.plan.rotation(subject, rankings=("effect", "norm"), path_points=1, show_progress=False, **how)
    return plan.points


def gate(subject: rs.Subject, text: str) -> Any:
    prompts = rs.tasks.repeats(subject, 8, 2)
    return rs.gate(subject, prompts, silence=True, heads="0:0", scores=False, show_progress=False).conditions


@pytest.mark.parametrize("measure", [cache, rotation, gate])
def test_losses_are_those_without_dropout(
    measure: Callable[[rs.Subject, str], Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = tmp_path_factory.mktemp("text") / "words.txt"
    text.write_text(WORDS)
    resting, training = drops(False), drops(True)
    before = [module.training for module in training.model.modules()]
    assert any(before)
    assert not all(before)
    expected, found = measure(resting, str(text)), measure(training, str(text))
    assert np.allclose(found["loss"], expected["loss"], atol=1e-5)
    assert [module.training for module in training.model.modules()] == before
    assert not any(module.training for module in resting.model.modules())
