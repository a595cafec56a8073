"""Plans with nothing to choose or to compare."""

from __future__ import annotations

from typing import Any

import pytest

import rotoscope as rs
from tests.experiments.test_plan_cache import PLANNED
from tests.models.test_load import word_tokenizer
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def subject() -> rs.Subject:
    return rs.load((tiny("llama"), word_tokenizer()), name="small")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep": 1}, "so there was nothing to choose."),
        ({"keep": 0}, "so there was nothing to choose."),
        ({"rankings": ("far_task",)}, "chosen by far_task, the only ranking that was asked for."),
    ],
)
def test_plans_with_nothing_to_compare(subject: rs.Subject, changes: dict[str, Any], words: str) -> None:
    found = rs.plan.cache(subject, **{**PLANNED, "keep": 0.5, **changes}, show_progress=False)
    said = found.sentences()
    assert said[0].endswith(words)
    assert "nan" not in " ".join(said)
    ranked = any("ranked on repeats" in caveat for caveat in found.caveats())
    assert ranked == ("far_task" in words)
    assert any("random choices" in title for title, _ in found.overview()) == ("rankings" not in changes)


def test_shares_that_keep_as_many_heads_are_one_point(subject: rs.Subject) -> None:
    shares = (0.331, 0.334, 0.501, 0.502)
    found = rs.plan.cache(subject, **PLANNED | {"frontier": shares}, keep=0.5, show_progress=False)
    assert found.table("repeats").columns.tolist() == ["ranking", "0 %", "33.4 %", "50 %", "100 %"]
