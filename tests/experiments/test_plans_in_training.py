"""Plans of a model in the middle of its training: losses are those without dropout, and the model goes on training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rotoscope as rs
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny

DROPOUT = {"hidden_dropout": 0.5, "attention_dropout": 0.5}
SMALL: dict[str, Any] = {"sources": "repeats", "length": 8, "prompts": 1, "show_progress": False}
MEASURES: dict[str, Callable[[rs.Subject], Any]] = {
    "cache": lambda subject: (
        rs.plan.cache(
            subject, rankings=("far_task", "gradient"), frontier=0.5, window=4, sinks=1, **SMALL
        ).points
    ),
    "rotation": lambda subject: (
        rs.plan.rotation(
            subject, rankings=("effect", "norm"), budgets=1, planes=1, path_points=1, **SMALL
        ).points
    ),
    "gate": lambda subject: (
        rs.gate(
            subject, rs.tasks.repeats(subject, 8, 2), silence=True, heads="0:0", scores=False, controls=2
        ).conditions
    ),
}


def drops(training: bool) -> rs.Subject:
    """A model with much dropout, but for its last layer, which somebody holds still."""
    model = tiny("gpt_neox", num_hidden_layers=2, max_position_embeddings=64, **DROPOUT).train(training)
    model.gpt_neox.layers[1].eval()
    return rs.load((model, word_tokenizer()), name="drops")


@pytest.mark.parametrize("name", MEASURES)
def test_losses_are_those_without_dropout(name: str) -> None:
    resting, training = drops(False), drops(True)
    before = [module.training for module in training.model.modules()]
    assert set(before) == {True, False}
    expected, found = MEASURES[name](resting), MEASURES[name](training)
    assert np.allclose(found["loss"], expected["loss"], atol=1e-5)
    assert [module.training for module in training.model.modules()] == before
    assert not any(module.training for module in resting.model.modules())
