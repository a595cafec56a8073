"""A random model has nothing beyond the null, except by chance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import false_verdicts
from benchmarks.false_verdicts import Drawn, drawn_figures, random_prompts, random_subject


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return drawn_figures(random_subject(0.1, 0), random_prompts(3, 0), 4)


def test_every_draw_has_the_figures_of_a_subject(drawn: Drawn) -> None:
    assert drawn.values.shape == drawn.errors.shape == (5, 10)
    assert len({*drawn.values[:, 0].tolist()}) == 5
    assert (drawn.errors[:, 0] > 0).all()


def test_a_subject_is_none_of_its_own_draws(drawn: Drawn) -> None:
    """Each figure tells the models apart, so the null of a subject holds each of the others once."""
    told = Drawn(["number"], np.arange(5.0)[:, None], np.zeros((5, 1)))
    for subject in range(1, 5):
        others = sorted(set(range(1, 5)) - {subject})
        [figure] = told.family(subject, np.array(others))
        assert subject not in figure.draws
    with pytest.raises(ValueError, match="larger sample than population"):
        list(told.answers(iter([1]), 4))


def test_size_and_power_of_made_up_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Draws alike in distribution, and a trained model with a share that none of them has."""

    def made_up(subject: object, prompts: object, draws: int) -> Drawn:
        values = np.random.default_rng(0).normal(0.5, 0.02, (1 + draws, 2))
        values[0] = 0.9
        return Drawn(["share symbolic", "late symbolic"], values, np.full(values.shape, 0.01))

    monkeypatch.setattr(false_verdicts, "drawn_figures", made_up)
    false_verdicts.main(draws=60, subjects=40)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    powers = [row for row in rows if row[:2] in (["letter", "share"], ["number", "late"])]
    assert [row[4] for row in powers] == ["1.00"] * 4


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
