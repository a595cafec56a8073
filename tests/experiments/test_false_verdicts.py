"""A random model has nothing beyond the null."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rotoscope as rs
from benchmarks import false_verdicts
from benchmarks.false_verdicts import random_prompts, random_subject


def test_random_subjects_are_not_beyond_the_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the defaults of every profile, and a null of its own for each subject."""
    score, profiles = rs.profile, []

    def kept(*args: Any, **settings: Any) -> rs.Profile:
        profiles.append(score(*args, **settings))
        return profiles[-1]

    monkeypatch.setattr(rs, "profile", kept)
    monkeypatch.setattr(false_verdicts, "SCALES", (0.02,))
    monkeypatch.setattr(false_verdicts, "PROMPTS", (4,))
    false_verdicts.main(repetitions=2)
    row = capsys.readouterr().out.splitlines()[2].split()
    assert row[:4] == ["0.02", "4", "2", "0"]
    first, second = (profile.statistics() for profile in profiles)
    assert set(first["verdict"]) <= {"as in the null", "undecided", "no verdict"}
    assert (first["null_draws"] == 19).all()
    assert (first["null_value"] != second["null_value"]).any()


def test_any_statistic_beyond_the_null_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = rs.experiments.Profile.statistics

    def last_is_beyond(profile: rs.Profile) -> Any:
        table = judged(profile)
        table.loc[table.index[-1], "verdict"] = "beyond the null"
        return table

    monkeypatch.setattr(rs.experiments.Profile, "statistics", last_is_beyond)
    assert false_verdicts.is_error(0.02, 2, 0)


def test_a_random_subject_is_a_draw_with_the_scale_asked_for() -> None:
    subject = random_subject(0.1, 3)
    weights = [w for w in subject.model.parameters() if w.ndim == 2]
    assert torch.cat([w.flatten() for w in weights]).std().item() == pytest.approx(0.1, rel=0.02)
    config = subject.model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (8, 6)
    other = random_subject(0.1, 4)
    assert not torch.equal(weights[0], next(other.model.parameters()))
    prompts = random_prompts(3, 0)
    assert (len(prompts), prompts.longest, len(prompts[0].blocks)) == (3, 50, 12)
    assert prompts[0].tokens != random_prompts(3, 1)[0].tokens


@pytest.mark.slow
def test_the_table_of_the_documentation() -> None:
    """At most 4 of 40 at every scale and number of prompts."""
    for scale in false_verdicts.SCALES:
        for prompts in false_verdicts.PROMPTS:
            assert sum(false_verdicts.is_error(scale, prompts, k) for k in range(40)) <= 4
